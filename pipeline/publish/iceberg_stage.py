"""Preparation of the tables of one sync: files are written, and nothing names them before the commit."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    update_table_metadata,
)

from pipeline.errors import LakeCorruptedError
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.snapshots import missing_parts, read_snapshot, require_snapshot
from pipeline.publish.iceberg_catalogs import MAIN, TableCommit
from pipeline.publish.iceberg_changes import find_superseded_positions, plan_changes
from pipeline.publish.iceberg_format import read_files
from pipeline.publish.iceberg_schema import SYNC_PROPERTY, table_properties, to_iceberg_schema
from pipeline.publish.iceberg_snapshots import write_snapshot
from pipeline.publish.target_layout import to_target_path
from pipeline.publish.uploads import PendingUpload, upload_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.models import Part
    from pipeline.lake.snapshots import SnapshotContents
    from pipeline.publish.iceberg_catalogs import IcebergCatalog, TableState
    from pipeline.publish.iceberg_format import FileChanges
    from schemas.tables import Table

_TAG: Final = "sync-"


class Sync(Struct, frozen=True):
    """The sync that is published, and the tags that are kept, its own included."""

    lake_id: str
    contents: SnapshotContents
    kept_tags: frozenset[str]

    @property
    def tag(self) -> str:
        """Its tag in every table."""
        return f"{_TAG}{self.contents.snapshot}"

    @property
    def properties(self) -> dict[str, str]:
        """Properties of the sync's Iceberg snapshots."""
        watermark = "" if self.contents.watermark is None else str(self.contents.watermark)
        return {
            "scanlake.snapshot": str(self.contents.snapshot),
            "scanlake.watermark": watermark,
            "scanlake.run": self.contents.run_id,
        }


class StagedTable(Struct, frozen=True):
    """A table with its commit, None if the table is as it has to be, and what changes; `uploaded` counts new parts."""

    commit: TableCommit | None
    changes: FileChanges
    uploaded: int
    removed: int


def read_sync(layout: LakeLayout, number: int, lake_id: str) -> Sync:
    """Return the sync of a kept snapshot. Raises `SettingsError` if it is not kept, `LakeCorruptedError`."""
    contents = read_snapshot(require_snapshot(layout, number))
    if missing := missing_parts(layout, contents):
        raise LakeCorruptedError(f"Snapshot {number}: {missing[0]} is missing or has another size.")
    return Sync(lake_id, contents, frozenset(f"{_TAG}{snapshot}" for snapshot, _ in list_snapshots(layout)))


def stage_table(
    catalog: IcebergCatalog, layout: LakeLayout, sync: Sync, table: Table, state: TableState
) -> StagedTable:
    """Prepare a table: upload its new parts, write its delete files and its snapshot."""
    updates = _update_schema(table, state.metadata, sync)
    metadata = update_table_metadata(state.metadata, tuple(updates)) if updates else state.metadata
    files = read_files(state.metadata, catalog.io)
    root = f"{metadata.location.rstrip('/')}/data"
    own = [part for part in sync.contents.parts if part.table_name == table.name]
    parts = {_part_location(root, part): (part, layout.part_path(part.name)) for part in own}
    uploaded = _upload(
        catalog, layout, root, [part for location, (part, _) in parts.items() if location not in files.data]
    )
    positions = find_superseded_positions(parts, sync.contents.superseded) if table.is_per_file else {}
    local = {location: path for location, (_, path) in parts.items()}
    changes = plan_changes(catalog.io, files, metadata.schema(), local, positions)
    current = metadata.current_snapshot()
    if current is None or not changes.is_empty:
        current = write_snapshot(catalog.io, metadata, files, changes, sync.properties)
        updates += [AddSnapshotUpdate(snapshot=current), _refer(MAIN, SnapshotRefType.BRANCH, current.snapshot_id)]
    updates += _update_tags(metadata, current.snapshot_id, sync)
    commit = TableCommit(state, tuple(updates)) if updates else None
    return StagedTable(commit, changes, uploaded, len(files.data.keys() - parts.keys()))


def _update_schema(table: Table, metadata: TableMetadata, sync: Sync) -> list[TableUpdate]:
    """Return the updates to the declared columns and properties. A catalog that creates tables changes the ids."""
    updates: list[TableUpdate] = []
    schema = to_iceberg_schema(table, schema_id=max(item.schema_id for item in metadata.schemas) + 1)
    if metadata.schema().fields != schema.fields:
        updates += [AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate(schema_id=-1)]
    properties = table_properties(table, sync.lake_id) | {SYNC_PROPERTY: sync.tag}
    if different := {name: text for name, text in properties.items() if metadata.properties.get(name) != text}:
        updates.append(SetPropertiesUpdate(updates=different))
    return updates


def _update_tags(metadata: TableMetadata, current_id: int, sync: Sync) -> list[TableUpdate]:
    """Return the updates that tag a snapshot, and remove the tags of other syncs and the snapshots without a name.

    Tags and branches of others stay.
    """
    former = metadata.refs.get(sync.tag)
    updates: list[TableUpdate] = []
    if former is None or former.snapshot_id != current_id:
        updates.append(_refer(sync.tag, SnapshotRefType.TAG, current_id))
    expired = [name for name in metadata.refs if name.startswith(_TAG) and name not in sync.kept_tags]
    updates += [RemoveSnapshotRefUpdate(ref_name=name) for name in expired]
    moved = {*expired, sync.tag, MAIN}
    named = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in moved} | {current_id}
    dropped = [snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.snapshot_id not in named]
    return [*updates, RemoveSnapshotsUpdate(snapshot_ids=dropped)] if dropped else updates


def _refer(name: str, kind: SnapshotRefType, snapshot_id: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(ref_name=name, type=kind, snapshot_id=snapshot_id)


def _upload(catalog: IcebergCatalog, layout: LakeLayout, root: str, parts: Iterable[Part]) -> int:
    """Create parts of a table below its folder `root`. Return how many the target did not have."""
    uploads = []
    for part in parts:
        store, path = catalog.io.find_object(_part_location(root, part))
        uploads.append(PendingUpload(path, layout.part_path(part.name), part.bytes, part.sha256))
    return upload_all(store, uploads) if uploads else 0


def _part_location(root: str, part: Part) -> str:
    return f"{root}/{PurePosixPath(to_target_path(part.name, part.sha256)).name}"
