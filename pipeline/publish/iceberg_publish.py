"""Publish of one kept snapshot as Iceberg tables over the lake's own parts.

Nothing is remembered: the state of the tables is read back from their catalog, and the difference is committed. So a
killed publish is repeated, and a rollback is one more publish.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import groupby
from operator import itemgetter
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

from pipeline.errors import PublishError, SettingsError
from pipeline.lake.catalog.snapshots import open_snapshot, read_snapshot, require_snapshot
from pipeline.lake.catalog.sql import sql_literal
from pipeline.lake.ledger.readonly import open_ledger_readonly
from pipeline.lake.storage.layout import list_snapshots
from pipeline.lake.storage.parts import RAW_TABLE, check_parts_exist
from pipeline.publish.iceberg_catalogs import MAIN, LocationOwner, TableCommit, claim_locations
from pipeline.publish.iceberg_format import (
    FORMAT_VERSION,
    LAKE_PROPERTY,
    SCHEMA_PROPERTY,
    SYNC_PROPERTY,
    FileChanges,
    describe_data_file,
    digest_positions,
    list_referenced_files,
    read_files,
    read_positions,
    table_properties,
    to_iceberg_schema,
    write_deletes,
    write_snapshot,
)
from pipeline.publish.object_store import PendingUpload, run_side_by_side, upload_all
from pipeline.publish.outcome import IcebergResult
from pipeline.publish.target import (
    NOTHING_PUBLISHED,
    REMAKE_HINT,
    TABLES_PREFIX,
    data_prefix,
    delete_own_objects,
    has_named_hash,
    is_table_file,
    require_own_snapshot,
    to_target_path,
)
from schemas.tables import BY_NAME, COMMIT_SEQ_COLUMN, FILES, SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableUpdate

    from pipeline.lake.ledger.queries import SnapshotRecord
    from pipeline.lake.storage.layout import LakeLayout, Part
    from pipeline.publish.iceberg_catalogs import IcebergCatalog, TableState
    from pipeline.publish.iceberg_format import DeleteFile, StoreFileIO, TableFiles
    from pipeline.publish.object_store import ObjectStore, StoredObject
    from pipeline.publish.target import SweepRule
    from schemas.tables import Table

_TABLES_SIDE_BY_SIDE: Final = 8
_SWEEP_INTERVAL: Final = 8
TAG: Final = "sync-"
_SNAPSHOT: Final = "scanlake.snapshot"
_RUN: Final = "scanlake.run"
_MAX_DELETE_FILES: Final = 8
"""Files of position deletes of one data file, from which on the next publish writes one instead."""
_MEMORY_LIMIT: Final = "250MB"


def publish_iceberg(
    catalog: IcebergCatalog,
    layout: LakeLayout,
    number: int,
    *,
    lake_id: str,
    rule: SweepRule | None = None,
    has_purged: bool = False,
) -> IcebergResult:
    """Make the Iceberg tables show the kept snapshot `number`, and delete by the rule what they do not need any more.

    A sweep reads the manifests of every kept snapshot, so it is due with every eighth snapshot, and if `has_purged`:
    the tables were not published since a purge. Raises `SettingsError` if the snapshot is not kept or the tables belong
    to another lake, `LakeCorruptedError` if its parts are damaged, `PublishConflictError` if another publisher was
    faster, and `PublishError`.
    """
    started = time.monotonic()
    path = require_snapshot(layout, number)
    with open_ledger_readonly(layout) as ledger:
        outputs = [part for part in ledger.parts() if part.table_name != RAW_TABLE]
    check_parts_exist(layout, outputs)
    kept_tags = frozenset(f"{TAG}{snapshot}" for snapshot, _ in list_snapshots(layout))
    sync = Sync(lake_id, read_snapshot(path), path, outputs, kept_tags)
    states = _load_tables(catalog, layout, lake_id)
    stage = partial(stage_table, catalog, layout, sync)
    staged = run_side_by_side(lambda table: stage(table, states[table.name]), TABLES, threads=_TABLES_SIDE_BY_SIDE)
    if commits := [table.commit for table in staged if table.commit is not None]:
        catalog.commit(commits)
    deleted = 0
    if rule is not None and (has_purged or number % _SWEEP_INTERVAL == 0):
        deleted = _sweep_tables(catalog.io, catalog.load(BY_NAME).values(), rule)
    return IcebergResult(
        snapshot=number,
        tag=sync.tag,
        tables=len(staged),
        changed=sum(not table.changes.is_empty for table in staged),
        parts_added=sum(len(table.changes.data) for table in staged),
        parts_removed=sum(table.removed for table in staged),
        delete_files=sum(len(table.changes.deletes) for table in staged),
        rows_deleted=sum(file.record_count for table in staged for file in table.changes.deletes),
        bytes=catalog.io.bytes_written,
        deleted=deleted,
        seconds=round(time.monotonic() - started, 3),
    )


def _load_tables(catalog: IcebergCatalog, layout: LakeLayout, lake_id: str) -> dict[str, TableState]:
    """Return all tables, and create the missing ones.

    Raises `SettingsError` if they belong to another lake, and `ForeignObjectError` if they show a sync that this lake
    has never had.
    """
    states = _load_own_form(catalog)
    for state in states.values():
        _check_owner(state, lake_id)
    # `files` is committed last: with its sync the others have come, too.
    snapshots = states[FILES.name].metadata.snapshots if FILES.name in states else ()
    own_states = [own for snapshot in snapshots if (own := read_own_state(snapshot))]
    with open_ledger_readonly(layout) as ledger:
        if own_states and own_states[-1][1]:
            require_own_snapshot(ledger, own_states[-1], f"The Iceberg table {FILES.name}")
        claim_locations(catalog.io, _list_roots(catalog, states), LocationOwner(lake_id, catalog.id), ledger)
    for name, table in BY_NAME.items():
        if name not in states:
            states[name] = catalog.create(name, to_iceberg_schema(table), table_properties(table, lake_id))
    return states


def load_all_tables(catalog: IcebergCatalog) -> dict[str, TableState]:
    """Return all tables. Raises `PublishError` if one is missing, or as `_load_own_form`."""
    states = _load_own_form(catalog)
    if not states:
        raise PublishError(NOTHING_PUBLISHED)
    if missing := sorted(BY_NAME.keys() - states.keys()):
        raise PublishError(f"The Iceberg table {missing[0]} does not exist.", hint="Run `scanlake publish --iceberg`.")
    return states


def _load_own_form(catalog: IcebergCatalog) -> dict[str, TableState]:
    """Return the tables that exist. Raises `PublishError` for a form that scanlake does not write.

    A table that was moved has files where no sweep and no purge looks.
    """
    states = catalog.load(BY_NAME)
    for name, state in states.items():
        folder = f"{state.metadata.location.rstrip('/')}/"
        own = [snapshot for snapshot in state.metadata.snapshots if read_own_state(snapshot)]
        is_moved = not all(snapshot.manifest_list.startswith(folder) for snapshot in own)
        if is_moved or state.metadata.format_version != FORMAT_VERSION:
            what = "location" if is_moved else "format version"
            raise PublishError(
                f"The Iceberg table {name} no longer has the {what} that scanlake gave it.", hint=REMAKE_HINT
            )
    return states


def read_own_state(snapshot: Snapshot | None) -> tuple[int, str] | None:
    """Return number and run of the sync that a table's snapshot shows; None if another program has made it."""
    summary = None if snapshot is None else snapshot.summary
    number = None if summary is None else summary[_SNAPSHOT]
    return None if number is None or summary is None else (int(number), summary[_RUN] or "")


