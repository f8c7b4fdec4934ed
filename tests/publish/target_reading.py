"""Publishing as the command does, and reading what is on the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.lake.lake import Lake
from pipeline.lake.storage.atomic_files import sha256_file
from pipeline.publish.mirror import MirrorOptions, MirrorResult, mirror_lake
from pipeline.publish.target import LatestRecord, read_latest
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.publish.object_store import ObjectStore

BACKUP: Final = MirrorOptions(backup=True)
"""Publish the parts, too: many objects."""
_NAMES: Final = (
    "SELECT schema_name || '.' || name FROM (SELECT schema_name, table_name AS name, database_name FROM duckdb_tables()"
    " UNION ALL SELECT schema_name, view_name, database_name FROM duckdb_views() WHERE NOT internal)"
    " WHERE database_name = 'here' AND schema_name IN ('main', 'meta') AND name <> 'freshness'"
)


def published(lake: Path, store: ObjectStore, options: MirrorOptions = BACKUP) -> MirrorResult:
    """Publish as the command does."""
    with Lake(lake, doing="publish") as held:
        return mirror_lake(held, store, options, at=now_us())


def latest(store: ObjectStore) -> LatestRecord:
    """What the target shows, by its record."""
    record, _ = read_latest(store, lake_id=None)
    assert record is not None
    return record


def attached(store: ObjectStore, folder: Path) -> duckdb.DuckDBPyConnection:
    """The catalog of the target as `remote`, by way of a copy in a folder."""
    folder.mkdir(exist_ok=True)
    copy = folder / "catalog.duckdb"
    copy.unlink(missing_ok=True)
    store.download(copy.name, copy)
    db = duckdb.connect()
    db.execute(f"ATTACH '{copy}' AS remote (READ_ONLY)")
    return db


def differing(lake: Path, store: ObjectStore, folder: Path) -> list[str]:
    """Tables and views whose rows differ between the catalog of the target and that of the lake."""
    found = []
    with attached(store, folder) as db:
        assert sha256_file(folder / "catalog.duckdb") == latest(store).catalog.sha256
        db.execute(f"ATTACH '{lake}/catalog.duckdb' AS here (READ_ONLY)")
        for (name,) in sorted(db.execute(_NAMES).fetchall()):
            for left, right in (("remote", "here"), ("here", "remote")):
                if db.execute(f"FROM {left}.{name} EXCEPT ALL FROM {right}.{name}").fetchone():
                    found.append(f"{left}.{name} has rows that {right} has not")
    return found
