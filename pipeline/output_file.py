"""The target of `--out`: standard output, a device or a pipe, or a file that is renamed when it is complete."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from pipeline.atomic_files import atomic_write
from pipeline.errors import SettingsError
from pipeline.lake.lake_folder import require_outside_lakes

_STANDARD_OUTPUT: Final = Path("-")


def resolve_output(out: Path | None, *lakes: Path) -> Path | None:
    """Return the file, device or pipe behind --out, links resolved; None for standard output.

    Raises `SettingsError` if it is not allowed.
    """
    if out is None or _is_standard_output(out):
        return None
    try:
        path = out if _is_stream(out) else out.resolve()
    except RuntimeError:
        raise SettingsError(f"--out {out} is a link that refers to itself.", hint="Use another file.") from None
    for lake in lakes:
        require_outside_lakes(path, f"--out {out}", lake)
    if path.is_dir():
        raise SettingsError(f"--out {out} is a folder.", hint="Use a file in this folder.")
    if not path.parent.is_dir():
        raise SettingsError(f"--out {out}: folder {out.parent} does not exist.", hint="Create it, or use another file.")
    return path


def _is_standard_output(out: Path) -> bool:
    """Return whether this is standard output, also as /dev/stdout redirected to a file with earlier content."""
    if out == _STANDARD_OUTPUT:
        return True
    try:
        return os.path.samestat(out.stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):
        return False


def _is_stream(out: Path) -> bool:
    """Return whether this is a device, a pipe or a terminal, which a rename would replace."""
    return out.exists() and not (out.is_file() or out.is_dir())


@contextmanager
def open_output(out: Path | None) -> Iterator[IO[bytes]]:
    """Open what `resolve_output` has returned."""
    if out is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if _is_stream(out):
        with out.open("wb") as target:
            yield target
        return
    with atomic_write(out, durable=False) as temp, temp.open("xb") as target:
        yield target