def _check_owner(state: TableState, lake_id: str) -> None:
    owner = state.metadata.properties.get(LAKE_PROPERTY)
    if owner != lake_id:
        whose = "does not belong to scanlake" if owner is None else f"belongs to another lake ({owner[:8]})"
        raise SettingsError(f"The Iceberg table {state.name} {whose}.", hint="Use another iceberg_namespace.")
    newest = state.metadata.properties.get(SCHEMA_PROPERTY, "")
    if newest.isdecimal() and int(newest) > SCHEMA_VERSION:
        message = f"The Iceberg table {state.name} has columns of a newer scanlake."
        raise SettingsError(message, hint="Update scanlake.")


def _list_roots(catalog: IcebergCatalog, states: Mapping[str, TableState]) -> dict[str, bool]:
    """Return the locations of the folders of the tables, present or to come, and whether tables are there."""
    roots = {catalog.root: False} if catalog.root and not states.keys() >= BY_NAME.keys() else {}
    for name, state in states.items():
        location = state.metadata.location.rstrip("/")
        if location.endswith(folder := f"/{TABLES_PREFIX}/{name}"):
            roots[location.removesuffix(folder)] = True
    return roots


class Sync(Struct, frozen=True):
    """The sync that is published, with its catalog and outputs, and the tags that are kept, its own included."""

    lake_id: str
    snapshot: SnapshotRecord
    catalog: Path
    outputs: Sequence[Part]
    kept_tags: frozenset[str]

    @property
    def tag(self) -> str:
        """Its tag in every table."""
        return f"{TAG}{self.snapshot.snapshot}"

    @property
    def properties(self) -> dict[str, str]:
        """Properties of the sync's Iceberg snapshots."""
        record = self.snapshot
        return {
            _SNAPSHOT: str(record.snapshot),
            "scanlake.watermark": "" if record.watermark is None else str(record.watermark),
            _RUN: record.run_id,
        }


