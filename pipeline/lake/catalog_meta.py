"""What a catalog has beside the rows: the ledger's records in schema `meta`, its parts, its data dictionary."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipeline.lake.catalog_sql import ARROW_TYPES, SUPERSEDED_VERSIONS
from pipeline.lake.duckdb import fill_table
from pipeline.lake.meta_tables import FRESHNESS_COLUMNS, META_TABLES, MetaTable
from pipeline.lake.rebuild import embed_ledger
from pipeline.lake.sql import sql_comment
from schemas.tables import COMMIT_SEQ_COLUMN, TABLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import duckdb

    from pipeline.lake.catalog_sql import CatalogSpec
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.meta_tables import MetaColumn

_SUPERSEDED_COLUMNS: Final = (
    ("file_id", "BIGINT", "The file."),
    (COMMIT_SEQ_COLUMN, "BIGINT", "Commit that wrote the version."),
)
_PART_COLUMNS: Final = (
    ("name", "VARCHAR", "Path below the lake's folder."),
    ("table_name", "VARCHAR", "Table that the rows belong to, or raw."),
    ("first_commit_seq", "BIGINT", "First commit in the part."),
    ("last_commit_seq", "BIGINT", "Last commit in the part."),
    ("row_count", "BIGINT", "Number of rows, superseded ones included."),
    ("bytes", "BIGINT", "Size of the file."),
    ("sha256", "VARCHAR", "SHA-256 of the file."),
)
_DICTIONARY_COLUMNS: Final = (
    ("table_name", "VARCHAR", "Table or view."),
    ("column_name", "VARCHAR", "Column."),
    ("type", "VARCHAR", "Arrow type of the column."),
    ("comment", "VARCHAR", "Meaning of the column."),
    ("is_key", "BOOLEAN", "The column is part of the rows' key; `position` separates rows with equal keys."),
    ("is_nullable", "BOOLEAN", "The column can be NULL."),
    ("is_view", "BOOLEAN", "The column belongs to a view that is computed from the tables."),
)


def write_superseded_versions(db: duckdb.DuckDBPyConnection, ledger: Ledger, *, exists: bool) -> None:
    """Write the table of the versions whose rows do not count; the queries of the tables read it.

    `exists`: the catalog, which is updated, has the table.
    """
    comment = "Superseded versions of files. Their rows do not count, in any table."
    _write_table(db, SUPERSEDED_VERSIONS, comment, _SUPERSEDED_COLUMNS, ledger.superseded_columns(), exists=exists)


def write_meta(
    db: duckdb.DuckDBPyConnection, ledger: Ledger, spec: CatalogSpec, views: Collection[str], *, exists: bool
) -> None:
    """Write the tables of schema `meta`, the list of the parts, and the copy of the ledger's small tables.

    `exists`: the catalog, which is updated, has the tables.
    """
    part_columns = [[getattr(part, name) for part in spec.parts] for name, _, _ in _PART_COLUMNS]
    comment = "Parquet files of this snapshot, with their hashes."
    _write_table(db, "main._parts", comment, _PART_COLUMNS, part_columns, exists=exists)
    for meta_table in META_TABLES:
        _write_meta_table(db, meta_table, ledger, exists=exists)
    _write_freshness(db, spec, ledger, exists=exists)
    _write_dictionary(db, views, exists=exists)
    embed_ledger(db, ledger, exists=exists)


def _write_table(
    db: duckdb.DuckDBPyConnection,
    name: str,
    comment: str,
    columns: Sequence[MetaColumn],
    values: Iterable[Sequence[Any]],
    *,
    exists: bool,
) -> None:
    """Fill a table; `values` has one sequence per column."""
    types = [ARROW_TYPES[sql_type] for _, sql_type, _ in columns]
    arrays = [pa.array(cells, arrow_type) for cells, arrow_type in zip(values, types, strict=True)]
    rows = pa.table(arrays, names=[column for column, _, _ in columns])
    fill_table(db, name, comment, _comments(columns), rows, exists=exists)


def _comments(columns: Iterable[MetaColumn]) -> list[tuple[str, str]]:
    return [(name, comment) for name, _, comment in columns]


def _write_meta_table(db: duckdb.DuckDBPyConnection, table: MetaTable, ledger: Ledger, *, exists: bool) -> None:
    rows = ledger.query(table.ledger_query)
    types = [sql_type for _, sql_type, _ in table.columns]
    values = [[_to_arrow_value(row[index], sql_type) for row in rows] for index, sql_type in enumerate(types)]
    _write_table(db, f"meta.{table.name}", table.comment, table.columns, values, exists=exists)


def _to_arrow_value(value: Any, sql_type: str) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return bool(value) if sql_type == "BOOLEAN" and value is not None else value


def _write_freshness(db: duckdb.DuckDBPyConnection, spec: CatalogSpec, ledger: Ledger, *, exists: bool) -> None:
    run, properties = ledger.last_run(), ledger.properties
    row: dict[str, Any] = {
        **asdict(spec.snapshot),
        "deleted_files": ledger.count_deleted_files(),
        "rejects": sum(ledger.count_rejects().values()),
        "last_run_id": run.run_id if run else None,
        "last_run_state": run.state if run else None,
        "last_run_ended_at": run.ended_at if run else None,
        "last_verify_at": properties.last_verify_at,
        "missing_includes": ", ".join(properties.missing_includes) or None,
        "texts_from": properties.texts_from,
        "reader_root": str(spec.reader_root),
    }
    stored = [column for column in FRESHNESS_COLUMNS if column[0] in row]
    values = [[row[name]] for name, _, _ in stored]
    _write_table(db, "meta._freshness", "One row: the source of meta.freshness.", stored, values, exists=exists)
    if exists:
        return
    age = "epoch(now()) - epoch(watermark) AS age_seconds"
    columns = ", ".join(age if name == "age_seconds" else name for name, _, _ in FRESHNESS_COLUMNS)
    db.execute(f"CREATE VIEW meta.freshness AS SELECT {columns} FROM meta._freshness")
    comment = "One row: how current this snapshot is."
    db.execute(sql_comment("VIEW", "meta.freshness", comment, _comments(FRESHNESS_COLUMNS)))


def _write_dictionary(db: duckdb.DuckDBPyConnection, views: Collection[str], *, exists: bool) -> None:
    declared = {(table.name, column.name): (column, table) for table in TABLES for column in table.columns}
    columns = db.execute(
        "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() WHERE database_name = 'lake'"
        " AND schema_name = 'main' AND NOT starts_with(table_name, '_') ORDER BY table_name, column_index"
    ).fetchall()
    rows = []
    for name, column_name, sql_type, comment in columns:
        arrow_type, is_key, nullable = ARROW_TYPES.get(sql_type, sql_type.lower()), False, True
        if (declaration := declared.get((name, column_name))) is not None:
            column, table = declaration
            arrow_type, is_key, nullable = column.arrow, column.name in table.key, column.nullable
        rows.append((name, column_name, str(arrow_type), comment, is_key, nullable, name in views))
    comment = "One row per column of the tables and views in main."
    _write_table(db, "meta.data_dictionary", comment, _DICTIONARY_COLUMNS, zip(*rows, strict=True), exists=exists)
