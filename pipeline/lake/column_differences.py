"""Columns in which two snapshots differ, for files that changed: the rows of every table are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.lake.sql import sql_identifier, sql_literal
from schemas.tables import DELETED_FILES, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from schemas.tables import Table

_COMPARED: Final = tuple(
    table for table in TABLES if table.is_per_file and table.schema == "main" and table is not DELETED_FILES
)
_IGNORED: Final = frozenset({"position", "_fetched_at", "_run_id"})


def find_differing_columns(db: duckdb.DuckDBPyConnection, file_ids: Sequence[int]) -> dict[int, list[str]]:
    """Return the columns that differ, as table.column, by file; a table alone if rows were added or removed.

    The catalogs `before` and `later` are attached. Rows are compared by their key; of rows with equal keys the first
    with the first.
    """
    columns: dict[int, list[str]] = {}
    for table in _COMPARED:
        # Other versions of scanlake may have published other columns.
        no_rows = " UNION ALL BY NAME ".join(
            f"(FROM {catalog}.{table.name} LIMIT 0)" for catalog in ("before", "later")
        )
        names = [column[0] for column in db.execute(no_rows).description or ()]
        query = _differences_sql(table, [name for name in names if name not in {*_IGNORED, *table.key}], no_rows)
        for file_id, name in db.execute(query, {"ids": list(file_ids)}).fetchall():
            columns.setdefault(file_id, []).append(name)
    return columns


def _differences_sql(table: Table, names: Sequence[str], no_rows: str) -> str:
    key = [sql_identifier(name) for name in table.key]
    order = "position" if "position" in table.arrow.names else "_fetched_at"
    rows = (
        f"(SELECT *, row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY {order}) AS occurrence"
        f" FROM (FROM {catalog}.{table.name} UNION ALL BY NAME {no_rows}) WHERE file_id IN (SELECT unnest($ids)))"
        for catalog in ("before", "later")
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
