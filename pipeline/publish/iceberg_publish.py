"""Publish of one kept snapshot as Iceberg tables over the lake's own parts.

Nothing is remembered: the state of the tables is read back from their catalog, and the difference is committed. So a
killed publish is repeated, and a rollback is one more publish.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa

from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.duckdb_files import open_read_only
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.parts import encode_parquet
from pipeline.lake.snapshots import missing_parts, read_snapshot, require_snapshot
from pipeline.publish.iceberg_catalogs import TableCommit
from pipeline.publish.iceberg_changes import find_superseded_positions, plan_changes
from pipeline.publish.iceberg_format import FileChanges, read_data_rows, read_files, write_snapshot
from pipeline.publish.iceberg_owner import LocationOwner, claim_locations
from pipeline.publish.iceberg_retention import sweep_tables
from pipeline.publish.iceberg_schema import LAKE_PROPERTY, table_properties, to_iceberg_schema
from pipeline.publish.iceberg_updates import TAG_PREFIX, add_snapshot, expire_tags, prepare_schema, tag_snapshot
from pipeline.publish.target_layout import TABLES_PREFIX, to_target_path
from pipeline.publish.uploads import PendingUpload, upload_all
from schemas.tables import COMMIT_SEQ_COLUMN, SYNCS, TABLES
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.models import Part
    from pipeline.lake.snapshots import SnapshotContents
    from pipeline.publish.iceberg_catalogs import IcebergCatalog, TableState
    from pipeline.publish.iceberg_format import TableFiles
    from pipeline.publish.iceberg_updates import PreparedTable
    from schemas.tables import Table

_TABLES_SIDE_BY_SIDE: Final = 8
_SWEEP_INTERVAL: Final = 8
_PURGE_SWEEP_SECONDS: Final = 7 * 24 * 3600
_CLOCK_SKEW_SECONDS: Final = 600  # between the store and this machine


@dataclass(frozen=True, slots=True)
class IcebergResult:
    """Result of a publish to Iceberg tables; the object that `--json` prints.

    `changed` are tables with a new snapshot; others only got the tag. `bytes` are those of metadata and delete files,
    beside the parts.
    """

    snapshot: int
    tag: str
    tables: int
    changed: int
    parts_added: int
    parts_removed: int
    parts_uploaded: int
    delete_files: int
    rows_deleted: int
    bytes: int
    deleted: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """What a sweep may delete: files from `before` or, after a purge, from before `purged_at`; seconds since 1970.

    `part_names` are the file names of the parts that the lake still has.
    """

    before: float
    purged_at: float | None
    part_names: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Sync:
    """The sync that is published, and the tags that are kept beside its own."""

    contents: SnapshotContents
    row: dict[str, Any]
    kept_tags: frozenset[str]

    @property
    def tag(self) -> str:
        return f"{TAG_PREFIX}{self.contents.snapshot}"

    @property
    def properties(self) -> dict[str, str]:
        """Properties of the sync's Iceberg snapshots."""
        watermark = "" if self.contents.watermark is None else str(self.contents.watermark)
        return {
            "scanlake.snapshot": str(self.contents.snapshot),
            "scanlake.watermark": watermark,
            "scanlake.run": self.contents.run_id,
        }


@dataclass(frozen=True, slots=True)
class _StagedTable:
    """A table with its commit, None if the table is as it has to be, and what changes."""

    commit: TableCommit | None
    changes: FileChanges


