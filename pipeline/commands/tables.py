"""`scanlake tables`: the data dictionary, from the declared schema; with a lake also its views, and row counts."""

import difflib
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import duckdb
import typer
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from pipeline.call import Call
from pipeline.errors import Exit, SettingsError
from pipeline.published import has_catalog, published, rows
from schemas.tables import BY_NAME, TABLES, Table

_ELSE_SHOWN: Final = """
    SELECT CASE schema_name WHEN 'main' THEN '' ELSE 'meta.' END || table_name AS name, shown.column_name,
           shown.data_type, coalesce(shown.comment, '') AS column_comment, coalesce(held.comment, '') AS comment
    FROM duckdb_columns() AS shown JOIN (
        SELECT database_name, schema_name, view_name AS table_name, comment FROM duckdb_views()
        UNION ALL
        SELECT database_name, schema_name, table_name, comment FROM duckdb_tables()
    ) AS held USING (database_name, schema_name, table_name)
    WHERE database_name = current_database() AND schema_name IN ('main', 'meta') AND NOT starts_with(table_name, '_')
    ORDER BY schema_name, table_name, column_index"""


@dataclass(slots=True)
class Shown:
    """A view, or a table of `meta`, as the catalog describes it; each column has a name, a type and a comment."""

    name: str
    comment: str
    columns: list[dict[str, str]]


def run(
    call: Call,
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Describe this table, column by column.")] = None,
) -> Exit:
    """List the tables, or describe one.

    Works without a lake. With one it also knows the views, and the tables of meta. TIMESTAMP is UTC.
    """
    settings = call.settings()
    name = None if name is None else name.removeprefix("main.")
    wanted = [table for table in TABLES if name in {None, table.name}]
    counts: dict[str, int] = {}
    others: dict[str, Shown] = {}
    if has_catalog(settings):
        with published(settings) as lake:
            counts = {table.name: rows(lake, f"SELECT count(*) AS n FROM {table.name}")[0]["n"] for table in wanted}
            others = _others(lake)
    if name is not None and not wanted and name not in others:
        raise _unknown(name, [*BY_NAME, *others], lake_is_there=has_catalog(settings))
    shown = [each for each in others.values() if name in {None, each.name}]
    if call.as_json:
        described = [_described(table, counts.get(table.name)) for table in wanted]
        call.print_json({"tables": described, "views": [asdict(each) for each in shown]})
    elif name is None:
        _show_all(call.console(), counts, shown)
    elif wanted:
        _show_one(call.console(), wanted[0], counts.get(name))
    else:
        _show_other(call.console(), others[name])
    return Exit.DONE


def _others(lake: duckdb.DuckDBPyConnection) -> dict[str, Shown]:
    """What the catalog shows beside the declared tables, by name: views by theirs, tables of meta as meta.NAME."""
    found: dict[str, Shown] = {}
    for row in rows(lake, _ELSE_SHOWN):
        if row["name"] not in BY_NAME:
            shown = found.setdefault(row["name"], Shown(row["name"], row["comment"], []))
            shown.columns.append(
                {"name": row["column_name"], "type": row["data_type"], "comment": row["column_comment"]}
            )
    return found


def _unknown(name: str, known: list[str], *, lake_is_there: bool) -> SettingsError:
    near = difflib.get_close_matches(name, known, n=1)
    near = near or difflib.get_close_matches(f"meta.{name}", known, n=1)
    without = "" if lake_is_there else " Views, and the tables of meta, are described where there is a lake."
    return SettingsError(
        f"No table {name}." + (f" Did you mean {near[0]}?" if near else ""),
        remedy=f"`scanlake tables` lists them.{without}",
    )


def _described(table: Table, count: int | None) -> dict[str, Any]:
    return {
        "name": table.name,
        "comment": table.comment,
        "rows": count,
        "key": list(table.key),
        "parent": table.parent or None,
        "columns": [
            {
                "name": column.name,
                "type": column.kind.sql,
                "comment": column.comment,
                "is_key": column.name in table.key,
            }
            for column in table.columns
        ],
    }


def _show_all(console: Console, counts: dict[str, int], others: list[Shown]) -> None:
    grid = Grid("table", box=None)
    if counts:
        grid.add_column("rows", justify="right")
    grid.add_column("what it holds")
    for table in TABLES:
        grid.add_row(table.name, *([f"{counts[table.name]:,}"] if counts else []), Text(table.comment))
    console.print(grid)
    if others:
        beside = Grid("view, or table of meta", "what it shows", box=None)
        for each in others:
            beside.add_row(Text(each.name), Text(each.comment))
        console.print(Text("\n"), beside, sep="", end="")


def _show_one(console: Console, table: Table, count: int | None) -> None:
    known = "" if count is None else f" {count:,} rows."
    console.print(Text(f"{table.name}: {table.comment}{known}"))
    hangs = f" Hangs from {table.parent}." if table.parent else ""
    console.print(Text(f"Key: {', '.join(table.key)}.{hangs}"))
    grid = Grid("column", "type", "meaning", box=None)
    for column in table.columns:
        grid.add_row(Text(column.name), column.kind.sql, Text(column.comment))
    console.print(grid)


def _show_other(console: Console, shown: Shown) -> None:
    console.print(Text(f"{shown.name}: {shown.comment}"))
    grid = Grid("column", "type", "meaning", box=None)
    for column in shown.columns:
        grid.add_row(Text(column["name"]), Text(column["type"]), Text(column["comment"]))
    console.print(grid)