class StagedTable(Struct, frozen=True):
    """A table with its commit, None if the table is as it has to be, and what changes; `removed` counts parts."""

    commit: TableCommit | None
    changes: FileChanges
    removed: int


def stage_table(
    catalog: IcebergCatalog, layout: LakeLayout, sync: Sync, table: Table, state: TableState
) -> StagedTable:
    """Prepare a table: upload its new parts, write its delete files and its snapshot."""
    updates = _update_schema(table, state.metadata, sync)
    metadata = update_table_metadata(state.metadata, tuple(updates)) if updates else state.metadata
    files = read_files(state.metadata, catalog.io)
    root = f"{metadata.location.rstrip('/')}/data"
    own = [part for part in sync.outputs if part.table_name == table.name]
    names = {part: PurePosixPath(to_target_path(part.name, part.sha256)).name for part in own}
    parts = {f"{root}/{name}": (part, layout.part_path(part.name)) for part, name in names.items()}
    store, folder = catalog.io.find_object(root)
    upload_all(
        store,
        [
            PendingUpload(f"{folder}/{PurePosixPath(location).name}", path, part.bytes, part.sha256)
            for location, (part, path) in parts.items()
            if location not in files.data
        ],
    )
    positions = _find_former_positions(sync.catalog, table, parts) if table.is_per_file else {}
    local = {location: path for location, (_, path) in parts.items()}
    changes = _plan_changes(catalog.io, files, metadata.schema(), local, positions)
    current = metadata.current_snapshot()
    if current is None or not changes.is_empty:
        current = write_snapshot(catalog.io, metadata, files, changes, sync.properties)
        updates += [AddSnapshotUpdate(snapshot=current), _refer(MAIN, SnapshotRefType.BRANCH, current.snapshot_id)]
    updates += _update_tags(metadata, current.snapshot_id, sync)
    commit = TableCommit(state, tuple(updates)) if updates else None
    return StagedTable(commit, changes, len(files.data - parts.keys()))


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
    expired = [name for name in metadata.refs if name.startswith(TAG) and name not in sync.kept_tags]
    updates += [RemoveSnapshotRefUpdate(ref_name=name) for name in expired]
    moved = {*expired, sync.tag, MAIN}
    named = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in moved} | {current_id}
    dropped = [snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.snapshot_id not in named]
    return [*updates, RemoveSnapshotsUpdate(snapshot_ids=dropped)] if dropped else updates


