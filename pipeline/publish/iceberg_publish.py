"""Publish of one kept snapshot as Iceberg tables over the lake's own parts.

Nothing is remembered: the state of the tables is read back from their catalog, and the difference is committed. So a
killed publish is repeated, and a rollback is one more publish.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from pipeline.errors import SettingsError
from pipeline.publish.iceberg import IcebergResult
from pipeline.publish.iceberg_catalogs import LocationOwner, claim_locations
from pipeline.publish.iceberg_retention import sweep_tables
from pipeline.publish.iceberg_schema import LAKE_PROPERTY, table_properties, to_iceberg_schema
from pipeline.publish.iceberg_stage import read_sync, stage_table
from pipeline.publish.target_layout import TABLES_PREFIX
from schemas.tables import BY_NAME, TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.lake.layout import LakeLayout
    from pipeline.publish.iceberg_catalogs import IcebergCatalog, TableState
    from pipeline.publish.iceberg_stage import StagedTable, Sync
    from pipeline.publish.sweep_rule import SweepRule

_TABLES_SIDE_BY_SIDE: Final = 8
_SWEEP_INTERVAL: Final = 8


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
    sync = read_sync(layout, number, lake_id)
    states = _load_tables(catalog, lake_id)
    staged = _stage_tables(catalog, layout, sync, states)
    if commits := [table.commit for table in staged if table.commit is not None]:
        catalog.commit(commits, {"lake_id": lake_id, "snapshot": number, "tag": sync.tag})
    deleted = 0
    if rule is not None and (has_purged or number % _SWEEP_INTERVAL == 0):
        deleted = sweep_tables(catalog.io, catalog.load(BY_NAME).values(), rule)
    return IcebergResult(
        snapshot=number,
        tag=sync.tag,
        tables=len(staged),
        changed=sum(not table.changes.is_empty for table in staged),
        parts_added=sum(len(table.changes.data) for table in staged),
        parts_removed=sum(table.removed for table in staged),
        parts_uploaded=sum(table.uploaded for table in staged),
        delete_files=sum(len(table.changes.deletes) for table in staged),
        rows_deleted=sum(file.record_count for table in staged for file in table.changes.deletes),
        bytes=catalog.io.bytes_written,
        deleted=deleted,
        seconds=round(time.monotonic() - started, 3),
    )


def _load_tables(catalog: IcebergCatalog, lake_id: str) -> dict[str, TableState]:
    """Return all tables, and create the missing ones. Raises `SettingsError` if they belong to another lake."""
    states = catalog.load(BY_NAME)
    for state in states.values():
        _check_owner(state, lake_id)
    roots = _list_roots(catalog, states)
    claim_locations(catalog.io, roots, LocationOwner(lake_id, catalog.id))
    for name, table in BY_NAME.items():
        if name not in states:
            states[name] = catalog.create(name, to_iceberg_schema(table), table_properties(table, lake_id))
    return states


def _stage_tables(
    catalog: IcebergCatalog, layout: LakeLayout, sync: Sync, states: Mapping[str, TableState]
) -> list[StagedTable]:
    """Prepare all tables, several side by side."""
    with ThreadPoolExecutor(_TABLES_SIDE_BY_SIDE) as pool:
        return list(pool.map(lambda table: stage_table(catalog, layout, sync, table, states[table.name]), TABLES))


def _check_owner(state: TableState, lake_id: str) -> None:
    owner = state.metadata.properties.get(LAKE_PROPERTY)
    if owner != lake_id:
        whose = "does not belong to scanlake" if owner is None else f"belongs to another lake ({owner[:8]})"
        raise SettingsError(f"The Iceberg table {state.name} {whose}.", hint="Use another iceberg_namespace.")


def _list_roots(catalog: IcebergCatalog, states: Mapping[str, TableState]) -> set[str]:
    """Return the locations below which the tables have, or will have, the folders of the lake's target."""
    roots = {catalog.root} if catalog.root and not states.keys() >= BY_NAME.keys() else set()
    for name, state in states.items():
        location = state.metadata.location.rstrip("/")
        if location.endswith(folder := f"/{TABLES_PREFIX}/{name}"):
            roots.add(location.removesuffix(folder))
    return roots
