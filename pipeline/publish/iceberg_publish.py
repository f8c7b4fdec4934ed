"""Publish of one kept snapshot as Iceberg tables over the lake's own parts.

Nothing is remembered: the state of the tables is read back from their catalog, and the difference is committed. So a
killed publish is repeated, and a rollback is one more publish.
"""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.errors import PublishConflictError, SettingsError
from pipeline.publish.iceberg_owner import LocationOwner, claim_locations
from pipeline.publish.iceberg_retention import sweep_tables
from pipeline.publish.iceberg_schema import LAKE_PROPERTY, table_properties, to_iceberg_schema
from pipeline.publish.iceberg_sources import PublishScope, claim_source
from pipeline.publish.iceberg_stage import Stage, read_sync
from pipeline.publish.target_layout import SHARED_OWNER, TABLES_PREFIX
from schemas.tables import SYNCS, TABLES
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pipeline.lake.layout import LakeLayout
    from pipeline.publish.iceberg_catalogs import IcebergCatalog, TableState
    from pipeline.publish.iceberg_stage import StagedTable, Sync

_TABLES: Final = {table.name: table for table in (*TABLES, SYNCS)}
_TABLES_SIDE_BY_SIDE: Final = 8
_MAX_ATTEMPTS: Final = 20  # to commit to tables that other lakes change meanwhile
_PAUSE_SECONDS: Final = 0.05
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


def publish_iceberg(
    catalog: IcebergCatalog,
    layout: LakeLayout,
    number: int,
    *,
    lake_id: str,
    at: int,
    source: str | None = None,
    retention: RetentionOptions | None = None,
    hashes: Mapping[str, str] | None = None,
) -> IcebergResult:
    """Make the Iceberg tables show the kept snapshot `number`, at `at` (microseconds).

    With `source` the lake has that partition of tables that several lakes share. `hashes` are those of the lake's
    parts by name, SHA-256 in hex. Raises `SettingsError` if the snapshot is not kept or the tables belong to another
    lake, `LakeCorruptedError` for a snapshot from before a repair of its parts, `PublishConflictError` if another
    publisher was faster, and `PublishError`.
    """
    started = time.monotonic()
    scope = PublishScope(lake_id, source)
    sync = read_sync(layout, number, at, hashes or {}, scope)
    is_purge = retention is not None and _is_purge_recent(retention, at)
    stage, staged = _commit_sync(catalog, layout, sync, retention.part_names if retention and is_purge else None)
    deleted = 0
    if retention is not None and (before := _find_sweep_time(retention, number, at)) is not None:
        current = catalog.load(_TABLES).values()
        names = retention.part_names
        deleted = sweep_tables(catalog.io, current, before=before, part_names=names, source=source)
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


def _commit_sync(
    catalog: IcebergCatalog, layout: LakeLayout, sync: Sync, part_names: frozenset[str] | None
) -> tuple[Stage, list[StagedTable]]:
    """Commit a sync. If another lake was faster with shared tables, begin again with what it has committed."""
    own_syncs: dict[str, int] | None = None
    for attempts_left in range(_MAX_ATTEMPTS if sync.scope.source is not None else 1, 0, -1):
        states = _load_tables(catalog, sync.scope)
        former, own_syncs = own_syncs, _list_own_syncs(states[SYNCS.name], sync.scope)
        if former is not None and former != own_syncs:
            break
        stage = Stage(catalog, layout, sync, part_names)
        staged = _stage_tables(stage, states)
        note = {"lake_id": sync.scope.owner_id, "snapshot": sync.contents.snapshot, "tag": sync.tag}
        try:
            if commits := [table.commit for table in staged if table.commit is not None]:
                catalog.commit(commits, note)
        except PublishConflictError:
            if attempts_left == 1:
                raise
            time.sleep(_PAUSE_SECONDS * (1 + secrets.randbelow(8)))
        else:
            return stage, staged
    raise PublishConflictError("Iceberg: another publisher of this lake has changed the tables.")


def _list_own_syncs(state: TableState, scope: PublishScope) -> dict[str, int]:
    """Return the snapshots of the lake's own tags, by tag."""
    return {name: ref.snapshot_id for name, ref in state.metadata.refs.items() if scope.is_own_tag(name)}


def _load_tables(catalog: IcebergCatalog, scope: PublishScope) -> dict[str, TableState]:
    """Return all tables, and create the missing ones. Raises `SettingsError` if they belong to another lake."""
    states = catalog.load(_TABLES)
    for state in states.values():
        _check_owner(state, scope)
    roots = _list_roots(catalog, states, _TABLES)
    claim_locations(catalog.io, roots, LocationOwner(scope.owner_id, catalog.id))
    is_shared = scope.source is not None
    for name, table in _TABLES.items():
        if name not in states:
            schema = to_iceberg_schema(table, is_shared=is_shared)
            states[name] = catalog.create(name, schema, table_properties(table, schema, scope.owner_id))
    if is_shared:
        claim_source(catalog.io, states[SYNCS.name].metadata.location, scope)
    return states


def _stage_tables(stage: Stage, states: Mapping[str, TableState]) -> list[StagedTable]:
    """Prepare all tables, several side by side, and last the table of syncs."""
    with ThreadPoolExecutor(_TABLES_SIDE_BY_SIDE) as pool:
        pending = [pool.submit(stage.stage_parts, table, states[table.name]) for table in TABLES]
        staged = [future.result() for future in pending]
    return [*staged, stage.stage_syncs(states[SYNCS.name])]


def _find_sweep_time(retention: RetentionOptions, number: int, at: int) -> float | None:
    """Return the time before which unneeded files go; None if no sweep is due.

    A sweep reads the manifests of every kept snapshot, so it is due with every eighth snapshot. After a purge every
    publish sweeps for some days, so that a killed one leaves nothing.
    """
    if retention.purged_at is not None and _is_purge_recent(retention, at):
        return max(retention.before, retention.purged_at + _CLOCK_SKEW_SECONDS)
    return retention.before if number % _SWEEP_INTERVAL == 0 else None


def _is_purge_recent(retention: RetentionOptions, at: int) -> bool:
    return retention.purged_at is not None and at / SECOND < retention.purged_at + _PURGE_SWEEP_SECONDS


def _check_owner(state: TableState, scope: PublishScope) -> None:
    owner = state.metadata.properties.get(LAKE_PROPERTY)
    if owner != scope.owner_id:
        whose = "does not belong to scanlake" if owner is None else f"belongs to another lake ({owner[:8]})"
        whose = "is one that several lakes share" if owner == SHARED_OWNER else whose
        raise SettingsError(f"The Iceberg table {state.name} {whose}.", hint="Use another iceberg_namespace.")


def _list_roots(catalog: IcebergCatalog, states: Mapping[str, TableState], names: Iterable[str]) -> set[str]:
    """Return the locations below which the tables have, or will have, the folders of the lake's target."""
    roots = {catalog.root} if catalog.root and not states.keys() >= set(names) else set()
    for name, state in states.items():
        location = state.metadata.location.rstrip("/")
        if location.endswith(folder := f"/{TABLES_PREFIX}/{name}"):
            roots.add(location.removesuffix(folder))
    return roots
