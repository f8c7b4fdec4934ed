"""Columns in which two snapshots differ, for files that changed: the rows of every table are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.lake.sql import sql_identifier, sql_literal
from schemas.tables import COMMIT_SEQ_COLUMN, DELETED_FILES, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import duckdb

    from schemas.tables import Table

_COMPARED: Final = tuple(
    table for table in TABLES if table.is_per_file and table.schema == "main" and table is not DELETED_FILES
)
_IGNORED: Final = frozenset({"position", "_fetched_at", "_run_id", COMMIT_SEQ_COLUMN})


def find_differing_columns(
    db: duckdb.DuckDBPyConnection, sources: Callable[[str], tuple[str, str]], file_ids: Sequence[int]
) -> dict[int, list[str]]:
    """Return the columns that differ, as table.column, by file; a table alone if rows were added or removed.

    `sources` returns the rows of a table in the earlier and the later snapshot, as SQL. Rows are compared by their key;
    of rows with equal keys the first with the first.
    """
    columns: dict[int, list[str]] = {}
    for table in _COMPARED:
        query = _differences_sql(table, *sources(table.name))
        for file_id, name in db.execute(query, {"ids": list(file_ids)}).fetchall():
            columns.setdefault(file_id, []).append(name)
    return columns


def _differences_sql(table: Table, before: str, later: str) -> str:
    key = [sql_identifier(name) for name in table.key]
    names = [column.name for column in table.columns if column.name not in {*_IGNORED, *table.key}]
    order = "position" if "position" in table.arrow.names else COMMIT_SEQ_COLUMN
    rows = (
        f"(SELECT *, row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY {order}) AS occurrence"
        f" FROM ({source}) WHERE file_id IN (SELECT unnest($ids)))"
        for source in (before, later)
    )
    joined = " AND ".join(f"b.{name} IS NOT DISTINCT FROM l.{name}" for name in [*key, "occurrence"])
    changed = [
        f"CASE WHEN b.file_id = l.file_id AND b.{column} IS DISTINCT FROM l.{column} THEN {label} END"
        for column, label in ((sql_identifier(name), sql_literal(f"{table.name}.{name}")) for name in names)
    ]
    one_sided = f"CASE WHEN b.file_id IS NULL OR l.file_id IS NULL THEN {sql_literal(table.name)} END"
    earlier_rows, later_rows = rows
    return (
        "SELECT DISTINCT file_id, name FROM (SELECT coalesce(b.file_id, l.file_id) AS file_id,"
        f" unnest([{', '.join([one_sided, *changed])}]) AS name FROM {earlier_rows} AS b FULL JOIN {later_rows} AS l"
        f" ON {joined}) WHERE name IS NOT NULL ORDER BY ALL"
    )
