"""Crash reports: enough to find a bug, and no data of the operator.

Messages of errors, values of arguments and local variables may contain data, so the report has none of them. It has
the types of the errors, the code lines they passed through, the versions, and the command with its option names.
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

from pipeline import logs
from pipeline.errors import RemoteTraceback
from pipeline.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_REPORTS: Final = 5
_REPORT_NAME_RE: Final = re.compile(r"scanlake-bug-\d{8}T\d{6}Z-[0-9a-f]{6}\.txt")
_OPTION_RE: Final = re.compile(r"--?[a-z][a-z-]{0,40}")
_LIBRARIES: Final = ("aiohttp", "duckdb", "pyarrow", "pydantic", "rich", "structlog", "typer", "uvloop")
_MAX_CAUSE_DEPTH: Final = 20
_report_folder: Path | None = None


def set_report_folder(folder: Path) -> None:
    """Write later reports to this folder, if it exists and is writable."""
    global _report_folder  # noqa: PLW0603 - a property of the process, like the log
    _report_folder = folder


def write_report(error: BaseException, arguments: Sequence[str], commands: Sequence[str]) -> Path | None:
    """Write a report to the lake's folder, else to the temporary folder; return None if both fail.

    Only the owner can read it. The newest `MAX_REPORTS` reports of the folder stay.
    """
    text = logs.redact("\n".join(_report_lines(error, arguments, commands)) + "\n")
    name = f"scanlake-bug-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}.txt"
    for folder in (_report_folder, Path(tempfile.gettempdir())):
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
        _prune_old_reports(folder)
        return path
    return None


def _report_lines(error: BaseException, arguments: Sequence[str], commands: Sequence[str]) -> Iterator[str]:
    yield f"scanlake {__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield "with " + ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES)
    command = next((argument for argument in arguments if argument in commands), "none")
    options = [match[0] for argument in arguments if (match := _OPTION_RE.fullmatch(argument.partition("=")[0]))]
    yield f"command: {' '.join([command, *options])}"
    yield ""
    yield "Messages, values and local variables are omitted: they may contain data."
    yield from _format_exception_chain(error, _MAX_CAUSE_DEPTH, set())


def _format_exception_chain(error: BaseException, depth: int, visited: set[int]) -> Iterator[str]:
    """Yield the errors and their code lines, the first cause first."""
    if depth == 0 or id(error) in visited:
        return
    visited.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _format_exception_chain(cause, depth - 1, visited)
        yield "led to"
    yield f"{type(error).__module__}.{type(error).__qualname__}"
    for frame in traceback.extract_tb(error.__traceback__):
        yield f"  {_relative_path(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line or ''}"
    if isinstance(error, RemoteTraceback):
        yield from (f"  {_relative_path(filename)}:{line} in {name}" for filename, line, name in error.frames)
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield "together with"
            yield from _format_exception_chain(member, depth - 1, visited)


def _relative_path(filename: str) -> str:
    """Return the path without the folders that may contain a person's name."""
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


def _prune_old_reports(folder: Path) -> None:
    with suppress(OSError):
        reports = [
            path
            for path in folder.iterdir()
            if _REPORT_NAME_RE.fullmatch(path.name) and path.stat().st_uid == os.getuid()
        ]
        for path in sorted(reports, key=lambda path: path.name)[:-MAX_REPORTS]:
            path.unlink(missing_ok=True)
