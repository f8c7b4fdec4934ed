"""The page as a file: written whole or not at all, and never over a file of others."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import write_file
from pipeline.dashboard.page import GENERATOR
from pipeline.errors import SettingsError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

_HEAD_BYTES: Final = 2_000  # of a page; they include the generator field


def check_writable(target: Path, *, force: bool) -> None:
    """Raise `SettingsError` if `target` is a folder, a device, or a file that is not a dashboard."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise SettingsError(f"{target.parent} is not a folder.", hint="Create it, or correct --out.") from None
        return
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) or target.is_dir():
        raise SettingsError(f"{target} is not a file.", hint="Use another file with --out.")
    if not force and not _is_dashboard(target):
        hint = "Use another file with --out, or add --force."
        raise SettingsError(f"{target} exists and is not a dashboard of scanlake.", hint=hint)


def write_page(target: Path, page: str) -> int:
    """Write the page and return its bytes. Raises `StorageError`; then the old file is unchanged."""
    content = page.encode("utf-8")
    try:
        write_file(target, content)
    except OSError as error:
        raise StorageError.from_errno(str(target), error.errno) from error
    return len(content)


def _is_dashboard(target: Path) -> bool:
    try:
        with target.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return head.startswith(b"<!doctype html>") and f'name="generator" content="{GENERATOR} '.encode() in head
