"""Integrity of catalogs: the published one and the kept snapshots, compared with what was published.

A snapshot is compared by its hash. The catalog has no hash, because every publish changes a copy of it: its blocks have
checksums, and its rows are compared with those of the parts that it lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import duckdb
import structlog

from pipeline.atomic_files import sha256_file
from pipeline.findings import damage
from pipeline.lake.catalog_sql import CatalogSpec, select_rows_sql
from pipeline.lake.catalog_tables import describe_format
from pipeline.lake.duckdb import LARGE_MEMORY_LIMIT, MEMORY_LIMIT
from pipeline.lake.duckdb_errors import describe_damage, first_line
from pipeline.lake.duckdb_files import open_read_only
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.integrity import describe_os_error, find_file_problem
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.physical_tables import read_parts
from pipeline.lake.reader import redirect_part_paths
from schemas.tables import FILES, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.findings import Finding
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.lake.models import DeltaBase, LakeProperties, SnapshotRecord
    from schemas.tables import Table

_NOT_PUBLISHED: Final = "not what was published (sha256 differs)"
_TABLE_NAMES: Final = frozenset(table.qualified_name for table in TABLES)
_log = structlog.get_logger()


def find_damaged_catalogs(layout: LakeLayout, ledger: LedgerQueries) -> Iterator[Finding]:
    """Yield the catalog and the kept snapshots that differ from what was published or cannot be queried."""
    hashes = {record.snapshot: record.sha256 for record in ledger.snapshots()}
    # The contents of current parts are compared elsewhere, those of parts that only a snapshot names here.
    problems: dict[str, str | None] = {
        part.name: None if layout.part_path(part.name).is_file() else "missing" for part in ledger.parts()
    }
    for number, path in list_snapshots(layout):
        if problem := _find_problem_of_views(layout, path, hashes.get(number), problems):
            yield damage(layout.part_name(path), problem, "deleted")
    last = ledger.last_snapshot()
    if last is not None and (problem := _find_problem_of_tables(layout, ledger.properties, last, problems)):
        yield damage(layout.part_name(layout.catalog), problem, "published again")


# Views


def _find_problem_of_views(
    layout: LakeLayout, path: Path, sha256: str | None, problems: dict[str, str | None]
) -> str | None:
    """Return what is wrong with a file of views, whose hash may not be known."""
    if not path.is_file():
        return "missing"
    try:
        if sha256 and sha256_file(path) != sha256:
            return _NOT_PUBLISHED  # a damaged database is not opened
        with open_read_only(path) as db:
            if broken := _find_broken_part(layout, db, problems):
                return broken
            ((root,),) = db.execute("SELECT parts_root FROM meta._freshness").fetchall()
            if root != str(layout.root):
                redirect_part_paths(db, root, layout.root)
            for table in TABLES:
                db.execute(f"SELECT count(*) FROM {table.qualified_name}").fetchall()
    except OSError as error:
        return describe_os_error(error)
    except duckdb.Error as error:
        return f"cannot be read: {describe_damage(error)}"
    return None


def _find_broken_part(layout: LakeLayout, db: duckdb.DuckDBPyConnection, problems: dict[str, str | None]) -> str | None:
    """Return which part of a catalog is missing or damaged; `problems` are those that are known, by name."""
    for part in read_parts(db):
        if part.table_name != RAW_TABLE:  # no table of a snapshot reads raw documents
            if part.name not in problems:
                problems[part.name] = find_file_problem(layout.part_path(part.name), part)
            if problem := problems[part.name]:
                return f"names {part.name}: {problem}"
    return None


# Tables


def _find_problem_of_tables(
    layout: LakeLayout, properties: LakeProperties, last: SnapshotRecord, problems: dict[str, str | None]
) -> str | None:
    """Return what is wrong with the published catalog. A publish that was killed leaves no record of it."""
    if not layout.catalog.is_file():
        return "missing"
    try:
        with open_read_only(layout.catalog) as db:
            db.execute("SET temp_directory = ''")  # a dry run writes nothing
            if broken := _find_broken_part(layout, db, problems):
                return broken
            ((at,),) = db.execute("SELECT epoch_us(published_at) FROM meta._freshness").fetchall()
            record, base = properties.catalog, properties.delta_base
            if record is None:
                base = None
            elif at != record["written_at"]:
                return f"shows {'an earlier' if at < record['written_at'] else 'another'} publish than the last one"
            return _find_damaged_object(db, base) or _find_wrong_table(layout, db, _read_spec(db, last), base)
    except duckdb.Error as error:
        return f"cannot be read: {describe_damage(error)}"


def _find_damaged_object(db: duckdb.DuckDBPyConnection, base: DeltaBase | None) -> str | None:
    """Return which view is missing, or which table beside those of the files cannot be read."""
    views = {name for (name,) in db.execute("SELECT view_name FROM duckdb_views()").fetchall()}
    if base is not None and (lost := sorted(base["views"].keys() - views)):
        return f"{lost[0]} is missing"
    tables = db.execute("SELECT schema_name || '.' || table_name FROM duckdb_tables()").fetchall()
    for (name,) in tables:
        if name not in _TABLE_NAMES:
            try:
                _sum_rows(db, name)
            except duckdb.Error as error:
                return f"{name} cannot be read: {describe_damage(error)}"
    return None


def _find_wrong_table(
    layout: LakeLayout, db: duckdb.DuckDBPyConnection, spec: CatalogSpec, base: DeltaBase | None
) -> str | None:
    """Return which table cannot be read, or has other rows than the parts that the catalog lists."""
    is_comparable = base is None or base["format"] == describe_format(spec)
    if not is_comparable:
        _log.info("catalog.not_compared", reason="it is of another version of scanlake")
    for table in TABLES:
        try:
            rows = _sum_rows(db, table.qualified_name)
        except duckdb.Error as error:
            return f"{table.name} cannot be read: {describe_damage(error)}"
        if is_comparable and _sum_rows_of_parts(layout, db, spec, table) not in {rows, None}:
            return f"{table.name} has other rows than the parts"
    return None


def _read_spec(db: duckdb.DuckDBPyConnection, last: SnapshotRecord) -> CatalogSpec:
    """Return the contents of a catalog by its own list of parts."""
    columns = db.execute("SELECT column_name FROM duckdb_columns() WHERE table_name = ?", [FILES.name]).fetchall()
    has_instances = ("instance_file_id",) in columns
    return CatalogSpec(last, read_parts(db), has_superseded_rows=True, has_instances=has_instances)


def _sum_rows_of_parts(
    layout: LakeLayout, db: duckdb.DuckDBPyConnection, spec: CatalogSpec, table: Table
) -> tuple[Any, ...] | None:
    """Return `_sum_rows` of the rows in the parts; None if they cannot be read, which is a finding of its own."""
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
        db.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        return db.execute(query).fetchall()[0]
    except duckdb.OutOfMemoryException:
        db.execute(f"SET memory_limit = '{LARGE_MEMORY_LIMIT}'")
        return db.execute(query).fetchall()[0]
