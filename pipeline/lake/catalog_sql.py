"""Contents of a catalog, and the SQL that reads the current rows of a table from its parts.

Rows of superseded versions stay in the parts until a compaction. They are filtered when a part is read.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from pipeline.errors import LakeCorruptedError
from pipeline.lake.meta_tables import META_TABLES
from pipeline.lake.models import KEPT_PROPERTIES, LakeProperties, Part, SnapshotRecord
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.sql import sql_identifier, sql_read_parquet
from pipeline.version import __version__
from schemas import value_types
from schemas.tables import BY_NAME, COMMIT_SEQ_COLUMN, RAW, TABLES, WORKFLOW_DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    import duckdb

    from pipeline.lake.layout import LakeLayout
    from schemas.tables import Column, Table

PHYSICAL_SCHEMA: Final = "physical"
"""Tables that scanlake keeps for itself: tools list the tables of `main` first, so it has only the data."""
SUPERSEDED_VERSIONS: Final = f"{PHYSICAL_SCHEMA}.superseded_versions"
PARTS: Final = f"{PHYSICAL_SCHEMA}.parts"
PART_COLUMNS: Final = Part.__struct_fields__
CHANGED_FILES: Final = "changed_file"
"""Temporary table with the `file_id`s whose rows are replaced."""
_FORMAT: Final = 4
"""Raise it when a catalog is built with other rows of the same parts: then no older catalog is updated."""
_SIGHTS: Final = (
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
ARROW_TYPES: Final = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
}
"""Arrow type of each SQL type."""
_SQL_TYPES: Final = {arrow: name for name, arrow in ARROW_TYPES.items()} | {pa.binary(): "BLOB"}


class CatalogSpec(Struct, frozen=True):
    """Contents of a catalog: the snapshot that it shows, and the parts."""

    snapshot: SnapshotRecord
    parts: Sequence[Part]

    def count_rows(self, *, since_seq: int) -> int:
        """Return the number of rows in the parts of tables that came after a commit."""
        return sum(
            part.row_count for part in self.parts if part.table_name != RAW_TABLE and part.last_commit_seq > since_seq
        )

    def parts_of(self, table_name: str) -> list[Part]:
        """Return the parts of one table."""
        return [part for part in self.parts if part.table_name == table_name]


def read_spec(db: duckdb.DuckDBPyConnection) -> CatalogSpec:
    """Return the contents of an open catalog. Raises `duckdb.Error`."""
    row = db.execute(
        "SELECT snapshot, epoch_us(published_at), (SELECT any_value(run_id) FROM meta.snapshots WHERE snapshot ="
        " freshness.snapshot), complete, 0, files, epoch_us(watermark) FROM meta._freshness AS freshness"
    ).fetchall()[0]
    return CatalogSpec(SnapshotRecord(*row), read_parts(db))


def read_kept_properties(db: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Return the JSON of the lake's properties that an open catalog has, by name.

    Raises `duckdb.Error`, and `LakeCorruptedError` for what scanlake has not written.
    """
    ((text,),) = db.execute("SELECT properties FROM meta._freshness").fetchall()
    try:
        stored = msgspec.json.decode(text or "", type=dict[str, str])
    except (msgspec.DecodeError, UnicodeError):
        raise LakeCorruptedError("The catalog has properties that scanlake has not written.") from None
    properties = {name: value for name, value in stored.items() if name in KEPT_PROPERTIES}
    LakeProperties.from_rows(properties)
    return properties


def read_parts(db: duckdb.DuckDBPyConnection) -> list[Part]:
    """Return the parts that an open catalog names. Raises `duckdb.Error`."""
    return [Part(*row) for row in db.execute(f"SELECT {', '.join(PART_COLUMNS)} FROM {PARTS}").fetchall()]


class CatalogColumn(Struct, frozen=True):
    """A column as a catalog shows it: SQL type, comment, and the expression that reads it from the parts."""

    name: str
    sql_type: str
    comment: str
    expression: str
    nullable: bool = True

    @property
    def definition(self) -> str:
        """The column as an item of CREATE TABLE."""
        return f"{sql_identifier(self.name)} {self.sql_type}{'' if self.nullable else ' NOT NULL'}"

    @property
    def selection(self) -> str:
        """The column as an item of SELECT."""
        return f"{self.expression} AS {sql_identifier(self.name)}"


