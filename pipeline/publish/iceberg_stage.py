"""Preparation of the tables of one sync: files are written, and nothing names them before the commit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from pipeline.errors import LakeCorruptedError
from pipeline.lake.duckdb_files import open_read_only
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.parts import encode_parquet
from pipeline.lake.snapshots import missing_parts, read_snapshot, require_snapshot
from pipeline.publish.iceberg_catalogs import TableCommit
from pipeline.publish.iceberg_changes import find_superseded_positions, plan_changes
from pipeline.publish.iceberg_format import FileChanges, read_data_rows, read_files
from pipeline.publish.iceberg_schema import table_properties, to_iceberg_schema
from pipeline.publish.iceberg_snapshots import write_snapshot
from pipeline.publish.iceberg_updates import SYNC_TAG, add_snapshot, expire_tags, prepare_schema, tag_snapshot
from pipeline.publish.target_layout import to_target_path
from pipeline.publish.uploads import PendingUpload, upload_all
from schemas.tables import COMMIT_SEQ_COLUMN, SYNCS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.models import Part
    from pipeline.lake.snapshots import SnapshotContents
    from pipeline.publish.iceberg_catalogs import IcebergCatalog, TableState
    from pipeline.publish.iceberg_format import TableFiles
    from pipeline.publish.iceberg_updates import PreparedTable
    from schemas.tables import Table


@dataclass(frozen=True, slots=True)
class Sync:
    """The sync that is published, and the tags that are kept beside its own."""

    lake_id: str
    contents: SnapshotContents
    row: dict[str, Any]
    kept_tags: frozenset[str]

    @property
    def tag(self) -> str:
        """Its tag in every table."""
        return format_tag(self.contents.snapshot)

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
class StagedTable:
    """A table with its commit, None if the table is as it has to be, and what changes."""

    commit: TableCommit | None
    changes: FileChanges


def format_tag(number: int) -> str:
    """Return the tag of a snapshot of the lake."""
    return f"{SYNC_TAG}{number}"


def read_sync(layout: LakeLayout, number: int, at: int, hashes: Mapping[str, str], lake_id: str) -> Sync:
    """Return the sync of a kept snapshot. Raises `SettingsError` if it is not kept, `LakeCorruptedError`."""
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
    kept_tags = frozenset(format_tag(snapshot) for snapshot, _ in list_snapshots(layout))
    row = {
        "snapshot": number,
        "tag": format_tag(number),
        "complete": contents.complete,
        "watermark": contents.watermark,
        "files": files,
        "snapshot_at": snapshot_at,
        "published_at": at,
        "run_id": contents.run_id,
        COMMIT_SEQ_COLUMN: max((part.last_commit_seq for part in contents.parts), default=0),
    }
    return Sync(lake_id, contents, row, kept_tags)


class Stage:
    """Preparation of the tables of one sync: files are written, and nothing names them before the commit."""

    def __init__(self, catalog: IcebergCatalog, layout: LakeLayout, sync: Sync) -> None:
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

    def stage_parts(self, table: Table, state: TableState) -> StagedTable:
        """Prepare a table of the lake."""
        prepared = self._prepare(table, state)
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

    def stage_syncs(self, state: TableState) -> StagedTable:
        """Prepare the table of syncs: one file with a row for every kept sync."""
        prepared = self._prepare(SYNCS, state)
        files = read_files(state.metadata, self._io)
        former = [row for location in files.data for row in read_data_rows(self._io, location)]
        others = [row for row in former if row["tag"] in self._sync.kept_tags and row["tag"] != self._sync.tag]
        rows = sorted([*others, self._sync.row], key=lambda row: row["snapshot"])
        if self._is_same(former, rows):
            return self._finish(state, prepared, files, FileChanges())
        content = bytes(encode_parquet(pa.Table.from_pylist(rows, schema=SYNCS.arrow)))
        location = f"{state.metadata.location.rstrip('/')}/data/{uuid4().hex}.parquet"
        self._io.create(location, content)
        schema = prepared.metadata.schema()
        changes = plan_changes(self._io, files, schema, {location: content}, {})
        return self._finish(state, prepared, files, changes)

    def _prepare(self, table: Table, state: TableState) -> PreparedTable:
        properties = table_properties(table, to_iceberg_schema(table), self._sync.lake_id)
        return prepare_schema(table, state.metadata, properties)

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
    ) -> StagedTable:
        """Return the table with the snapshot, the tag and the expired tags of the sync."""
        metadata, updates = prepared.metadata, list(prepared.updates)
        current = metadata.current_snapshot()
        if current is None or not changes.is_empty:
            current = write_snapshot(self._io, metadata, files, changes, self._sync.properties)
            updates += add_snapshot(current)
        updates += tag_snapshot(metadata, current.snapshot_id, self._sync.tag)
        updates += expire_tags(metadata, current.snapshot_id, self._sync.tag, self._sync.kept_tags)
        return StagedTable(TableCommit(state, tuple(updates)) if updates else None, changes)

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
