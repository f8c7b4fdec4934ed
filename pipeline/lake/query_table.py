"""A query's result as a table. It needs no Arrow, whose import takes half as long as that of DuckDB."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Final

from pipeline.lake.sql import sql_identifier
from pipeline.text_tables import format_table

if TYPE_CHECKING:
    import duckdb

_TABLE_ROWS: Final = 200


def write_table(result: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    """Write the first rows as an aligned table."""
    rows = cast_to_text(result, frozenset()).limit(_TABLE_ROWS + 1).fetchall()
    note = ", the first rows of more; use --format for all rows" if len(rows) > _TABLE_ROWS else ""
    first_rows = rows[:_TABLE_ROWS]
    is_screen = target is sys.stdout.buffer and sys.stdout.isatty()
    text = format_table(result.columns, first_rows, null="NULL", unit="row", note=note, is_screen=is_screen)
    target.write(text.encode("utf-8", "backslashreplace"))
    return len(first_rows)


def cast_to_text(result: duckdb.DuckDBPyRelation, unchanged_types: frozenset[str]) -> duckdb.DuckDBPyRelation:
    """Return the rows with every column cast to DuckDB's text, except for columns of `unchanged_types`."""
    columns = (
        f"#{index}" if str(kind) in unchanged_types else f"CAST(#{index} AS VARCHAR)"
        for index, kind in enumerate(result.types, start=1)
    )
    names = map(sql_identifier, result.columns)
    return result.project(", ".join(f"{column} AS {name}" for column, name in zip(columns, names, strict=True)))
