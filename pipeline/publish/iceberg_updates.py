"""Updates of a table that a catalog applies: columns, properties, snapshots, tags. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    update_table_metadata,
)

from pipeline.publish.iceberg_schema import NAME_MAPPING_PROPERTY, to_iceberg_schema
from pipeline.publish.iceberg_sources import find_partition_spec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from pipeline.publish.iceberg_sources import PublishScope
    from schemas.tables import Table

_MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class PreparedTable:
    """A table's metadata with the declared columns and properties, and the updates that lead there."""

    metadata: TableMetadata
    updates: tuple[TableUpdate, ...]


def prepare_schema(
    table: Table, metadata: TableMetadata, properties: Mapping[str, str], *, is_shared: bool = False
) -> PreparedTable:
    """Give a table the declared columns. A catalog that creates a table gives its columns other ids.

    A table that lakes share keeps columns and properties that another lake's version of scanlake has declared.
    """
    updates: list[TableUpdate] = []
    schema_id = max(item.schema_id for item in metadata.schemas) + 1
    schema = to_iceberg_schema(table, schema_id=schema_id, is_shared=is_shared)
    current = metadata.schema()
    if is_shared and metadata.current_snapshot() is not None:
        others = [field for field in current.fields if field.field_id not in schema.field_ids]
        schema = Schema(*schema.fields, *others, schema_id=schema_id)
        is_same = _describe_fields(schema) == _describe_fields(current)
        properties = {name: text for name, text in properties.items() if name not in metadata.properties}
        if not is_same:
            properties[NAME_MAPPING_PROPERTY] = schema.name_mapping.model_dump_json()
    else:
        is_same = current.fields == schema.fields
    if not is_same:
        updates += [AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate(schema_id=-1)]
    if is_shared and metadata.spec().is_unpartitioned():
        spec = PartitionSpec(*find_partition_spec(schema).fields, spec_id=1)
        updates += [AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)]
    if different := {name: text for name, text in properties.items() if metadata.properties.get(name) != text}:
        updates.append(SetPropertiesUpdate(updates=different))
    return PreparedTable(update_table_metadata(metadata, tuple(updates)) if updates else metadata, tuple(updates))


def _describe_fields(schema: Schema) -> set[tuple[int, str, str, bool]]:
    return {(field.field_id, field.name, str(field.field_type), field.required) for field in schema.fields}


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


def expire_tags(
    metadata: TableMetadata,
    current_id: int,
    tag: str,
    kept_tags: Collection[str],
    *,
    scope: PublishScope,
    moved_tags: Collection[str] = (),
    keeps_parent: bool = False,
) -> list[TableUpdate]:
    """Return the updates that remove the tags of other syncs of the lake, and the snapshots that no reference names.

    `tag` and the branch main name the snapshot `current_id` from now on, and `moved_tags` new ones. Tags and branches
    of others stay. `keeps_parent`: the former main stays, because another lake can be giving it a tag.
    """
    expired = [name for name in metadata.refs if scope.is_own_tag(name) and name not in {*kept_tags, tag}]
    moved = {*expired, *moved_tags, tag} | (set() if keeps_parent else {_MAIN})
    named = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in moved} | {current_id}
    dropped = [snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.snapshot_id not in named]
    updates: list[TableUpdate] = [RemoveSnapshotRefUpdate(ref_name=name) for name in expired]
    return [*updates, RemoveSnapshotsUpdate(snapshot_ids=dropped)] if dropped else updates
