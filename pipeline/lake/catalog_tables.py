"""The published catalog: one file with the rows themselves, which any DuckDB client opens from anywhere.

It is written as a whole, or as a copy of the last one to which the changes since then are applied. Either way the
result is a new file, so a reader keeps the catalog that it has open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.lake.catalog_meta import (
    IMAGE_COLUMNS,
    IMAGES_COMMENT,
    IMAGES_TABLE,
    create_meta,
    write_dictionary,
    write_image_table,
    write_meta,
    write_superseded_versions,
)
from pipeline.lake.catalog_sql import (
    CHANGED_FILES,
    create_empty_tables,
    describe_format,
    list_columns,
    select_changed_files_sql,
    select_new_rows_sql,
    select_rows_sql,
)
from pipeline.lake.duckdb import (
    BUILD_MEMORY_LIMIT,
    TableWriter,
    create_database,
    fill_database,
    split_sorted_query,
    update_database,
)
from pipeline.lake.duckdb_files import read_database
from pipeline.lake.history import create_history, write_history
from pipeline.lake.image_records import last_image_change
from pipeline.lake.models import DeltaBase
from pipeline.lake.parts import estimate_memory
from pipeline.lake.sql import sql_identifier
from pipeline.lake.views import FIXED_VIEWS, list_wide_views, write_views
from schemas.tables import DELETED_FILES, FILES, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import duckdb

    from pipeline.lake.catalog_sql import CatalogColumn, CatalogSpec
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from schemas.tables import Table

_MAX_ROWS_IN_PLACE: Final = 500_000  # of one table: they are compared with the former ones, in temporary tables
_MIN_ROWS_IN_PLACE: Final = 100_000  # of the catalog: below, deleted rows slow no query down, and this takes 0.1 s
_MAX_MERGED_BYTES: Final = 4 * 1024**2  # of a catalog whose updates merge row groups: it stays small of itself
_COMMON_RATIO: Final = 0.5  # of the pairs: a column that differs in so many is updated in all, together with others
_empty_catalogs: Final[dict[str, tuple[bytes, DeltaBase]]] = {}


class OutdatedCatalogError(Exception):
    """An updated catalog has not the files that the ledger has; it must be built from the parts."""


def build_tables(
    path: Path, layout: LakeLayout, ledger: Ledger, spec: CatalogSpec, *, memory_limit: str = BUILD_MEMORY_LIMIT
) -> DeltaBase:
    """Write a catalog to the new file `path`, from the parts."""
    empty = _create_empty(path, layout)
    with fill_database(path, spill=layout.spill_dir, memory_limit=memory_limit) as db:
        writer = TableWriter(db)
        write_superseded_versions(writer, ledger)
        # In their order: the definitions of workflows depend on the runs.
        rows = sum(_insert_sorted(db, layout, spec, table) for table in TABLES if spec.parts_of(table.name))
        base = _write_records(writer, layout, ledger, spec, empty)
    return {**base, "built_rows": rows, "built_bytes": path.stat().st_size}


def update_tables(path: Path, layout: LakeLayout, ledger: Ledger, spec: CatalogSpec, base: DeltaBase) -> DeltaBase:
    """Apply the commits since `base` to `path`, a copy of it. Raises `OutdatedCatalogError`."""
    since_seq = base["commit_seq"]
    keeps_row_groups = path.stat().st_size > _MAX_MERGED_BYTES
    with update_database(path, spill=layout.spill_dir, keeps_row_groups=keeps_row_groups) as db:
        writer = TableWriter(db)
        write_superseded_versions(writer, ledger)
        changed = select_changed_files_sql(layout, spec, since_seq=since_seq)
        db.execute(f"CREATE TEMP TABLE {CHANGED_FILES} AS {changed}")
        in_place = base["built_rows"] >= _MIN_ROWS_IN_PLACE
        rows = sum(_replace_rows(db, layout, spec, table, since_seq=since_seq, in_place=in_place) for table in TABLES)
        for table, files in ((FILES, spec.snapshot.files), (DELETED_FILES, ledger.count_deleted_files())):
            if db.execute(f"SELECT count(*) FROM {table.qualified_name}").fetchall() != [(files,)]:
                raise OutdatedCatalogError(f"{table.name} has not {files:,} rows")
        updated = _write_records(writer, layout, ledger, spec, base)
    return {**updated, "replaced_rows": base["replaced_rows"] + rows}


def _create_empty(path: Path, layout: LakeLayout) -> DeltaBase:
    """Write a catalog without rows to the new file `path`. Return what an update has to know of it.

    A process makes it once and keeps it: the comments of all columns take most of the time of a small publish.
    """
    catalog_format = describe_format()
    if catalog_format in _empty_catalogs:
        content, base = _empty_catalogs[catalog_format]
        path.write_bytes(content)
        return base
    with create_database(path, spill=layout.spill_dir) as db:
        writer = TableWriter(db)
        create_empty_tables(db)
        for table in TABLES:
            comments = [(column.name, column.comment) for column in list_columns(table)]
            writer.comment("TABLE", table.qualified_name, table.comment, comments)
        create_history(writer)
        writer.create(f"main.{IMAGES_TABLE}", IMAGES_COMMENT, IMAGE_COLUMNS)
        create_meta(writer)
        views = write_views(writer, FIXED_VIEWS, {})
    base = DeltaBase(
        commit_seq=0,
        format=catalog_format,
        views=views,
        built_rows=0,
        built_bytes=0,
        replaced_rows=0,
    )
    _empty_catalogs[catalog_format] = path.read_bytes(), base
    return base


def count_rows(path: Path) -> int:
    """Return the number of rows in the tables of a catalog."""
    counts = " + ".join(f"(SELECT count(*) FROM {table.qualified_name})" for table in TABLES)
    with read_database(path) as db:
        rows: int = db.execute(f"SELECT {counts}").fetchall()[0][0]
    return rows


def _insert_sorted(db: duckdb.DuckDBPyConnection, layout: LakeLayout, spec: CatalogSpec, table: Table) -> int:
    size = sum(estimate_memory(layout.part_path(part.name)) for part in spec.parts_of(table.name))
    source = select_rows_sql(layout, spec, table)
    return sum(_insert(db, table, query) for query in split_sorted_query(db, source, table, size=size))


def _replace_rows(
    db: duckdb.DuckDBPyConnection,
    layout: LakeLayout,
    spec: CatalogSpec,
    table: Table,
    *,
    since_seq: int,
    in_place: bool,
) -> int:
    """Replace the rows of the changed files. Return how many rows were deleted or inserted."""
    if not table.is_per_file:  # few rows, and each depends on files that it does not name
        return _delete(db, table, "") + _insert(db, table, select_rows_sql(layout, spec, table))
    condition = f"WHERE file_id IN (SELECT file_id FROM {CHANGED_FILES})"
    rows = sum(part.row_count for part in spec.parts_of(table.name) if part.last_commit_seq > since_seq)
    if not rows:
        return _delete(db, table, condition)
    new_rows = select_new_rows_sql(layout, spec, table, since_seq=since_seq)
    if in_place and rows <= _MAX_ROWS_IN_PLACE:
        return update_rows(db, table, list_columns(table), new_rows)
    return _delete(db, table, condition) + _insert(db, table, new_rows)


def _delete(db: duckdb.DuckDBPyConnection, table: Table, condition: str) -> int:
    deleted: int = db.execute(f"DELETE FROM {table.qualified_name} {condition}").fetchall()[0][0]
    return deleted


def _insert(db: duckdb.DuckDBPyConnection, table: Table, query: str) -> int:
    inserted: int = db.execute(f"INSERT INTO {table.qualified_name} {query}").fetchall()[0][0]
    return inserted


def _write_records(
    writer: TableWriter, layout: LakeLayout, ledger: Ledger, spec: CatalogSpec, base: DeltaBase
) -> DeltaBase:
    """Write all but the rows of files. Return what the next update has to know of the catalog."""
    write_history(writer, layout, spec, since_seq=base["commit_seq"])
    image_change = last_image_change(ledger)
    write_image_table(writer, ledger, since_change=base.get("image_change", 0))
    views = {**base["views"], **write_views(writer, list_wide_views(writer.db), base["views"])}
    if views != base["views"]:  # always in a new catalog: an empty one has not the wide views
        write_dictionary(writer)
    write_meta(writer, ledger, spec)
    return {**base, "commit_seq": spec.snapshot.commit_seq, "views": views, "image_change": image_change}


# Updates in place


def update_rows(db: duckdb.DuckDBPyConnection, table: Table, columns: Sequence[CatalogColumn], new_rows: str) -> int:
    """Replace the rows of the changed files by those of the query `new_rows`, writing only the values that differ.

    DuckDB reads a row group with deleted rows a tenth to a quarter more slowly, and files that change at random leave
    some in every one. A row whose values were updated is read as if it had been written so, and keeps its place.
    A former row is paired with a new one of the same key; other rows are deleted and inserted. Return how many.
    """
    name, keys = table.qualified_name, [sql_identifier(key) for key in table.key]
    order = "position" if "position" in table.arrow.names else keys[0]
    number = f"row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY {order}) AS _number"
    changed = f"file_id IN (SELECT file_id FROM {CHANGED_FILES})"
    db.execute(
        f"CREATE OR REPLACE TEMP TABLE former_row AS SELECT rowid AS _row, {number}, * FROM {name} WHERE {changed}"
    )
    db.execute(f"CREATE OR REPLACE TEMP TABLE new_row AS SELECT {number}, * FROM ({new_rows})")
    same_key = " AND ".join(f"former.{key} IS NOT DISTINCT FROM new.{key}" for key in [*keys, "_number"])
    values = [column for column in columns if column.name not in table.key]
    flags = "".join(f", {_differs(column)} AS {_flag(column)}" for column in values)
    db.execute(
        f"CREATE OR REPLACE TEMP TABLE pair AS SELECT former._row, new.*{flags}"
        f" FROM former_row AS former JOIN new_row AS new ON {same_key}"
    )
    deleted, inserted = _update_pairs(db, name, values)
    if deleted:
        unpaired = "SELECT _row FROM former_row ANTI JOIN pair USING (_row)"
        db.execute(f"DELETE FROM {name} WHERE rowid IN ({unpaired})")
    if inserted:
        selected = ", ".join(f"new.{sql_identifier(column.name)}" for column in columns)
        unpaired = f"new_row AS new ANTI JOIN pair AS former ON {same_key}"
        db.execute(f"INSERT INTO {name} SELECT {selected} FROM {unpaired} ORDER BY new.file_id, new.{order}")
    return deleted + inserted


def _differs(column: CatalogColumn) -> str:
    name = sql_identifier(column.name)
    return f"former.{name} IS DISTINCT FROM new.{name}"


def _flag(column: CatalogColumn) -> str:
    return sql_identifier(f"_differs_{column.name}")


def _update_pairs(db: duckdb.DuckDBPyConnection, name: str, columns: Sequence[CatalogColumn]) -> tuple[int, int]:
    """Update each column where it differs. DuckDB writes a column's whole row group for one value.

    Return how many former rows, and how many new ones, have no pair.
    """
    counts = ["(SELECT count(*) FROM former_row)", "(SELECT count(*) FROM new_row)", "count(*)"]
    counts += [f"count(*) FILTER ({_flag(column)})" for column in columns]
    ((former, new, pairs, *differing),) = db.execute(f"SELECT {', '.join(counts)} FROM pair").fetchall()
    to_update = [(column, count) for column, count in zip(columns, differing, strict=True) if count]
    if common := [column for column, count in to_update if count >= _COMMON_RATIO * pairs]:
        db.execute(_update_sql(name, common))
    for column, count in to_update:
        if count < _COMMON_RATIO * pairs:
            db.execute(f"{_update_sql(name, [column])} AND pair.{_flag(column)}")
    return former - pairs, new - pairs


def _update_sql(name: str, columns: Iterable[CatalogColumn]) -> str:
    names = [sql_identifier(column.name) for column in columns]
    values = ", ".join(f"{column} = pair.{column}" for column in names)
    return f"UPDATE {name} SET {values} FROM pair WHERE {name}.rowid = pair._row"
