"""Updates of a table that a catalog applies: columns, properties, snapshots, tags. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    update_table_metadata,
)

from pipeline.publish.iceberg_schema import to_iceberg_schema

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from schemas.tables import Table

_MAIN: Final = "main"
SYNC_TAG: Final = "sync-"
"""Beginning of the tag of a snapshot of the lake."""


@dataclass(frozen=True, slots=True)
class PreparedTable:
    """A table's metadata with the declared columns and properties, and the updates that lead there."""

    metadata: TableMetadata
    updates: tuple[TableUpdate, ...]


def prepare_schema(table: Table, metadata: TableMetadata, properties: Mapping[str, str]) -> PreparedTable:
    """Give a table the declared columns. A catalog that creates a table gives its columns other ids."""
    updates: list[TableUpdate] = []
    schema_id = max(item.schema_id for item in metadata.schemas) + 1
    schema = to_iceberg_schema(table, schema_id=schema_id)
    if metadata.schema().fields != schema.fields:
        updates += [AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate(schema_id=-1)]
    if different := {name: text for name, text in properties.items() if metadata.properties.get(name) != text}:
        updates.append(SetPropertiesUpdate(updates=different))
    return PreparedTable(update_table_metadata(metadata, tuple(updates)) if updates else metadata, tuple(updates))


def require_unchanged(metadata: TableMetadata) -> tuple[TableRequirement, ...]:
    """Return what a catalog checks before it updates a table: that it is the one that was read."""
    return (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=_MAIN, snapshot_id=metadata.current_snapshot_id),
    )


def add_snapshot(snapshot: Snapshot) -> list[TableUpdate]:
    """Return the updates that make a new snapshot the current one."""
    branch = SetSnapshotRefUpdate(ref_name=_MAIN, type=SnapshotRefType.BRANCH, snapshot_id=snapshot.snapshot_id)
    return [AddSnapshotUpdate(snapshot=snapshot), branch]


def tag_snapshot(metadata: TableMetadata, snapshot_id: int, tag: str) -> list[TableUpdate]:
    """Return the update that makes a tag name a snapshot; none if it does."""
    ref = metadata.refs.get(tag)
    if ref is not None and ref.snapshot_id == snapshot_id:
        return []
    return [SetSnapshotRefUpdate(ref_name=tag, type=SnapshotRefType.TAG, snapshot_id=snapshot_id)]


def expire_tags(metadata: TableMetadata, current_id: int, tag: str, kept_tags: Collection[str]) -> list[TableUpdate]:
    """Return the updates that remove the tags of other syncs, and the snapshots that no reference names.

    `tag` and the branch main name the snapshot `current_id` from now on. Tags and branches of others stay.
    """
    expired = [name for name in metadata.refs if name.startswith(SYNC_TAG) and name not in {*kept_tags, tag}]
    moved = {*expired, tag, _MAIN}
    named = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in moved} | {current_id}
    dropped = [snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.snapshot_id not in named]
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=name) for name in expired]
    return [*updates, RemoveSnapshotsUpdate(snapshot_ids=dropped)] if dropped else updates
