"""Catalog: the lake as analysts see it, one small DuckDB file that is replaced and never written to.

Its views filter superseded rows when they are read (merge-on-read). They name the exact parts by absolute path, so
a reader who has an older catalog open keeps a complete, consistent snapshot.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from pipeline.lake.duckdb import STORAGE_VERSION, bind_empty_read_parquet
from pipeline.lake.duckdb_errors import translate_duckdb_errors
from pipeline.lake.layout import LakeLayout, translate_os_errors, write_read_only
from pipeline.lake.meta_tables import FRESHNESS_COLUMNS, META_TABLES, MetaTable
from pipeline.lake.parts import RAW_TABLE, empty_part, sha256_file
from pipeline.lake.rebuild import embed_ledger
from pipeline.lake.sql import UTC_NOW_SQL, sql_comment, sql_literal, sql_read_parquet
from pipeline.lake.views import write_views
from schemas import value_types
from schemas.tables import COMMIT_SEQ_COLUMN, DELETED_FILES, FILES, RAW, TABLES, WORKFLOW_DEFINITIONS, Table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from pipeline.lake.ledger import Ledger
    from pipeline.lake.meta_tables import MetaColumn
    from pipeline.lake.models import Part, SnapshotRecord
    from schemas.tables import Column

_CLEAN_TO_DIRTY_RATIO: Final = 0.5  # rows of clean parts to rows of dirty ones, up to which all are filtered
_ARROW: Final = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
}
_DUCKDB: Final = {arrow: name for name, arrow in _ARROW.items()} | {pa.binary(): "BLOB"}
_SUPERSEDED_COLUMNS: Final = (
    ("file_id", "BIGINT", "The file."),
    (COMMIT_SEQ_COLUMN, "BIGINT", "Commit that wrote the version."),
)
_FILE_VERSION_COLUMNS: Final = (*_SUPERSEDED_COLUMNS, ("deleted", "BOOLEAN", "The file is in deleted_files."))
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
_SIGHT_COLUMNS: Final = (
    ("first_seen_at", "_fetched_at", "First fetch of a file with a run under this version (UTC)."),
    (
        "last_seen_at",
        "greatest(_fetched_at, sight.last_fetched_at)",
        "Last fetch of a file that still has a run under this version (UTC).",
    ),
)
_LAST_SIGHTS_SQL: Final = (
    " AS definition LEFT JOIN (SELECT _definition_hash, max(_fetched_at) AS last_fetched_at FROM main.workflow_runs"
    " GROUP BY _definition_hash) AS sight USING (_definition_hash)"
)


@dataclass(frozen=True, slots=True)
class CatalogSpec:
    """Contents of a catalog: the snapshot that it shows, and the parts, which readers find below `reader_root`.

    `has_instances`: several instances share an id, and `file_id` is the instance's.
    """

    snapshot: SnapshotRecord
    parts: Sequence[Part]
    parts_with_superseded_rows: frozenset[str]
    reader_root: Path
    has_instances: bool = False

    def parts_of(self, table_name: str) -> list[Part]:
        """Return the parts of one table."""
        return [part for part in self.parts if part.table_name == table_name]


def publish(layout: LakeLayout, ledger: Ledger, spec: CatalogSpec) -> str:
    """Write the catalog as a snapshot, then replace the published catalog by a copy. Return the file's SHA-256."""
    snapshot = layout.snapshot_path(spec.snapshot.snapshot)
    with translate_os_errors(snapshot):
        snapshot.unlink(missing_ok=True)  # of a publish that was killed before the ledger recorded it
    with write_read_only(snapshot) as temp, translate_duckdb_errors(str(snapshot)):
        _build(temp, layout, ledger, spec)
    with write_read_only(layout.catalog) as temp:
        # A copy, not a link: a read-write session on the catalog must not change the snapshot.
        shutil.copyfile(snapshot, temp)
        remove_stale_wal(layout)
    # Again: a session that opened the former catalog in between may have left another log.
    remove_stale_wal(layout)
    return sha256_file(snapshot)


def refresh(layout: LakeLayout, ledger: Ledger, spec: CatalogSpec) -> None:
    """Replace the published catalog by one with the ledger's present records. The snapshot it shows stays the same."""
    with write_read_only(layout.catalog) as temp:
        with translate_duckdb_errors(str(layout.catalog)):
            _build(temp, layout, ledger, spec)
        ledger.set_properties(catalog_sha256=sha256_file(temp))  # before the file has its name: a check knows both
        remove_stale_wal(layout)
    remove_stale_wal(layout)


