"""Checks of the lake's folder that open its catalog: `ledger.folder` imports no database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.catalog.duckdb import is_not_a_database, read_database
from pipeline.lake.ledger.folder import FolderKind, classify_folder, find_enclosing_lake, find_other_entry
from pipeline.lake.ledger.format import REBUILD_HINT, LedgerIdentity, describe_ledger, identify_ledger
from pipeline.lake.storage.layout import LakeLayout
from pipeline.lake.storage.mounts import require_mounted

if TYPE_CHECKING:
    from pathlib import Path

FRESHNESS_VIEW: Final = "meta.freshness"
"""A view that every catalog of scanlake has."""


def inspect_folder(layout: LakeLayout, identity: LedgerIdentity | None = None) -> FolderKind:
    """Return what the folder is; `identity` is that of its ledger, if known. A catalog alone is a lake too."""
    kind = classify_folder(layout, identity)
    return FolderKind.LAKE_WITHOUT_LEDGER if kind is FolderKind.OTHER and is_own_catalog(layout.catalog) else kind


def is_own_catalog(path: Path) -> bool:
    """Return whether a file is a catalog of scanlake, or one that cannot be read now. Another database is not."""
    if not path.is_file():
        return False
    try:
        return not is_other_database(path)
    except duckdb.Error as error:
        return not is_not_a_database(error)


def is_other_database(path: Path) -> bool:
    """Return whether a file is a database of another program. Raises `duckdb.Error` if it cannot be read."""
    with read_database(path) as db:
        try:
            db.execute(f"SELECT 1 FROM {FRESHNESS_VIEW} LIMIT 0")
        except duckdb.CatalogException:
            return True
    return False


def foreign_catalog_error(path: Path) -> SettingsError:
    """Return the error for a folder whose catalog is of another program."""
    return SettingsError(f"{path.parent} is not a lake: its {path.name} is not scanlake's.", hint="Correct --lake.")


def require_lake_or_empty(layout: LakeLayout, identity: LedgerIdentity | None = None) -> FolderKind:
    """Return what the folder is.

    Raises `SettingsError` for other files, and for a new folder inside a lake; `StorageError` for an unmounted lake.
    """
    kind = inspect_folder(layout, identity)
    if kind is FolderKind.OTHER and layout.catalog.is_file() and not layout.ledger.exists():
        raise foreign_catalog_error(layout.catalog)
    if kind is FolderKind.OTHER:
        raise SettingsError(
            f"{layout.root} is not a lake and not empty: it has {find_other_entry(layout) or layout.ledger.name}.",
            hint="Use a new or empty folder for --lake.",
        )
    if kind is FolderKind.EMPTY:
        require_mounted(layout.root)
    if kind is FolderKind.EMPTY and (enclosing := find_enclosing_lake(layout.root.parent)) is not None:
        raise SettingsError(
            f"{layout.root} is inside the lake {enclosing}.", hint="Use a folder outside the lake for --lake."
        )
    return kind


def require_lake(lake: Path) -> LakeLayout:
    """Return a lake's paths. Raises `SettingsError` if the folder is no lake, `LakeCorruptedError` without a ledger."""
    layout = LakeLayout(lake.absolute())
    identity = identify_ledger(layout.ledger)
    kind = require_lake_or_empty(layout, identity)
    if kind is FolderKind.EMPTY:
        raise SettingsError(f"No lake at {layout.root}.", hint="Run `scanlake sync` first, or correct --lake.")
    if kind is FolderKind.LAKE_WITHOUT_LEDGER:
        raise LakeCorruptedError(f"{layout.ledger}: {describe_ledger(layout.ledger, identity)}.", hint=REBUILD_HINT)
    return layout
