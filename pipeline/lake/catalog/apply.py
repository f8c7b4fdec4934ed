"""Apply: (rows of commits, catalog) -> catalog, by the one function that every catalog is made with.

A first sync, an increment, a catch-up after a kill and a rebuild differ only in the catalog and in the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pipeline.lake.catalog.duckdb import execute_with_rows, order_rows
from pipeline.lake.catalog.history import add_versions
from pipeline.lake.catalog.sql import sql_identifier
from schemas import value_types
from schemas.tables import COMMIT_SEQ_COLUMN, DELETED_FILES, FILES, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from pipeline.lake.catalog.current_rows import CommitRows
    from schemas.tables import Column, Table

REPLACED_FILES: Final = "replaced_file"
"""Temporary table with the `file_id`s whose rows are replaced."""
_MIN_ROWS_IN_PLACE: Final = 100_000  # of the catalog: below, deleted rows slow no query down, and this takes 0.1 s


def apply_rows(db: duckdb.DuckDBPyConnection, rows: CommitRows, *, in_place: bool) -> int:
    """Replace the rows of the commits' files in an open catalog. Return how many were deleted or inserted.

    `in_place`: write only the values that differ, where a catalog is so large that deleted rows slow it down.
    """
    with_former = _set_replaced_files(db, rows.file_ids)
    changed = 0
    for versions in (rows.tables.get(FILES.name), rows.former):
        if versions is not None:
            add_versions(db, versions)
    for table in TABLES:
        new = rows.tables.get(table.name)
        if new is None and not (with_former and table.is_per_file):
            continue
        incoming = table.arrow.empty_table() if new is None else new
        query = f"SELECT {', '.join(map(select_column, table.columns))} FROM incoming"
        if not table.is_per_file:  # definitions, which no later commit changes
            query += (
                f" ANTI JOIN {table.qualified_name} AS known USING ({', '.join(map(sql_identifier, table.key[:1]))})"
            )
        if in_place and with_former and table.is_per_file:
            changed += update_rows(db, table, table.columns, query, incoming)
        else:
            if with_former and table.is_per_file:
                changed += _change_rows(db, f"DELETE FROM {table.qualified_name} WHERE {_REPLACED}", incoming)
            if new is not None:
                order = f" ORDER BY {order_rows(table)}" if table.is_per_file else ""
                changed += _change_rows(db, f"INSERT INTO {table.qualified_name} {query}{order}", incoming)
    return changed


_REPLACED: Final = f"file_id IN (SELECT file_id FROM {REPLACED_FILES})"


def _set_replaced_files(db: duckdb.DuckDBPyConnection, file_ids: Sequence[int]) -> bool:
    """Fill the table of the replaced files. Return whether the catalog has rows of any."""
    ids = pa.table([pa.array(file_ids, pa.int64())], ["file_id"])
    sql = f"CREATE OR REPLACE TEMP TABLE {REPLACED_FILES} AS SELECT DISTINCT file_id FROM incoming"
    execute_with_rows(db, sql, ids)
    sources = (f"SELECT 1 FROM {table.qualified_name} WHERE {_REPLACED}" for table in (FILES, DELETED_FILES))
    return bool(db.execute(f"SELECT EXISTS ({' UNION ALL '.join(sources)})").fetchall()[0][0])


def is_updated_in_place(rows: int) -> bool:
    """Return whether a catalog with so many rows is so large that its rows are updated in place."""
    return rows >= _MIN_ROWS_IN_PLACE


def select_column(column: Column) -> str:
    """Return a column of flattened rows as an item of SELECT."""
    name = sql_identifier(column.name)
    return f"TRY_CAST({name} AS JSON) AS {name}" if column.kind is value_types.JSON else name


def _change_rows(db: duckdb.DuckDBPyConnection, statement: str, incoming: pa.Table) -> int:
    """Return how many rows a statement has deleted or inserted."""
    rows: int = execute_with_rows(db, statement, incoming).fetchall()[0][0]
    return rows


# Updates in place


def update_rows(
    db: duckdb.DuckDBPyConnection, table: Table, columns: Sequence[Column], new_rows: str, incoming: pa.Table
) -> int:
    """Replace the rows of the replaced files by those of a query over `incoming`, writing only the values that differ.

    DuckDB reads a row group with deleted rows a tenth to a quarter more slowly, and files that change at random leave
    some in every one. A row whose values were updated is read as if it had been written so, and keeps its place.
    A former row is paired with a new one of the same key; other rows are deleted and inserted. Return how many.
    A child's rows that are all equal keep their commit: nothing of them is written. If one differs, all rows of its
    file in the table get the new commit, so that a file's rows in an output count or do not count together.
    """
    name, keys = table.qualified_name, [sql_identifier(key) for key in table.key]
    order = "position" if "position" in table.arrow.names else keys[0]
    number = f"row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY {order}) AS _number"
    db.execute(
        f"CREATE OR REPLACE TEMP TABLE former_row AS SELECT rowid AS _row, {number}, * FROM {name} WHERE {_REPLACED}"
    )
    new_row = f"CREATE OR REPLACE TEMP TABLE new_row AS SELECT {number}, * FROM ({new_rows})"
    execute_with_rows(db, new_row, incoming)
    same_key = " AND ".join(f"former.{key} IS NOT DISTINCT FROM new.{key}" for key in [*keys, "_number"])
    values = [column for column in columns if column.name not in table.key]
    flags = "".join(f", {_differs(column)} AS {_flag(column)}" for column in values)
    db.execute(
        f"CREATE OR REPLACE TEMP TABLE pair AS SELECT former._row, new.*{flags}"
        f" FROM former_row AS former JOIN new_row AS new ON {same_key}"
    )
    if table.parent:
        _drop_equal_files(db, values)
    deleted, inserted = _update_pairs(db, name, values)
    if deleted:
        unpaired = "SELECT _row FROM former_row ANTI JOIN pair USING (_row)"
        db.execute(f"DELETE FROM {name} WHERE rowid IN ({unpaired})")
    if inserted:
        selected = ", ".join(f"new.{sql_identifier(column.name)}" for column in columns)
        unpaired = f"new_row AS new ANTI JOIN pair AS former ON {same_key}"
        db.execute(f"INSERT INTO {name} SELECT {selected} FROM {unpaired} ORDER BY new.file_id, new.{order}")
    return deleted + inserted


def _differs(column: Column) -> str:
    name = sql_identifier(column.name)
    return f"former.{name} IS DISTINCT FROM new.{name}"


def _flag(column: Column) -> str:
    return sql_identifier(f"_differs_{column.name}")


def _drop_equal_files(db: duckdb.DuckDBPyConnection, values: Sequence[Column]) -> None:
    """Leave out the files of which all rows are as they were, but for the commit."""
    differs = " OR ".join(_flag(column) for column in values if column.name != COMMIT_SEQ_COLUMN) or "false"
    counts = "(SELECT file_id, count(*) AS total FROM {} GROUP BY file_id)"
    db.execute(
        f"CREATE OR REPLACE TEMP TABLE equal_file AS SELECT file_id FROM {counts.format('former_row')}"
        f" JOIN {counts.format('new_row')} USING (file_id, total)"
        f" JOIN {counts.format(f'pair WHERE NOT ({differs})')} USING (file_id, total)"
    )
    for name in ("former_row", "new_row", "pair"):
        db.execute(f"DELETE FROM {name} WHERE file_id IN (SELECT file_id FROM equal_file)")


def _update_pairs(db: duckdb.DuckDBPyConnection, name: str, columns: Sequence[Column]) -> tuple[int, int]:
    """Update each column where it differs. DuckDB writes a column's whole row group for one value.

    Return how many former rows, and how many new ones, have no pair.
    """
    counts = ["(SELECT count(*) FROM former_row)", "(SELECT count(*) FROM new_row)", "count(*)"]
    counts += [f"count(*) FILTER ({_flag(column)})" for column in columns]
    ((former, new, pairs, *differing),) = db.execute(f"SELECT {', '.join(counts)} FROM pair").fetchall()
    for column, count in zip(columns, differing, strict=True):
        if count:
            value = sql_identifier(column.name)
            condition = f"{name}.rowid = pair._row AND pair.{_flag(column)}"
            db.execute(f"UPDATE {name} SET {value} = pair.{value} FROM pair WHERE {condition}")
    return former - pairs, new - pairs
