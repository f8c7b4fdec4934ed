"""What a catalog has beside the rows: records of the ledger, its parts and pictures, its data dictionary."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec.structs import asdict

from pipeline.lake.catalog_sql import (
    ARROW_TYPES,
    PARTS,
    PHYSICAL_SCHEMA,
    SUPERSEDED_VERSIONS,
    describe_format,
)
from pipeline.lake.duckdb import create_table, fill_table, write_comments
from pipeline.lake.image_store import iter_images
from pipeline.lake.meta_tables import CATALOG_FORMAT, FRESHNESS_COLUMNS, META_TABLES, MetaTable
from schemas.tables import COMMIT_SEQ_COLUMN, TABLES, find_reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb

    from pipeline.lake.catalog_sql import CatalogSpec
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.lake.meta_tables import MetaColumn

IMAGES_TABLE: Final = "images"
IMAGE_COLUMNS: Final = (
    ("file_id", "BIGINT", "The file; its row can be in deleted_files."),
    ("upload_id", "BIGINT", "The upload; see uploads.id."),
    ("kind", "VARCHAR", "image or thumbnail."),
    ("state", "VARCHAR", "stored, not_found, refused or failed."),
    ("sha256", "VARCHAR", "SHA-256 of the picture; equal pictures share one file."),
    ("bytes", "BIGINT", "Size of the picture."),
    ("mime", "VARCHAR", "Type of the picture, by its content."),
    ("width", "BIGINT", "Width in pixels; NULL if it was not decoded."),
    ("height", "BIGINT", "Height in pixels; NULL if it was not decoded."),
    ("taken_at", "TIMESTAMP", "Taken, as the camera wrote it (EXIF); without a zone it counts as UTC."),
    ("latitude", "DOUBLE", "Latitude that the camera wrote (EXIF), degrees."),
    ("longitude", "DOUBLE", "Longitude that the camera wrote (EXIF), degrees."),
    ("fetched_at", "TIMESTAMP", "Stored, or last tried (UTC)."),
    ("reason", "VARCHAR", "Why the picture is not stored."),
    ("path", "VARCHAR", "File of the picture, below the lake's folder."),
)
IMAGE_KEY: Final = ("file_id", "upload_id", "kind")
IMAGES_COMMENT: Final = "One row per picture of an upload: its image or thumbnail, stored or the reason why not."
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
_FRESHNESS_COLUMNS: Final = (
    *(column for column in FRESHNESS_COLUMNS if column[0] != "age_seconds"),
    CATALOG_FORMAT,
    (
        "properties",
        "VARCHAR",
        "For a ledger that is rebuilt: the lake's id, its service, its targets.",
    ),
)
_FRESHNESS: Final = "meta._freshness"
_DICTIONARY: Final = "meta.data_dictionary"


def create_meta(db: duckdb.DuckDBPyConnection) -> None:
    """Create what the functions of this module write, without rows."""
    db.execute(f"CREATE SCHEMA {PHYSICAL_SCHEMA}")
    for name, comment, columns in (
        (SUPERSEDED_VERSIONS, "Superseded versions of files. Their rows do not count.", _SUPERSEDED_COLUMNS),
        (PARTS, "Parquet files of this snapshot, with their hashes.", _PART_COLUMNS),
        *((f"meta.{table.name}", table.comment, table.columns) for table in META_TABLES),
        (_FRESHNESS, "One row: the source of meta.freshness.", _FRESHNESS_COLUMNS),
        (_DICTIONARY, "One row per column of the tables and views in main.", _DICTIONARY_COLUMNS),
    ):
        create_table(db, name, comment, columns)
    age = "epoch(now()) - epoch(watermark) AS age_seconds"
    selected = ", ".join(age if name == "age_seconds" else name for name, _, _ in FRESHNESS_COLUMNS)
    db.execute(f"CREATE VIEW meta.freshness AS SELECT {selected} FROM {_FRESHNESS}")
    comments = [(name, comment) for name, _, comment in FRESHNESS_COLUMNS]
    write_comments(db, "VIEW", "meta.freshness", "One row: how current this snapshot is.", comments)


def write_superseded_versions(db: duckdb.DuckDBPyConnection, ledger: Ledger) -> None:
    """Write the versions whose rows do not count; the queries of the tables read them."""
    _write_table(db, SUPERSEDED_VERSIONS, _SUPERSEDED_COLUMNS, ledger.superseded_columns())


def write_meta(db: duckdb.DuckDBPyConnection, ledger: Ledger, spec: CatalogSpec) -> None:
    """Write the tables of schema `meta` and the list of the parts; `write_dictionary` writes the data dictionary."""
    part_columns = [[getattr(part, name) for part in spec.parts] for name, _, _ in _PART_COLUMNS]
    _write_table(db, PARTS, _PART_COLUMNS, part_columns)
    for meta_table in META_TABLES:
        _write_meta_table(db, meta_table, ledger)
    _write_freshness(db, ledger, spec)


def _write_table(
    db: duckdb.DuckDBPyConnection, name: str, columns: Sequence[MetaColumn], values: Iterable[Sequence[Any]]
) -> None:
    fill_table(db, name, _build_table(columns, values))


def _build_table(columns: Sequence[MetaColumn], values: Iterable[Sequence[Any]]) -> pa.Table:
    """Return the rows of a table; `values` has one sequence per column."""
    types = [ARROW_TYPES[sql_type] for _, sql_type, _ in columns]
    arrays = [pa.array(cells, arrow_type) for cells, arrow_type in zip(values, types, strict=True)]
    return pa.table(arrays, names=[column for column, _, _ in columns])


def _write_meta_table(db: duckdb.DuckDBPyConnection, table: MetaTable, ledger: Ledger) -> None:
    rows = ledger.query(table.ledger_query)
    types = [sql_type for _, sql_type, _ in table.columns]
    values = [[_to_arrow_value(row[index], sql_type) for row in rows] for index, sql_type in enumerate(types)]
    _write_table(db, f"meta.{table.name}", table.columns, values)


def _to_arrow_value(value: Any, sql_type: str) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return bool(value) if sql_type == "BOOLEAN" and value is not None else value


def _write_freshness(db: duckdb.DuckDBPyConnection, ledger: Ledger, spec: CatalogSpec) -> None:
    run, properties = ledger.last_run(), ledger.properties
    row: dict[str, Any] = {
        **asdict(spec.snapshot),
        "deleted_files": ledger.count_deleted_files(),
        "rejects": sum(ledger.count_rejects().values()),
        "last_run_id": run.run_id if run else None,
        "last_run_state": run.state if run else None,
        "last_run_ended_at": run.ended_at if run else None,
        "last_verify_at": properties.last_verify_at,
        "texts_from": properties.texts_from,
        CATALOG_FORMAT[0]: describe_format(),
        "properties": json.dumps(ledger.kept_properties()),
    }
    _write_table(db, _FRESHNESS, _FRESHNESS_COLUMNS, [[row[name]] for name, _, _ in _FRESHNESS_COLUMNS])


def write_dictionary(db: duckdb.DuckDBPyConnection) -> None:
    """Write the data dictionary, from the columns that the catalog lists. DuckDB binds every view for it: 15 ms."""
    keys = {(table.name, name) for table in TABLES for name in table.key}
    keys |= {(IMAGES_TABLE, name) for name in IMAGE_KEY}
    columns = db.execute(
        "SELECT table_name, column_name, data_type, comment, is_nullable, table_name IN (SELECT view_name FROM"
        " duckdb_views() WHERE NOT internal) FROM duckdb_columns() WHERE database_name = 'lake'"
        " AND schema_name = 'main' ORDER BY table_name, column_index"
    ).fetchall()
    rows = [
        (table, name, sql_type, comment, (table, name) in keys, find_reference(table, name), is_nullable, is_view)
        for table, name, sql_type, comment, is_nullable, is_view in columns
    ]
    _write_table(db, _DICTIONARY, _DICTIONARY_COLUMNS, zip(*rows, strict=True))


def write_image_table(db: duckdb.DuckDBPyConnection, ledger: LedgerQueries, *, since_change: int = 0) -> None:
    """Write the rows of pictures that changed after a change. They are not versioned: a snapshot has those of then."""
    for records in iter_images(ledger, since_change=since_change):
        values = [[getattr(record, name) for record in records] for name, _, _ in IMAGE_COLUMNS]
        db.register("incoming", _build_table(IMAGE_COLUMNS, values))
        if since_change:
            keys = ", ".join(IMAGE_KEY)
            db.execute(f"DELETE FROM main.{IMAGES_TABLE} WHERE ({keys}) IN (SELECT ({keys}) FROM incoming)")
        db.execute(f"INSERT INTO main.{IMAGES_TABLE} FROM incoming")
        db.unregister("incoming")
