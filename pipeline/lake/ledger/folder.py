"""The lake's folder before anything is written to it: a lake, an empty folder, or refused.

A folder with other files belongs to others: a home folder, a checkout, the root of the file system. Nothing here
writes.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, suppress
from enum import Enum
from typing import TYPE_CHECKING, Final

from pipeline.errors import LakeCorruptedError, SettingsError, refuse_unreadable
from pipeline.lake.ledger.format import LedgerIdentity, connect_readonly, identify_ledger
from pipeline.lake.storage.atomic_files import is_temp_file, list_names
from pipeline.lake.storage.lake_lock import has_lock_note
from pipeline.lake.storage.layout import LakeLayout, list_part_files, list_snapshots, translate_os_errors
from pipeline.lake.storage.mounts import require_mounted

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.errors import ScanlakeError
    from pipeline.settings.settings import Settings

RESTORE_IN_PROGRESS: Final = "RESTORE_IN_PROGRESS"
"""Name of the file that marks a folder whose restore is running or was killed."""
RESTORE_MARK: Final = b"scanlake restore\n"
_MAGIC_BYTES: Final = 12  # of DuckDB's header after a checksum; those of Parquet are the first four
_MAX_ZEROS: Final = 4096  # a block of the file system


class FolderKind(Enum):
    """What a folder is to scanlake."""

    EMPTY = "empty, or not there"
    LAKE = "a lake"
    LAKE_WITHOUT_LEDGER = "files with the names of a catalog or of parts, without a ledger"
    OTHER = "other files"


def classify_folder(layout: LakeLayout, identity: LedgerIdentity | None = None) -> FolderKind:
    """Return what the folder is; `identity` is that of its ledger, if known. Raises `StorageError`.

    No database is opened: a catalog alone makes no lake here, but in `folder_checks`.
    """
    if identity is None:
        identity = identify_ledger(layout.ledger)
    if identity is LedgerIdentity.LEDGER:
        return FolderKind.LAKE
    with translate_os_errors(layout.root):
        if identity is LedgerIdentity.NEW and find_other_entry(layout) is None:
            return FolderKind.EMPTY
        if any(map(_has_format, (*(path for _, path in list_snapshots(layout)), *list_part_files(layout)))):
            return FolderKind.LAKE_WITHOUT_LEDGER
    return FolderKind.OTHER


def _has_format(path: Path) -> bool:
    """Return whether a file with the name of a snapshot or a part begins as scanlake writes it, or with zeros."""
    content = _read_begin(path, _MAGIC_BYTES) if path.is_file() and not path.is_symlink() else b"other"
    return not content.strip(b"\0") or content[8:] == b"DUCK" or content.startswith(b"PAR1")


def require_outside_lakes(path: Path, subject: str, own: Path | None = None) -> None:
    """Raise `SettingsError` about `subject` if `path` is a lake or inside one. `own` is a lake in any state."""
    resolved = path.resolve()
    is_own = own is not None and resolved.is_relative_to(own.resolve())
    if is_own or find_enclosing_lake(resolved) is not None:
        which = "the" if is_own else "another"
        raise SettingsError(f"{subject} is in {which} lake.", hint="Use a path outside the lake.")


def require_own_file(path: Path, subject: str, lake: Path, begin: bytes) -> None:
    """Raise `SettingsError` about `subject` unless `path` is outside lakes and new, empty or begins with `begin`."""
    require_outside_lakes(path, subject, lake)
    with refuse_unreadable(subject, hint="Use another file."), suppress(FileNotFoundError):
        is_regular = stat.S_ISREG(path.lstat().st_mode)
        content = _read_begin(path, _MAX_ZEROS + 1) if is_regular else b""
        are_zeros = len(content) <= _MAX_ZEROS and not content.strip(b"\0")  # nothing else: after a power loss
        if not (is_regular and (content.startswith(begin) or are_zeros)):
            hint = f"Use another file{', or delete this one' if is_regular else ''}."
            raise SettingsError(f"{subject} exists and is not a file that scanlake has written.", hint=hint)


def find_enclosing_lake(path: Path) -> Path | None:
    """Return the nearest folder at or above `path` that is a lake."""
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents):
        ledger = LakeLayout(folder).ledger
        if ledger.is_file() and os.access(ledger, os.R_OK) and identify_ledger(ledger) is LedgerIdentity.LEDGER:
            return folder
    return None


def find_other_entry(layout: LakeLayout) -> str | None:
    """Return the first entry that no run of scanlake has made before there was a ledger."""
    if not layout.root.exists():
        return None
    journal = layout.ledger.with_name(f"{layout.ledger.name}-journal")
    for path in sorted(map(layout.root.joinpath, list_names(layout.root))):
        is_of_first_run = path == layout.ledger or (path == journal and layout.ledger.exists()) or is_temp_file(path)
        is_own_lock = path == layout.lock and has_lock_note(layout)
        if not (is_of_first_run or is_own_lock):
            return path.name
    return None


def has_restore_mark(folder: Path) -> bool:
    """Return whether a folder has the mark of a restore, as scanlake writes it; empty after a kill."""
    mark = folder / RESTORE_IN_PROGRESS
    is_file = not mark.is_symlink() and mark.is_file()
    return is_file and _read_begin(mark, len(RESTORE_MARK)).strip(b"\0") in {b"", RESTORE_MARK}


def _read_begin(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def missing_catalog_error(layout: LakeLayout, settings: Settings) -> ScanlakeError:
    """Return the error for a folder without a catalog: no lake, a lake before its first publish, or a lost catalog."""
    kind = classify_folder(layout)
    if kind in {FolderKind.EMPTY, FolderKind.OTHER}:
        return missing_lake_error(layout.root, settings)
    if kind is FolderKind.LAKE_WITHOUT_LEDGER or list_snapshots(layout) or _has_published(layout.ledger):
        return LakeCorruptedError(f"{layout.catalog} is missing.", hint="Run `scanlake repair`.")
    hint = "Run `scanlake status`: it shows how far the first sync is, or why it failed."
    return SettingsError(f"The lake at {layout.root} has no catalog yet: no sync has published files.", hint=hint)


def _has_published(ledger: Path) -> bool:
    """Return whether a ledger records a published snapshot; False for one that cannot be read."""
    with suppress(sqlite3.Error), closing(connect_readonly(ledger)) as db:
        return bool(db.execute("SELECT EXISTS (SELECT 1 FROM snapshot WHERE state = 'published')").fetchone()[0])
    return False


def missing_lake_error(root: Path, settings: Settings) -> SettingsError:
    """Return the error for a lake that does not exist, with the next step of the set-up as its hint.

    Raises `StorageError` if it is not mounted.
    """
    require_mounted(root)
    start = "Go to the folder of your scanlake.toml or below it, start with `scanlake init`"
    step = start if settings.base_url is None else "Run `scanlake sync` first"
    return SettingsError(f"No lake at {root}.", hint=f"{step}, or correct --lake.")
