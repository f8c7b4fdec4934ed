"""Integrity of catalogs: the published one and the kept snapshots, compared with the parts that they list.

A catalog has no hash, because every publish changes a copy of it: its blocks have checksums, which DuckDB compares when
it reads them, and its rows are compared with those of the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import duckdb

from pipeline.errors import LakeLockedError, StorageError
from pipeline.findings import damage
from pipeline.lake.catalog_sql import describe_format, read_spec, select_rows_sql
from pipeline.lake.duckdb import LARGE_MEMORY_LIMIT, MEMORY_LIMIT
from pipeline.lake.duckdb_files import classify_read_error, describe_damage, first_line, read_database
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.integrity import describe_os_error, find_file_problem
from pipeline.lake.meta_tables import CATALOG_FORMAT
from pipeline.lake.parts import RAW_TABLE
from pipeline.logs import get_logger
from schemas.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from pipeline.findings import Finding
    from pipeline.lake.catalog_sql import CatalogSpec
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.lake.models import LakeProperties, SnapshotRecord
    from schemas.tables import Table

_NO_ROWS: Final = (0, None)
"""What `_sum_rows` returns for no rows."""
_log = get_logger()


def find_damaged_catalogs(
    layout: LakeLayout, ledger: LedgerQueries, *, damaged_parts: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield the catalog and the kept snapshots that differ from what was published or cannot be queried.

    A table is not compared with `damaged_parts`: other rows are no fault of the catalog then.
    """
    # The contents of current parts are compared elsewhere, those of parts that only a snapshot names here.
    problems: dict[str, str | None] = {
        part.name: None if layout.part_path(part.name).is_file() else "missing" for part in ledger.parts()
    }
    if ledger.last_snapshot() is not None:
        problem = _CatalogCheck(layout, problems, damaged_parts, ledger.properties).find_problem(layout.catalog)
        if problem:
            yield damage(layout.part_name(layout.catalog), problem, "published again")
    for number, path in list_snapshots(layout):
        if path.is_file() and layout.catalog.is_file() and path.samefile(layout.catalog):
            continue  # which is published again with it
        if problem := _CatalogCheck(layout, problems, damaged_parts).find_problem(path, number):
            yield damage(layout.part_name(path), problem, "deleted")


class _CatalogCheck:
    """A check of one catalog. `properties` are those of the lake, for the published one."""

    def __init__(
        self,
        layout: LakeLayout,
        problems: dict[str, str | None],
        damaged_parts: Collection[str],
        properties: LakeProperties | None = None,
    ) -> None:
        self._layout, self._problems, self._damaged = layout, problems, damaged_parts
        self._record = properties.catalog if properties else None
        # A publish that was killed leaves no record of its catalog.
        base = properties.delta_base if properties and self._record else None
        self._views = base["views"].keys() if base else frozenset()

    def find_problem(self, path: Path, number: int | None = None) -> str | None:
        """Return the problem of a catalog; of a snapshot `number` also that it shows another one."""
        if not path.is_file():
            return "missing"
        try:
            with read_database(path) as db:
                db.execute(f"SET temp_directory = ''; SET memory_limit = '{MEMORY_LIMIT}'")  # a dry run writes nothing
                spec = read_spec(db)
                problem = self._find_other_publish(spec.snapshot, number)
                return problem or self._find_wrong_table(db, spec)
        except OSError as error:
            return describe_os_error(error)
        except (duckdb.Error, IndexError) as error:
            failure = classify_read_error(error) if isinstance(error, duckdb.Error) else None
            if isinstance(failure, StorageError | LakeLockedError):
                raise failure from error  # a permission, or a session that writes, is no damage
            return f"cannot be read: {describe_damage(error) if isinstance(error, duckdb.Error) else 'no snapshot'}"

    def _can_compare(self, spec: CatalogSpec) -> bool:
        """Return whether a catalog's parts are as they were written. Those of a snapshot may have expired."""
        for part in spec.parts:
            if part.table_name != RAW_TABLE and part.name not in self._problems:  # no table reads raw documents
                self._problems[part.name] = find_file_problem(self._layout.part_path(part.name), part)
        return not any(self._problems.get(part.name) for part in spec.parts)

    def _find_other_publish(self, record: SnapshotRecord, number: int | None) -> str | None:
        if number not in {None, record.snapshot}:
            return f"shows snapshot {record.snapshot}"
        if self._record is None or record.published_at == (written := self._record["written_at"]):
            return None
        return f"shows {'an earlier' if record.published_at < written else 'another'} publish than the last one"

    def _find_wrong_table(self, db: duckdb.DuckDBPyConnection, spec: CatalogSpec) -> str | None:
        """Return which table or view is missing, cannot be read, or has other rows than the parts of the catalog."""
        ((described,),) = db.execute(f"SELECT {CATALOG_FORMAT[0]} FROM meta._freshness").fetchall()
        if described != describe_format():
            _log.info("catalog.not_compared", reason="it is of another version of scanlake")
        is_comparable = described == describe_format() and self._can_compare(spec)
        views = {name for (name,) in db.execute("SELECT view_name FROM duckdb_views()").fetchall()}
        if lost := sorted(self._views - views):
            return f"{lost[0]} is missing"
        tables = {table.qualified_name: table for table in TABLES}
        listed = db.execute("SELECT schema_name || '.' || table_name FROM duckdb_tables()").fetchall()
        for name in [*(name for (name,) in listed if name not in tables), *tables]:
            table = tables.get(name)
            label = name if table is None else table.name
            try:
                rows = _sum_rows(db, name)
            except duckdb.Error as error:
                return f"{label} cannot be read: {describe_damage(error)}"
            if table is None or not is_comparable or any(part.name in self._damaged for part in spec.parts_of(label)):
                continue
            if _sum_rows_of_parts(self._layout, db, spec, table) not in {rows, None}:
                return f"{label} has other rows than the parts"
        return None


def _sum_rows_of_parts(
    layout: LakeLayout, db: duckdb.DuckDBPyConnection, spec: CatalogSpec, table: Table
) -> tuple[Any, ...] | None:
    """Return `_sum_rows` of the rows in the parts; None if they cannot be read, which is a finding of its own."""
    if not spec.parts_of(table.name):
        return _NO_ROWS
    query = f"({select_rows_sql(layout, spec, table)})"
    try:
        return _sum_rows(db, query)
    except duckdb.Error as error:
        _log.warning("catalog.not_compared", table=table.name, error=first_line(error))
        return None


def _sum_rows(db: duckdb.DuckDBPyConnection, source: str) -> tuple[Any, ...]:
    """Return the number of the rows and the sum of their hashes: equal for equal rows."""
    query = f"SELECT count(*), sum(hash(row)) FROM {source} AS row"
    try:
        return db.execute(query).fetchall()[0]
    except duckdb.OutOfMemoryException:
        db.execute(f"SET memory_limit = '{LARGE_MEMORY_LIMIT}'")
        try:
            return db.execute(query).fetchall()[0]
        finally:
            db.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