def list_columns(table: Table) -> list[CatalogColumn]:
    """Return the columns of a table, in order."""
    columns = [
        CatalogColumn(column.name, column.kind.sql, column.comment, _expression(column), column.nullable)
        for column in table.columns
    ]
    if table.name == WORKFLOW_DEFINITIONS.name:
        columns += [CatalogColumn(name, "TIMESTAMP", comment, sql) for name, sql, comment in _SIGHTS]
    return columns


def describe_format() -> str:
    """Return a hash of the tables' columns. A catalog of another format is not updated, but built again."""
    shapes = {table.qualified_name: [column.definition for column in list_columns(table)] for table in TABLES}
    return blake2b(repr([_FORMAT, __version__, shapes, META_TABLES]).encode(), digest_size=8).hexdigest()


def _expression(column: Column) -> str:
    name = sql_identifier(column.name)
    return f"TRY_CAST({name} AS JSON)" if column.kind is value_types.JSON else name


def create_empty_tables(db: duckdb.DuckDBPyConnection) -> None:
    """Create every table of the lake without rows, and the schemas of the tables."""
    db.execute("CREATE SCHEMA meta")
    for table in TABLES:
        columns = ", ".join(column.definition for column in list_columns(table))
        db.execute(f"CREATE TABLE {table.qualified_name} ({columns})")


def select_rows_sql(layout: LakeLayout, spec: CatalogSpec, table: Table) -> str:
    """Return the query for the current rows of a table, read from its parts."""
    source = _read_parts_sql(layout, table.name, spec.parts_of(table.name))
    if table.is_per_file:
        source = f"({_filter_superseded_sql(source)})"
    if table.name == WORKFLOW_DEFINITIONS.name:
        source += _LAST_SIGHTS_SQL
    return f"SELECT {', '.join(column.selection for column in list_columns(table))} FROM {source}"


def _filter_superseded_sql(source: str) -> str:
    """Return the query for the rows of `source` that no later version supersedes."""
    return (
        f"SELECT part.* FROM {source} AS part"
        f" ANTI JOIN {SUPERSEDED_VERSIONS} AS superseded ON part.file_id = superseded.file_id"
        f" AND part.{COMMIT_SEQ_COLUMN} = superseded.{COMMIT_SEQ_COLUMN}"
    )


def select_new_rows_sql(layout: LakeLayout, spec: CatalogSpec, table: Table, *, since_seq: int) -> str:
    """Return the query for the current rows of a table whose files' versions came after a commit."""
    parts = [part for part in spec.parts_of(table.name) if part.last_commit_seq > since_seq]
    source = f"(SELECT * FROM {_read_parts_sql(layout, table.name, parts)}"
    source += f" WHERE {COMMIT_SEQ_COLUMN} > {since_seq})"
    selected = ", ".join(column.selection for column in list_columns(table))
    return f"SELECT {selected} FROM ({_filter_superseded_sql(source)})"


def select_changed_files_sql(layout: LakeLayout, spec: CatalogSpec, *, since_seq: int) -> str:
    """Return the query for the ids of the files that were added, changed, deleted or removed after a commit."""
    documents = select_documents_sql(layout, spec, since_seq=since_seq)
    return f"SELECT DISTINCT file_id FROM {documents} WHERE {COMMIT_SEQ_COLUMN} > {since_seq}"


def _read_parts_sql(layout: LakeLayout, table_name: str, parts: Sequence[Part]) -> str:
    return read_parts_sql(BY_NAME[table_name].arrow, [layout.part_path(part.name) for part in parts])


def read_parts_sql(schema: pa.Schema, paths: Collection[Path]) -> str:
    """Return the SQL source of the rows in some parts, with every column of `schema`, also without parts."""
    # Without the first query the columns that a later version has added would be missing.
    columns = ", ".join(f"NULL::{_SQL_TYPES[field.type]} AS {sql_identifier(field.name)}" for field in schema)
    rows = f" UNION ALL BY NAME FROM {sql_read_parquet(paths)}" if paths else ""
    return f"(SELECT {columns} WHERE false{rows})"


def select_documents_sql(layout: LakeLayout, spec: CatalogSpec, *, since_seq: int = 0) -> str:
    """Return the SQL source of the raw documents in parts with later commits than one."""
    parts = [part for part in spec.parts_of(RAW_TABLE) if part.last_commit_seq > since_seq]
    return read_parts_sql(RAW, [layout.part_path(part.name) for part in parts])
