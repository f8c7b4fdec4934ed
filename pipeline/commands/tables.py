"""`scanlake tables`: the data dictionary, from the declared schema; row counts where there is a lake."""

import difflib
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from pipeline.call import Call
from pipeline.errors import Exit, SettingsError
from pipeline.published import has_catalog, published, rows
from schemas.tables import BY_NAME, TABLES, Table


def run(
    call: Call,
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Describe this table, column by column.")] = None,
) -> Exit:
    """List the tables, or describe one.

    Works without a lake. TIMESTAMP is UTC.
    """
    settings = call.settings()
    if name is not None and name not in BY_NAME:
        near = difflib.get_close_matches(name, BY_NAME, n=1)
        raise SettingsError(
            f"No table {name}." + (f" Did you mean {near[0]}?" if near else ""), remedy="`scanlake tables` lists them."
        )
    wanted = TABLES if name is None else (BY_NAME[name],)
    counts: dict[str, int] = {}
    if has_catalog(settings):
        with published(settings) as lake:
            counts = {table.name: rows(lake, f"SELECT count(*) AS n FROM {table.name}")[0]["n"] for table in wanted}
    if call.as_json:
        call.print_json({"tables": [_described(table, counts.get(table.name)) for table in wanted]})
    elif name is None:
        _show_all(call.console(), counts)
    else:
        _show_one(call.console(), BY_NAME[name], counts.get(name))
    return Exit.DONE


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


def _show_all(console: Console, counts: dict[str, int]) -> None:
    grid = Grid("table", box=None)
    if counts:
        grid.add_column("rows", justify="right")
    grid.add_column("what it holds")
    for table in TABLES:
        grid.add_row(table.name, *([f"{counts[table.name]:,}"] if counts else []), Text(table.comment))
    console.print(grid)


def _show_one(console: Console, table: Table, count: int | None) -> None:
    known = "" if count is None else f" {count:,} rows."
    console.print(Text(f"{table.name}: {table.comment}{known}"))
    hangs = f" Hangs from {table.parent}." if table.parent else ""
    console.print(Text(f"Key: {', '.join(table.key)}.{hangs}"))
    grid = Grid("column", "type", "meaning", box=None)
    for column in table.columns:
        grid.add_row(Text(column.name), column.kind.sql, Text(column.comment))
    console.print(grid)
