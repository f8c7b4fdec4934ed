"""What a catalog has beside the rows: the ledger's records in schema `meta`, its parts, its data dictionary."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec.structs import asdict

from pipeline.lake.catalog_images import IMAGE_COLUMNS, IMAGE_KEY, IMAGES_TABLE
from pipeline.lake.catalog_sql import (
    ARROW_TYPES,
    PARTS,
    PHYSICAL_SCHEMA,
    SUPERSEDED_VERSIONS,
    describe_format,
    list_columns,
)
from pipeline.lake.meta_tables import CATALOG_FORMAT, FRESHNESS_COLUMNS, META_TABLES, MetaTable
from schemas.references import find_reference
from schemas.tables import COMMIT_SEQ_COLUMN, TABLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pipeline.lake.catalog_sql import CatalogSpec
    from pipeline.lake.duckdb import TableWriter
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.meta_tables import MetaColumn
    from pipeline.lake.view_definitions import View

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
    ("type", "VARCHAR", "SQL type of the column."),
    ("comment", "VARCHAR", "Meaning of the column."),
    ("is_key", "BOOLEAN", "The column is part of the rows' key; `position` separates rows with equal keys."),
    (
        "refers_to",
        "VARCHAR",
        "Column of another table whose row this one names, as table.column. Join by file_id too where both have it.",
    ),
    ("is_nullable", "BOOLEAN", "The column can be NULL."),
    ("is_view", "BOOLEAN", "The column belongs to a view that is computed from the tables."),
)
_FRESHNESS_COLUMNS: Final = (*(column for column in FRESHNESS_COLUMNS if column[0] != "age_seconds"), CATALOG_FORMAT)
_FRESHNESS: Final = "meta._freshness"
_DICTIONARY: Final = "meta.data_dictionary"
_column_types: Final[dict[bytes, list[tuple[str, str, str]]]] = {}


def create_meta(writer: TableWriter) -> None:
    """Create what the functions of this module write, without rows."""
    writer.db.execute(f"CREATE SCHEMA {PHYSICAL_SCHEMA}")
    for name, comment, columns in (
        (SUPERSEDED_VERSIONS, "Superseded versions of files. Their rows do not count.", _SUPERSEDED_COLUMNS),
        (PARTS, "Parquet files of this snapshot, with their hashes.", _PART_COLUMNS),
        *((f"meta.{table.name}", table.comment, table.columns) for table in META_TABLES),
        (_FRESHNESS, "One row: the source of meta.freshness.", _FRESHNESS_COLUMNS),
        (_DICTIONARY, "One row per column of the tables and views in main.", _DICTIONARY_COLUMNS),
    ):
        writer.create(name, comment, columns)
    age = "epoch(now()) - epoch(watermark) AS age_seconds"
    selected = ", ".join(age if name == "age_seconds" else name for name, _, _ in FRESHNESS_COLUMNS)
    writer.db.execute(f"CREATE VIEW meta.freshness AS SELECT {selected} FROM {_FRESHNESS}")
    comments = [(name, comment) for name, _, comment in FRESHNESS_COLUMNS]
    writer.comment("VIEW", "meta.freshness", "One row: how current this snapshot is.", comments)


def write_superseded_versions(writer: TableWriter, ledger: Ledger) -> None:
    """Write the versions whose rows do not count; the queries of the tables read them."""
    _write_table(writer, SUPERSEDED_VERSIONS, _SUPERSEDED_COLUMNS, ledger.superseded_columns())


def write_meta(writer: TableWriter, ledger: Ledger, spec: CatalogSpec) -> None:
    """Write the tables of schema `meta` and the list of the parts; `write_dictionary` writes the data dictionary."""
    part_columns = [[getattr(part, name) for part in spec.parts] for name, _, _ in _PART_COLUMNS]
    _write_table(writer, PARTS, _PART_COLUMNS, part_columns)
    for meta_table in META_TABLES:
        _write_meta_table(writer, meta_table, ledger)
    _write_freshness(writer, ledger, spec)


def _write_table(
    writer: TableWriter, name: str, columns: Sequence[MetaColumn], values: Iterable[Sequence[Any]]
) -> None:
    """Fill a table; `values` has one sequence per column."""
    types = [ARROW_TYPES[sql_type] for _, sql_type, _ in columns]
    arrays = [pa.array(cells, arrow_type) for cells, arrow_type in zip(values, types, strict=True)]
    writer.fill(name, pa.table(arrays, names=[column for column, _, _ in columns]))


def _write_meta_table(writer: TableWriter, table: MetaTable, ledger: Ledger) -> None:
    rows = ledger.query(table.ledger_query)
    types = [sql_type for _, sql_type, _ in table.columns]
    values = [[_to_arrow_value(row[index], sql_type) for row in rows] for index, sql_type in enumerate(types)]
    _write_table(writer, f"meta.{table.name}", table.columns, values)


def _to_arrow_value(value: Any, sql_type: str) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return bool(value) if sql_type == "BOOLEAN" and value is not None else value


def _write_freshness(writer: TableWriter, ledger: Ledger, spec: CatalogSpec) -> None:
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
        CATALOG_FORMAT[0]: describe_format(),
    }
    _write_table(writer, _FRESHNESS, _FRESHNESS_COLUMNS, [[row[name]] for name, _, _ in _FRESHNESS_COLUMNS])


def write_dictionary(writer: TableWriter, views: Collection[View]) -> None:
    """Write the data dictionary."""
    declared = {(table.name, column.name): (column, table) for table in TABLES for column in table.columns}
    comments = {(table.name, column.name): column.comment for table in TABLES for column in list_columns(table)}
    comments |= {(view.name, name): comment for view in views for name, comment in view.columns}
    comments |= {(IMAGES_TABLE, name): comment for name, _, comment in IMAGE_COLUMNS}
    names = {view.name for view in views if view.sql}
    rows = []
    for name, column_name, sql_type in _list_column_types(writer, views):
        is_key, nullable = False, True
        if (declaration := declared.get((name, column_name))) is not None:
            column, table = declaration
            is_key, nullable = column.name in table.key, column.nullable
        elif name == IMAGES_TABLE:
            is_key = column_name in IMAGE_KEY
        comment, reference = comments.get((name, column_name)), find_reference(name, column_name)
        rows.append((name, column_name, sql_type, comment, is_key, reference, nullable, name in names))
    _write_table(writer, _DICTIONARY, _DICTIONARY_COLUMNS, zip(*rows, strict=True))


def _list_column_types(writer: TableWriter, views: Collection[View]) -> list[tuple[str, str, str]]:
    """Return the columns of schema main as (table, column, SQL type).

    DuckDB binds every view for it: 13 to 17 of the 200 ms of a publish. So the result is kept for equal views.
    """
    shapes = [column.definition for table in TABLES for column in list_columns(table)]
    queries = [(view.name, view.sql) for view in views]
    key = blake2b(repr([shapes, queries]).encode()).digest()
    if key not in _column_types:
        _column_types.clear()
        _column_types[key] = writer.db.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE database_name = 'lake'"
            " AND schema_name = 'main' ORDER BY table_name, column_index"
        ).fetchall()
    return _column_types[key]