def publish_iceberg(
    catalog: IcebergCatalog,
    layout: LakeLayout,
    number: int,
    *,
    lake_id: str,
    at: int,
    retention: RetentionOptions | None = None,
    hashes: Mapping[str, str] | None = None,
) -> IcebergResult:
    """Make the Iceberg tables show the kept snapshot `number`, at `at` (microseconds).

    `hashes` are those of the lake's parts by name, SHA-256 in hex. Raises `SettingsError` if the snapshot is not kept
    or the tables belong to another lake, `LakeCorruptedError` for a snapshot from before a repair of its parts,
    `PublishConflictError` if another publisher was faster, and `PublishError`.
    """
    started = time.monotonic()
    sync = _read_sync(layout, number, at, hashes or {})
    tables = {table.name: table for table in (*TABLES, SYNCS)}
    states = catalog.load(tables)
    for state in states.values():
        _check_owner(state, lake_id)
    claim_locations(catalog.io, _list_roots(catalog, states, tables), LocationOwner(lake_id, catalog.id))
    properties = {name: table_properties(table, to_iceberg_schema(table), lake_id) for name, table in tables.items()}
    for name, table in tables.items():
        if name not in states:
            states[name] = catalog.create(name, to_iceberg_schema(table), properties[name])
    stage = _Stage(catalog, layout, sync)
    with ThreadPoolExecutor(_TABLES_SIDE_BY_SIDE) as pool:
        pending = [
            pool.submit(stage.stage_parts, table, states[table.name], properties[table.name]) for table in TABLES
        ]
        staged = [future.result() for future in pending]
    staged.append(stage.stage_syncs(states[SYNCS.name], properties[SYNCS.name]))
    if commits := [table.commit for table in staged if table.commit is not None]:
        catalog.commit(commits, {"lake_id": lake_id, "snapshot": number, "tag": sync.tag})
    deleted = 0
    if retention is not None and (before := _find_sweep_time(retention, number, at)) is not None:
        current = catalog.load(tables).values()
        deleted = sweep_tables(catalog.io, current, before=before, part_names=retention.part_names)
    return IcebergResult(
        snapshot=number,
        tag=sync.tag,
        tables=len(staged),
        changed=sum(not table.changes.is_empty for table in staged[:-1]),
        parts_added=sum(len(table.changes.data) for table in staged[:-1]),
        parts_removed=stage.parts_removed,
        parts_uploaded=stage.parts_uploaded,
        delete_files=sum(len(table.changes.deletes) for table in staged),
        rows_deleted=sum(file.record_count for table in staged for file in table.changes.deletes),
        bytes=catalog.io.bytes_written,
        deleted=deleted,
        seconds=round(time.monotonic() - started, 3),
    )


def _find_sweep_time(retention: RetentionOptions, number: int, at: int) -> float | None:
    """Return the time before which unneeded files go; None if no sweep is due.

    A sweep reads the manifests of every kept snapshot, so it is due with every eighth snapshot. After a purge every
    publish sweeps for some days, so that a killed one leaves nothing.
    """
    purged_at = retention.purged_at
    if purged_at is not None and at / SECOND < purged_at + _PURGE_SWEEP_SECONDS:
        return max(retention.before, purged_at + _CLOCK_SKEW_SECONDS)
    return retention.before if number % _SWEEP_INTERVAL == 0 else None


def _check_owner(state: TableState, lake_id: str) -> None:
    owner = state.metadata.properties.get(LAKE_PROPERTY)
    if owner != lake_id:
        whose = "does not belong to scanlake" if owner is None else f"belongs to another lake ({owner[:8]})"
        raise SettingsError(f"The Iceberg table {state.name} {whose}.", hint="Use another iceberg_namespace.")


def _list_roots(catalog: IcebergCatalog, states: Mapping[str, TableState], names: Iterable[str]) -> set[str]:
    """Return the locations below which the tables have, or will have, the folders of the lake's target."""
    roots = {catalog.root} if catalog.root and not states.keys() >= set(names) else set()
    for name, state in states.items():
        location = state.metadata.location.rstrip("/")
        if location.endswith(folder := f"/{TABLES_PREFIX}/{name}"):
            roots.add(location.removesuffix(folder))
    return roots


def _read_sync(layout: LakeLayout, number: int, at: int, hashes: Mapping[str, str]) -> _Sync:
    path = require_snapshot(layout, number)
    contents = read_snapshot(path)
    for part in contents.parts:
        # The rows of a part that was written again can have other positions than in the published file.
        if hashes.get(part.name, part.sha256) != part.sha256:
            raise LakeCorruptedError(f"Snapshot {number}: {part.name} was repaired later.", hint="Publish a newer one.")
    if missing := missing_parts(layout, contents):
        raise LakeCorruptedError(f"Snapshot {number}: {missing[0]} is missing or has another size.")
    with open_read_only(path) as db:
        snapshot_at, files = db.execute("SELECT epoch_us(published_at), files FROM meta._freshness").fetchall()[0]
    kept_tags = frozenset(f"{TAG_PREFIX}{snapshot}" for snapshot, _ in list_snapshots(layout))
    row = {
        "snapshot": number,
        "tag": f"{TAG_PREFIX}{number}",
        "complete": contents.complete,
        "watermark": contents.watermark,
        "files": files,
        "snapshot_at": snapshot_at,
        "published_at": at,
        "run_id": contents.run_id,
        COMMIT_SEQ_COLUMN: max((part.last_commit_seq for part in contents.parts), default=0),
    }
    return _Sync(contents, row, kept_tags)