def _refer(name: str, kind: SnapshotRefType, snapshot_id: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(ref_name=name, type=kind, snapshot_id=snapshot_id)


# Files that no kept snapshot of the tables names


def list_table_files(io: StoreFileIO, states: Iterable[TableState]) -> set[str]:
    """Return the locations of all files that the tables need, for readers of any kept snapshot."""
    referenced: set[str] = set()
    for state in states:
        referenced |= {state.metadata_location, *list_referenced_files(state.metadata, io)}
    return referenced


def list_stored_files(io: StoreFileIO, state: TableState) -> Iterator[tuple[ObjectStore, str, StoredObject]]:
    """Yield everything in the folders of a table: its store, its location, and the object."""
    store, root, folders = _find_folders(io, state)
    yield from ((store, f"{root}{stored.path}", stored) for folder in folders for stored in store.list(folder))


def _find_folders(io: StoreFileIO, state: TableState) -> tuple[ObjectStore, str, list[str]]:
    """Return a table's store, its root and the table's folders in it.

    The root is written as in the metadata: a catalog that chose the place can have file:/x for file:///x.
    """
    location = f"{state.metadata.location.rstrip('/')}/"
    store, path = io.find_object(location)
    return store, location.removesuffix(path), [f"{path}{folder}" for folder in ("data", "metadata")]


def _sweep_tables(io: StoreFileIO, states: Collection[TableState], rule: SweepRule) -> int:
    """Delete the tables' files that nothing needs, where the rule permits it; return their number."""
    needed, deleted = list_table_files(io, states), 0
    for state in states:
        store, _, folders = _find_folders(io, state)
        store.remove_temp_files(folders)
        location, prefix = f"{state.metadata.location.rstrip('/')}/", data_prefix(state.name)
        unneeded = [
            stored
            for _, file, stored in list_stored_files(io, state)
            if file not in needed
            and is_table_file(file.removeprefix(location))
            and rule.permits(stored, f"{prefix}/{file.rpartition('/')[2]}")
        ]
        deleted += delete_own_objects(store, unneeded, partial(has_named_hash, store))
    return deleted


# Differences between the snapshot and a table


def _find_former_positions(
    catalog: Path, table: Table, parts: Mapping[str, tuple[Part, Path]]
) -> dict[str, tuple[int, ...]]:
    """Return the positions of rows that the catalog has no more, by location, sorted.

    `parts` are the outputs of a table by their published location. A file's rows of a commit count as long as the
    catalog has them. Two columns are read, of the outputs that have more rows than the catalog has of their commits.
    """
    with open_snapshot(catalog) as db:
        db.execute(f"SET memory_limit = '{_MEMORY_LIMIT}'")
        dirty = {}
        for location, (part, path) in parts.items():
            of_commits = f"{table.qualified_name} WHERE {COMMIT_SEQ_COLUMN} BETWEEN {part.span[0]} AND {part.span[1]}"
            same_span = sum(other.row_count for other, _ in parts.values() if other.span == part.span)
            if db.execute(f"SELECT count(*) FROM {of_commits}").fetchall() != [(same_span,)]:
                dirty[str(path)] = location
        if not dirty:
            return {}
        paths = ", ".join(map(sql_literal, dirty))
        source = f"read_parquet([{paths}], filename = true, file_row_number = true)"
        rows = db.execute(
            f"SELECT filename, file_row_number FROM {source} AS output"
            f" ANTI JOIN {table.qualified_name} AS current USING (file_id, {COMMIT_SEQ_COLUMN}) ORDER BY ALL"
        ).fetchall()
    return {dirty[path]: tuple(position for _, position in group) for path, group in groupby(rows, key=itemgetter(0))}


def _plan_changes(
    io: StoreFileIO,
    files: TableFiles,
    schema: Schema,
    parts: Mapping[str, Path],
    positions: Mapping[str, Sequence[int]],
) -> FileChanges:
    """Write the delete files that a table lacks, and return all changes of its files.

    `parts` are the data files that the table is to have, by location; `positions` are their deleted rows, sorted.
    """
    changes = FileChanges()
    changes.data = [
        describe_data_file(part, location, schema) for location, part in parts.items() if location not in files.data
    ]
    changes.removed = (files.data - parts.keys()) | files.others
    for location, former in files.deletes.items():
        if location not in parts:
            changes.removed.update(_locations(former))
    for location in parts:
        own = positions.get(location, ())
        if (new := _plan_deletes(io, changes, location, files.deletes.get(location, ()), own)) is not None:
            digest = digest_positions(own)
            changes.deletes.append(write_deletes(io, location, new, digest=digest))
    return changes


def _plan_deletes(
    io: StoreFileIO, changes: FileChanges, location: str, former: Sequence[DeleteFile], positions: Sequence[int]
) -> list[int] | None:
    """Return the positions that a new delete file of a data file has to have; None if it needs none.

    A publish adds one file with the new positions. It replaces all files by one if there are many, or if rows are
    deleted that are to be visible again: after a rollback.
    """
    is_whole = sum(delete.file.record_count for delete in former) == len(positions)  # others can have removed some
    if former and is_whole and former[-1].digest == digest_positions(positions):
        return None
    deleted = read_positions(io, _locations(former), location)
    if len(former) >= _MAX_DELETE_FILES or not deleted <= set(positions):
        changes.removed.update(_locations(former))
        deleted = set()
    return [position for position in positions if position not in deleted] or None


def _locations(files: Iterable[DeleteFile]) -> list[str]:
    return [delete.file.file_path for delete in files]
