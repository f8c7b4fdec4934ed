"""The lake's folder before anything is written to it: a lake, an empty folder, or refused.

A folder with other files belongs to others: a home folder, a checkout, the root of the file system. Nothing here
writes.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.atomic_files import is_temp_file
from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.duckdb_errors import is_not_a_database
from pipeline.lake.layout import LakeLayout, has_lock_note, translate_os_errors
from pipeline.lake.migrations import LedgerIdentity, describe_ledger, identify_ledger
from pipeline.lake.retention import list_part_files, list_snapshots
from pipeline.lake.sqlite_errors import REBUILD_HINT

if TYPE_CHECKING:
    from pathlib import Path

FRESHNESS_VIEW: Final = "meta.freshness"
"""A view that every catalog of scanlake has, also a union."""
_LOST_AND_FOUND: Final = "lost+found"  # a folder in the root of a file system
_RUN_STATS: Final = "run_stats.json"  # which a failed first run leaves, and no lake needs


class FolderKind(Enum):
    """What a folder is to scanlake."""

    EMPTY = "empty, or not there"
    LAKE = "a lake"
    LAKE_WITHOUT_LEDGER = "files with the names of a catalog or of parts, without a ledger"
    OTHER = "other files"


def classify_folder(layout: LakeLayout, identity: LedgerIdentity | None = None) -> FolderKind:
    """Return what the folder is; `identity` is that of its ledger, if known. Raises `StorageError`."""
    if identity is None:
        identity = identify_ledger(layout.ledger)
    if identity is LedgerIdentity.LEDGER:
        return FolderKind.LAKE
    with translate_os_errors(layout.root):
        if identity is LedgerIdentity.NEW and _find_other_entry(layout) is None:
            return FolderKind.EMPTY
        if list_snapshots(layout) or list_part_files(layout) or is_own_catalog(layout.catalog):
            return FolderKind.LAKE_WITHOUT_LEDGER
    return FolderKind.OTHER


def is_own_catalog(path: Path) -> bool:
    """Return whether a file is a catalog of scanlake, or one that cannot be read now. Another database is not."""
    if not path.is_file():
        return False
    try:
        with duckdb.connect(str(path), read_only=True) as db:
            db.execute(f"SELECT 1 FROM {FRESHNESS_VIEW} LIMIT 0")
    except duckdb.CatalogException:
        return False
    except duckdb.Error as error:
        return not is_not_a_database(error)
    return True


def foreign_catalog_error(path: Path) -> SettingsError:
    """Return the error for a folder whose catalog is of another program."""
    return SettingsError(f"{path.parent} is not a lake: its {path.name} is not scanlake's.", hint="Correct --lake.")


def require_lake_or_empty(layout: LakeLayout, identity: LedgerIdentity | None = None) -> FolderKind:
    """Return what the folder is. Raises `SettingsError` for other files, and for a new folder inside a lake."""
    kind = classify_folder(layout, identity)
    if kind is FolderKind.OTHER and layout.catalog.is_file() and not layout.ledger.exists():
        raise foreign_catalog_error(layout.catalog)
    if kind is FolderKind.OTHER:
        raise SettingsError(
            f"{layout.root} is not a lake and not empty: it has {_find_other_entry(layout) or layout.ledger.name}.",
            hint="Use a new or empty folder for --lake.",
        )
    if kind is FolderKind.EMPTY and (enclosing := find_enclosing_lake(layout.root.parent)) is not None:
        raise SettingsError(
            f"{layout.root} is inside the lake {enclosing}.", hint="Use a folder outside the lake for --lake."
        )
    return kind


def require_lake(layout: LakeLayout) -> None:
    """Raise `SettingsError` if the folder is not a lake, `LakeCorruptedError` if the lake has no ledger."""
    identity = identify_ledger(layout.ledger)
    kind = require_lake_or_empty(layout, identity)
    if kind is FolderKind.EMPTY:
        raise SettingsError(f"No lake at {layout.root}.", hint="Run `scanlake sync` first, or correct --lake.")
    if kind is FolderKind.LAKE_WITHOUT_LEDGER:
        raise LakeCorruptedError(
            f"{layout.ledger}: {describe_ledger(layout.ledger, identity)}.",
            hint=REBUILD_HINT,
        )


def require_outside_lakes(path: Path, subject: str, own: Path | None = None) -> None:
    """Raise `SettingsError` about `subject` if `path` is a lake or inside one. `own` is a lake in any state."""
    resolved = path.resolve()
    is_own = own is not None and resolved.is_relative_to(own.resolve())
    if is_own or find_enclosing_lake(resolved) is not None:
        which = "the" if is_own else "another"
        raise SettingsError(f"{subject} is in {which} lake.", hint="Use a path outside the lake.")


def find_enclosing_lake(path: Path) -> Path | None:
    """Return the nearest folder at or above `path` that is a lake."""
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents):
        ledger = LakeLayout(folder).ledger
        if ledger.is_file() and os.access(ledger, os.R_OK) and identify_ledger(ledger) is LedgerIdentity.LEDGER:
            return folder
    return None


def _find_other_entry(layout: LakeLayout) -> str | None:
    """Return the first entry that no run of scanlake has made before there was a ledger."""
    if not layout.root.exists():
        return None
    journal = layout.ledger.with_name(f"{layout.ledger.name}-journal")
    for path in sorted(layout.root.iterdir()):
        is_of_first_run = path == layout.ledger or (path == journal and layout.ledger.exists()) or is_temp_file(path)
        is_own_lock = path == layout.lock and has_lock_note(layout)
        is_of_file_system = path.name == _LOST_AND_FOUND and path.is_dir()
        if not (is_of_first_run or is_own_lock or is_of_file_system or path.name == _RUN_STATS):
            return path.name
    return None