class _Stage:
    """Preparation of the tables of one sync: files are written, and nothing names them before the commit."""

    def __init__(self, catalog: IcebergCatalog, layout: LakeLayout, sync: _Sync) -> None:
        self._io, self._layout, self._sync = catalog.io, layout, sync
        self._uploaded: list[int] = []  # threads append
        self._removed: list[str] = []

    @property
    def parts_uploaded(self) -> int:
        """Parts that the target did not have."""
        return sum(self._uploaded)

    @property
    def parts_removed(self) -> int:
        """Parts that the tables have lost."""
        return len(self._removed)

    def stage_parts(self, table: Table, state: TableState, properties: Mapping[str, str]) -> _StagedTable:
        """Prepare a table of the lake."""
        prepared = prepare_schema(table, state.metadata, properties)
        files = read_files(state.metadata, self._io)
        root = f"{state.metadata.location.rstrip('/')}/data"
        own = [part for part in self._sync.contents.parts if part.table_name == table.name]
        parts = {_part_location(root, part): (part, self._layout.part_path(part.name)) for part in own}
        self._upload(root, [part for location, (part, _) in parts.items() if location not in files.data])
        positions = find_superseded_positions(parts, self._sync.contents.superseded) if table.is_per_file else {}
        schema = prepared.metadata.schema()
        local = {location: path for location, (_, path) in parts.items()}
        changes = plan_changes(self._io, files, schema, local, positions)
        self._removed += files.data.keys() - parts.keys()
        return self._finish(state, prepared, files, changes)

    def stage_syncs(self, state: TableState, properties: Mapping[str, str]) -> _StagedTable:
        """Prepare the table of syncs: one file with a row for every kept sync."""
        prepared = prepare_schema(SYNCS, state.metadata, properties)
        files = read_files(state.metadata, self._io)
        former = [row for location in files.data for row in read_data_rows(self._io, location)]
        others = [row for row in former if row["tag"] in self._sync.kept_tags and row["tag"] != self._sync.tag]
        rows = sorted([*others, self._sync.row], key=lambda row: row["snapshot"])
        if self._is_same(former, rows):
            return self._finish(state, prepared, files, FileChanges())
        content = bytes(encode_parquet(pa.Table.from_pylist(rows, schema=SYNCS.arrow)))
        location = f"{state.metadata.location.rstrip('/')}/data/{uuid4().hex}.parquet"
        self._io.create(location, content)
        changes = plan_changes(self._io, files, prepared.metadata.schema(), {location: content}, {})
        return self._finish(state, prepared, files, changes)

    def _is_same(self, former: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> bool:
        """Return whether the table has these rows, and the published sync is its latest; its time does not count."""
        latest = max(former, key=lambda row: row["published_at"], default=None)
        if latest is None or latest["tag"] != self._sync.tag:
            return False
        same_time = {**self._sync.row, "published_at": latest["published_at"]}
        expected = [same_time if row["tag"] == self._sync.tag else row for row in rows]
        return sorted(former, key=lambda row: row["snapshot"]) == expected

    def _finish(
        self, state: TableState, prepared: PreparedTable, files: TableFiles, changes: FileChanges
    ) -> _StagedTable:
        """Return the table with the snapshot, the tag and the expired tags of the sync."""
        metadata, updates = prepared.metadata, list(prepared.updates)
        current = metadata.current_snapshot()
        if current is None or not changes.is_empty:
            current = write_snapshot(self._io, metadata, files, changes, self._sync.properties)
            updates += add_snapshot(current)
        updates += tag_snapshot(metadata, current.snapshot_id, self._sync.tag)
        updates += expire_tags(metadata, current.snapshot_id, self._sync.tag, self._sync.kept_tags)
        return _StagedTable(TableCommit(state, tuple(updates)) if updates else None, changes)

    def _upload(self, root: str, parts: Iterable[Part]) -> None:
        """Create the table's parts that the target lacks, below its folder `root`."""
        uploads = []
        for part in parts:
            store, path = self._io.find_object(_part_location(root, part))
            uploads.append(PendingUpload(path, self._layout.part_path(part.name), part.bytes, part.sha256))
        if uploads:
            self._uploaded.append(upload_all(store, uploads))


def _part_location(root: str, part: Part) -> str:
    return f"{root}/{PurePosixPath(to_target_path(part.name, part.sha256)).name}"
