"""What is written down when scanlake itself is at fault: enough to find the bug, and nothing of anybody's data.

Messages of errors, values of arguments and local variables may hold data, so none of them is in the report:
the kinds of the errors, the lines of code they passed through, the versions, and the verb with its options' names.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import sys
import tempfile
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline import __version__, logs
from pipeline.errors import Elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KEPT: Final = 5
_NAME: Final = re.compile(r"scanlake-bug-\d{8}T\d{6}Z-[0-9a-f]{6}\.txt")
_OPTION: Final = re.compile(r"--?[a-z][a-z-]{0,40}")
_LIBRARIES: Final = ("aiohttp", "duckdb", "pyarrow", "pydantic", "rich", "structlog", "typer", "uvloop")
_DEEPEST: Final = 20  # errors that led to each other
_place: Path | None = None


def keep_in(folder: Path) -> None:
    """From now on reports go to this folder, if it is there and can be written."""
    global _place  # noqa: PLW0603 - like the log, a property of the process
    _place = folder


def write_report(error: BaseException, arguments: Sequence[str], verbs: Sequence[str]) -> Path | None:
    """Write the report into the lake's folder, else the temporary one. None where neither takes it.

    Readable by its owner only; of earlier reports there, the newest few stay.
    """
    text = logs.scrub("\n".join(_lines(error, arguments, verbs)) + "\n")
    name = f"scanlake-bug-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}.txt"
    for folder in (_place, Path(tempfile.gettempdir())):
        if folder is None or not folder.is_dir():
            continue
        path = folder.absolute() / name
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            continue
        _let_go(folder)
        return path
    return None


def _lines(error: BaseException, arguments: Sequence[str], verbs: Sequence[str]) -> Iterator[str]:
    yield f"scanlake {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield "with " + ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES)
    verb = next((argument for argument in arguments if argument in verbs), "no verb")
    options = [match[0] for argument in arguments if (match := _OPTION.fullmatch(argument.partition("=")[0]))]
    yield f"verb: {' '.join([verb, *options])}"
    yield ""
    yield "Messages, values and local variables are left out: they may hold data."
    yield from _told(error, _DEEPEST, set())


def _told(error: BaseException, depth: int, seen: set[int]) -> Iterator[str]:
    """The errors that led here, first cause first: their kinds, and the code they passed through."""
    if depth == 0 or id(error) in seen:
        return
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield from _told(before, depth - 1, seen)
        yield "led to"
    yield f"{type(error).__module__}.{type(error).__qualname__}"
    for frame in traceback.extract_tb(error.__traceback__):
        yield f"  {_short(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line or ''}"
    if isinstance(error, Elsewhere):
        yield from (f"  {_short(filename)}:{line} in {name}" for filename, line, name in error.frames)
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield "together with"
            yield from _told(each, depth - 1, seen)


def _short(filename: str) -> str:
    """The path without the folders that may tell a person's name."""
    folders = {*sys.path, sys.prefix, sys.base_prefix, str(Path(__file__).parents[1])}
    for folder in sorted(folders, key=len, reverse=True):
        if folder and filename.startswith(folder + os.sep):
            return filename[len(folder) + 1 :]
    return Path(filename).name


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "-"


def _let_go(folder: Path) -> None:
    with suppress(OSError):
        ours = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.stat().st_uid == os.getuid()]
        for path in sorted(ours, key=lambda path: path.name)[:-KEPT]:
            path.unlink(missing_ok=True)
