"""`scanlake tables`: the data dictionary from the declared schema; with a lake also its views and row counts."""

import difflib
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import duckdb
import typer
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from pipeline.context import CommandContext
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.reader import fetch_dicts, has_catalog, open_catalog
from schemas.tables import BY_NAME, TABLES, Table

_VIEWS_AND_META_SQL: Final = """
    SELECT CASE schema_name WHEN 'main' THEN '' ELSE 'meta.' END || table_name AS name, columns.column_name,
           columns.data_type, coalesce(columns.comment, '') AS column_comment, coalesce(tables.comment, '') AS comment
    FROM duckdb_columns() AS columns JOIN (
        SELECT database_name, schema_name, view_name AS table_name, comment FROM duckdb_views()
        UNION ALL
        SELECT database_name, schema_name, table_name, comment FROM duckdb_tables()
    ) AS tables USING (database_name, schema_name, table_name)
    WHERE database_name = current_database() AND schema_name IN ('main', 'meta') AND NOT starts_with(table_name, '_')
    ORDER BY schema_name, table_name, column_index"""


@dataclass(slots=True)
class DescribedTable:
    """A view or a table of `meta` from the catalog; each column has a name, a type and a comment."""

    name: str
    comment: str
    columns: list[dict[str, str]]


def run(
    context: CommandContext,
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Table or view to describe. Default: list all.")
    ] = None,
) -> ExitCode:
    """List the tables, or describe one.

    Works without a lake. With a lake it also lists the views and the tables of meta. All TIMESTAMP values are UTC.
    """
    settings = context.settings()
    name = None if name is None else name.removeprefix("main.")
    declared = [table for table in TABLES if name in {None, table.name}]
    counts: dict[str, int] = {}
    others: dict[str, DescribedTable] = {}
    if has_catalog(settings):
        with open_catalog(settings) as lake:
            counts = {
                table.name: fetch_dicts(lake, f"SELECT count(*) AS n FROM {table.name}")[0]["n"] for table in declared
            }
            others = _describe_views_and_meta(lake)
    if name is not None and not declared and name not in others:
        raise _unknown_table(name, [*BY_NAME, *others], has_lake=has_catalog(settings))
    selected = [table for table in others.values() if name in {None, table.name}]
    if context.as_json:
        tables = [_to_json(table, counts.get(table.name)) for table in declared]
        context.print_json({"tables": tables, "views": [asdict(table) for table in selected]})
    elif name is None:
        _print_list(context.console(), counts, selected)
    elif declared:
        _print_table(context.console(), declared[0], counts.get(name))
    else:
        other = others[name]
        columns = [(column["name"], column["type"], column["comment"]) for column in other.columns]
        _print_columns(context.console(), f"{other.name}: {other.comment}", columns)
    return ExitCode.OK


def _describe_views_and_meta(lake: duckdb.DuckDBPyConnection) -> dict[str, DescribedTable]:
    """Return the views, and the tables of meta as meta.NAME, by name."""
    tables: dict[str, DescribedTable] = {}
    for row in fetch_dicts(lake, _VIEWS_AND_META_SQL):
        if row["name"] not in BY_NAME:
            column = {"name": row["column_name"], "type": row["data_type"], "comment": row["column_comment"]}
            tables.setdefault(row["name"], DescribedTable(row["name"], row["comment"], [])).columns.append(column)
    return tables


def _unknown_table(name: str, known: list[str], *, has_lake: bool) -> SettingsError:
    similar = difflib.get_close_matches(name, known, n=1) or difflib.get_close_matches(f"meta.{name}", known, n=1)
    question = f" Did you mean {similar[0]}?" if similar else ""
    limit = "" if has_lake else " Views and the tables of meta require a lake."
    return SettingsError(f"No table {name}.{question}", hint=f"Run `scanlake tables` to list the tables.{limit}")


def _to_json(table: Table, count: int | None) -> dict[str, Any]:
    columns = [
        {"name": item.name, "type": item.kind.sql, "comment": item.comment, "is_key": item.name in table.key}
        for item in table.columns
    ]
    head = {"name": table.name, "comment": table.comment, "rows": count, "key": list(table.key)}
    return head | {"parent": table.parent or None, "columns": columns}


def _print_list(console: Console, counts: dict[str, int], others: list[DescribedTable]) -> None:
    grid = Grid("table", box=None)
    if counts:
        grid.add_column("rows", justify="right")
    grid.add_column("contents")
    for table in TABLES:
        grid.add_row(table.name, *([f"{counts[table.name]:,}"] if counts else []), Text(table.comment))
    console.print(grid)
    if others:
        grid = Grid("view, or table of meta", "contents", box=None)
        for other in others:
            grid.add_row(Text(other.name), Text(other.comment))
        console.print(Text("\n"), grid, sep="", end="")


def _print_table(console: Console, table: Table, count: int | None) -> None:
    rows = "" if count is None else f" {count:,} rows."
    parent = f" Parent: {table.parent}." if table.parent else ""
    heading = f"{table.name}: {table.comment}{rows}\nKey: {', '.join(table.key)}.{parent}"
    _print_columns(console, heading, [(column.name, column.kind.sql, column.comment) for column in table.columns])


def _print_columns(console: Console, heading: str, columns: list[tuple[str, str, str]]) -> None:
    console.print(Text(heading))
    grid = Grid("column", "type", "meaning", box=None)
    for cells in columns:
        grid.add_row(*map(Text, cells))
    console.print(grid)