def remove_stale_wal(layout: LakeLayout) -> None:
    """Remove the log of a killed read-write session. DuckDB would replay it into the next catalog, or refuse that."""
    with translate_os_errors(layout.catalog):
        layout.catalog.with_name(f"{layout.catalog.name}.wal").unlink(missing_ok=True)


def _build(path: Path, layout: LakeLayout, ledger: Ledger, spec: CatalogSpec) -> None:
    with duckdb.connect(":memory:") as db:
        db.execute("SET threads = 1")
        db.execute(f"ATTACH {sql_literal(str(path))} AS lake (STORAGE_VERSION '{STORAGE_VERSION}')")
        db.execute("USE lake")
        db.execute("BEGIN")
        db.execute("CREATE SCHEMA meta")
        db.execute(f"CREATE MACRO main.utc_now() AS ({UTC_NOW_SQL})")
        comment = "Superseded versions of files. Their rows do not count, in any table."
        _write_table(db, "main._superseded_versions", comment, _SUPERSEDED_COLUMNS, ledger.superseded_columns())
        _bind_to_schema(db, RAW)
        views = write_views(db, layout, ledger, _raw_documents_sql(spec))
        for table in reversed(TABLES):  # workflow_definitions needs workflow_runs, which is still a placeholder then
            _bind_to_schema(db, table.arrow)
            _write_view(db, layout, spec, table)
        _bind_to_schema(db, FILES.arrow)
        _write_file_version(db, layout, spec)
        part_columns = [[getattr(part, name) for part in spec.parts] for name, _, _ in _PART_COLUMNS]
        comment = "Parquet files of this snapshot, with their hashes."
        _write_table(db, "main._parts", comment, _PART_COLUMNS, part_columns)
        for meta_table in META_TABLES:
            _write_meta_table(db, meta_table, ledger)
        _write_freshness(db, spec, ledger)
        _write_dictionary(db, views)
        embed_ledger(db, ledger)
        db.execute("COMMIT")
        db.execute("USE memory")
        db.execute("DETACH lake")


def _write_table(
    db: duckdb.DuckDBPyConnection,
    name: str,
    comment: str,
    columns: Sequence[MetaColumn],
    values: Iterable[Sequence[Any]],
) -> None:
    """Create a table with its comments; `values` has one sequence per column."""
    types = [_ARROW[sql_type] for _, sql_type, _ in columns]
    arrays = [pa.array(cells, arrow_type) for cells, arrow_type in zip(values, types, strict=True)]
    db.register("incoming", pa.table(arrays, names=[column for column, _, _ in columns]))
    db.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
    db.unregister("incoming")
    db.execute(sql_comment("TABLE", name, comment, _comments(columns)))


def _comments(columns: Iterable[MetaColumn]) -> list[tuple[str, str]]:
    return [(name, comment) for name, _, comment in columns]


# Views of `main`


def _bind_to_schema(db: duckdb.DuckDBPyConnection, schema: pa.Schema) -> None:
    bind_empty_read_parquet(db, {field.name: _DUCKDB[field.type] for field in schema})


def _write_view(db: duckdb.DuckDBPyConnection, layout: LakeLayout, spec: CatalogSpec, table: Table) -> None:
    columns = _select_columns(spec, table)
    selected = [_column_sql(column.name, column.kind) for column in columns]
    comments = [(column.name, column.comment) for column in columns]
    source = _live_rows_sql(layout, spec, table)
    if table.name == WORKFLOW_DEFINITIONS.name:
        source += _LAST_SIGHTS_SQL
        selected += [f"{sql} AS {name}" for name, sql, _ in _SIGHT_COLUMNS]
        comments += [(name, comment) for name, _, comment in _SIGHT_COLUMNS]
    name = table.qualified_name
    db.execute(f"DROP TABLE {name}")  # the placeholder
    db.execute(f"CREATE VIEW {name} AS SELECT {', '.join(selected)} FROM {source}")
    db.execute(sql_comment("VIEW", name, table.comment, comments))


def _select_columns(spec: CatalogSpec, table: Table) -> list[Column]:
    """Return the columns of a table but the instance's number in a lake without instances."""
    hidden = "instance_file_id" if table.name == FILES.name and not spec.has_instances else ""
    return [column for column in table.columns if column.name != hidden]


def _column_sql(name: str, value_type: value_types.ValueType) -> str:
    return f'TRY_CAST("{name}" AS JSON) AS "{name}"' if value_type is value_types.JSON else f'"{name}"'


