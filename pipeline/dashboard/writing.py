"""Writing the page to a file: whole or not at all, and never over a file that is not ours."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from pipeline.dashboard.page import MARK
from pipeline.errors import SettingsError, StorageError

_HEAD_BYTES = 2_000  # of a page; the generator stands well within


def may_write(target: Path, *, force: bool) -> None:
    """Raise `SettingsError` if `target` is no place for a page: a folder, a device, a file that is not ours."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise SettingsError(f"{target.parent} is not a folder.", remedy="Make it, or mend --out.") from None
        return
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) or target.is_dir():
        raise SettingsError(f"{target} is not a file.", remedy="Name another one with --out.")
    if not force and not _is_ours(target):
        remedy = "Name another one with --out, or add --force."
        raise SettingsError(f"{target} exists and is not a dashboard of scanlake.", remedy=remedy)


def write(target: Path, page: str) -> int:
    """Write the page aside and rename it. Returns its bytes. Raises `StorageError`; then nothing has changed."""
    content = page.encode("utf-8")
    aside = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name[:100]}.", delete=False) as file:
            aside = Path(file.name)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        aside.replace(target)
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror or 'cannot be written'}.") from error
    finally:
        if aside is not None:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
    return len(content)


def _is_ours(target: Path) -> bool:
    try:
        with target.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return head.startswith(b"<!doctype html>") and f'name="generator" content="{MARK} '.encode() in head


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now