def _live_rows_sql(layout: LakeLayout, spec: CatalogSpec, table: Table) -> str:
    """Return the rows of a table that belong to current versions of files."""
    parts = spec.parts_of(table.name)
    with_superseded = spec.parts_with_superseded_rows if table.is_per_file else frozenset()
    dirty = [part for part in parts if part.name in with_superseded]
    clean = [part for part in parts if part.name not in with_superseded]
    # A union makes joins slow. To filter a few rows without need is cheaper.
    if dirty and sum(part.row_count for part in clean) <= _CLEAN_TO_DIRTY_RATIO * sum(part.row_count for part in dirty):
        clean, dirty = [], parts
    sources = [f"SELECT * FROM {_read_parquet_sql(layout, spec, table.name, clean)}"] if clean or not dirty else []
    if dirty:
        sources.append(
            f"SELECT part.* FROM {_read_parquet_sql(layout, spec, table.name, dirty)} AS part"
            " ANTI JOIN main._superseded_versions AS superseded ON part.file_id = superseded.file_id"
            f" AND part.{COMMIT_SEQ_COLUMN} = superseded.{COMMIT_SEQ_COLUMN}"
        )
    return "(" + " UNION ALL BY NAME ".join(sources) + ")"


def _read_parquet_sql(layout: LakeLayout, spec: CatalogSpec, table_name: str, parts: Sequence[Part]) -> str:
    # The empty part is first: it declares every column, and the list must not be empty.
    names = [layout.part_name(empty_part(layout, table_name)), *(part.name for part in parts)]
    return sql_read_parquet(spec.reader_root / name for name in names)


def _raw_documents_sql(spec: CatalogSpec) -> str:
    if parts := spec.parts_of(RAW_TABLE):
        return sql_read_parquet(spec.reader_root / part.name for part in parts)
    return f"(SELECT {', '.join(f'NULL::{_DUCKDB[field.type]} AS {field.name}' for field in RAW)} WHERE false)"


def _write_file_version(db: duckdb.DuckDBPyConnection, layout: LakeLayout, spec: CatalogSpec) -> None:
    files, deleted = (_live_rows_sql(layout, spec, table) for table in (FILES, DELETED_FILES))
    db.execute(
        f"CREATE VIEW main._file_version AS SELECT file_id, {COMMIT_SEQ_COLUMN}, false AS deleted FROM {files}"
        f" UNION ALL SELECT file_id, {COMMIT_SEQ_COLUMN}, true FROM {deleted}"
    )
    comment = "Current version of each file. Its rows count in every table."
    db.execute(sql_comment("VIEW", "main._file_version", comment, _comments(_FILE_VERSION_COLUMNS)))


# Schema `meta`


def _write_meta_table(db: duckdb.DuckDBPyConnection, table: MetaTable, ledger: Ledger) -> None:
    rows = ledger.query(table.ledger_query)
    types = [sql_type for _, sql_type, _ in table.columns]
    values = [[_to_arrow_value(row[index], sql_type) for row in rows] for index, sql_type in enumerate(types)]
    _write_table(db, f"meta.{table.name}", table.comment, table.columns, values)


def _to_arrow_value(value: Any, sql_type: str) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return bool(value) if sql_type == "BOOLEAN" and value is not None else value


def _write_freshness(db: duckdb.DuckDBPyConnection, spec: CatalogSpec, ledger: Ledger) -> None:
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
    _write_table(db, "meta._freshness", "One row: the source of meta.freshness.", stored, values)
    age = "epoch(now()) - epoch(watermark) AS age_seconds"
    columns = ", ".join(age if name == "age_seconds" else name for name, _, _ in FRESHNESS_COLUMNS)
    db.execute(f"CREATE VIEW meta.freshness AS SELECT {columns} FROM meta._freshness")
    comment = "One row: how current this snapshot is."
    db.execute(sql_comment("VIEW", "meta.freshness", comment, _comments(FRESHNESS_COLUMNS)))


def _write_dictionary(db: duckdb.DuckDBPyConnection, views: Collection[str]) -> None:
    declared = {(table.name, column.name): (column, table) for table in TABLES for column in table.columns}
    columns = db.execute(
        "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() WHERE database_name = 'lake'"
        " AND schema_name = 'main' AND NOT starts_with(table_name, '_') ORDER BY table_name, column_index"
    ).fetchall()
    rows = []
    for name, column_name, sql_type, comment in columns:
        arrow_type, is_key, nullable = _ARROW.get(sql_type, sql_type.lower()), False, True
        if (declaration := declared.get((name, column_name))) is not None:
            column, table = declaration
            arrow_type, is_key, nullable = column.arrow, column.name in table.key, column.nullable
        rows.append((name, column_name, str(arrow_type), comment, is_key, nullable, name in views))
    comment = "One row per column of the tables and views in main."
    _write_table(db, "meta.data_dictionary", comment, _DICTIONARY_COLUMNS, zip(*rows, strict=True))
