"""`scanlake tables`: the data dictionary from the declared schema; with a lake also its views and row counts."""

import difflib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from pipeline.commands._completion import complete_tables
from pipeline.commands._dbt_sources import format_dbt_sources
from pipeline.context import CommandContext
from pipeline.errors import ExitCode, SettingsError
from pipeline.formatting import escape_controls
from pipeline.lake.reader import fetch_catalog_columns, fetch_dicts, has_catalog, open_catalog
from schemas.references import find_reference
from schemas.tables import TABLES, Table

if TYPE_CHECKING:
    import duckdb

GROUP: Final = "Use the data"


class TablesFormat(StrEnum):
    """Output formats of the tables."""

    TABLE = "table"
    DBT = "dbt"


@dataclass(slots=True)
class DescribedTable:
    """A table or view as the catalog has it; each column has a name, a type, a comment and what it refers to."""

    name: str
    comment: str
    columns: list[dict[str, Any]]


_BY_LABEL: Final = {table.name if table.schema == "main" else table.qualified_name: table for table in TABLES}
_TIE_BREAK: Final = "position"
_WIDE_COLUMNS: Final = 80
"""Narrower terminals show each text below its name: beside it, a text would have a few words per line."""


def run(
    context: CommandContext,
    *,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Table or view to describe. Default: list all.", autocompletion=complete_tables
        ),
    ] = None,
    output_format: Annotated[
        TablesFormat, typer.Option("--format", help="A table, or a sources file of dbt with every table.")
    ] = TablesFormat.TABLE,
) -> ExitCode:
    """List the tables, or describe one.

    Works without a lake. With a lake it also lists the views and the tables of meta. All TIMESTAMP values are UTC: use
    utc_now() for the current time.
    """
    if output_format is TablesFormat.DBT:
        if name is not None or context.as_json:
            raise SettingsError("--format dbt describes all tables.", hint="Leave out NAME and --json.")
        sys.stdout.write(format_dbt_sources())
        return ExitCode.OK
    settings = context.settings()
    name = None if name is None else name.removeprefix("main.")
    declared = {label: table for label, table in _BY_LABEL.items() if name in {None, label}}
    counts: dict[str, int] = {}
    catalog: dict[str, DescribedTable] = {}
    if has_catalog(settings):
        with open_catalog(settings) as lake:
            counts = {
                label: fetch_dicts(lake, f"SELECT count(*) AS n FROM {table.qualified_name}")[0]["n"]
                for label, table in declared.items()
            }
            catalog = _describe_catalog(lake)
    others = {label: table for label, table in catalog.items() if label not in _BY_LABEL}
    if name is not None and not declared and name not in others:
        raise _unknown_table(name, [*_BY_LABEL, *others], has_lake=has_catalog(settings))
    selected = [table for table in others.values() if name in {None, table.name}]
    if context.as_json:
        tables = [_to_json(label, _columns(label, catalog), counts.get(label)) for label in declared]
        context.print_json({"tables": tables, "views": [asdict(table) for table in selected]})
    elif name is None:
        _print_list(context.console(), counts, selected)
    elif declared:
        _print_table(context.console(), name, _columns(name, catalog), counts.get(name))
    else:
        other = others[name]
        columns = [(column["name"], column["type"], column["comment"]) for column in other.columns]
        _print_columns(context.console(), f"{other.name}: {other.comment}", columns)
    return ExitCode.OK


def _describe_catalog(lake: "duckdb.DuckDBPyConnection") -> dict[str, DescribedTable]:
    """Return the tables and views of the catalog by name, those of meta as meta.NAME."""
    tables: dict[str, DescribedTable] = {}
    for row in fetch_catalog_columns(lake):
        column = {"name": row["column_name"], "type": row["data_type"], "comment": row["column_comment"]}
        column["refers_to"] = find_reference(row["name"], row["column_name"])
        tables.setdefault(row["name"], DescribedTable(row["name"], row["comment"], [])).columns.append(column)
    return tables


def _columns(label: str, catalog: dict[str, DescribedTable]) -> list[dict[str, Any]]:
    """Return the columns of a declared table: those of the catalog if there is one, otherwise all declared ones."""
    table = _BY_LABEL[label]
    declared: dict[str, dict[str, Any]] = {
        column.name: {
            "name": column.name,
            "type": column.kind.sql,
            "comment": column.comment,
            "is_key": column.name in table.key,
            "is_nullable": column.nullable,
            "refers_to": find_reference(table.name, column.name),
        }
        for column in table.columns
    }
    if label not in catalog:
        return list(declared.values())
    computed = {"is_key": False, "is_nullable": True}  # what the catalog adds, such as the last sight of a definition
    return [declared.get(column["name"], column | computed) for column in catalog[label].columns]


def _unknown_table(name: str, known: list[str], *, has_lake: bool) -> SettingsError:
    similar = difflib.get_close_matches(name, known, n=1) or difflib.get_close_matches(f"meta.{name}", known, n=1)
    question = f" Did you mean {similar[0]}?" if similar else ""
    limit = "" if has_lake else " Views and the tables of meta require a lake."
    return SettingsError(f"No table {name}.{question}", hint=f"Run `scanlake tables` to list the tables.{limit}")


def _tie_break(table: Table) -> str | None:
    """Return the column that separates rows with equal keys, if the table has one."""
    return next((column.name for column in table.columns if column.name == _TIE_BREAK), None)


def _to_json(label: str, columns: list[dict[str, Any]], count: int | None) -> dict[str, Any]:
    table = _BY_LABEL[label]
    head = {"name": label, "comment": table.comment, "rows": count, "key": list(table.key)}
    return head | {"tie_break": _tie_break(table), "parent": table.parent or None, "columns": columns}


def _print_list(console: Console, counts: dict[str, int], others: list[DescribedTable]) -> None:
    has_counts = bool(counts)
    rows = [
        (label, *([f"{counts[label]:,}"] if has_counts else []), table.comment) for label, table in _BY_LABEL.items()
    ]
    _print_grid(console, ("table", *(["rows"] if has_counts else []), "contents"), rows)
    if others:
        console.print()
        _print_grid(console, ("view, or table of meta", "contents"), [(other.name, other.comment) for other in others])


def _print_table(console: Console, label: str, columns: list[dict[str, Any]], count: int | None) -> None:
    table = _BY_LABEL[label]
    rows = "" if count is None else f" {count:,} rows."
    tie_break = f", then {_tie_break(table)}" if _tie_break(table) else ""
    parent = f" Parent: {table.parent}." if table.parent else ""
    heading = f"{label}: {table.comment}{rows}\nKey: {', '.join(table.key)}{tie_break}.{parent}"
    types = [column["type"] + ("" if column["is_nullable"] else " NOT NULL") for column in columns]
    cells = [(column["name"], kind, column["comment"]) for column, kind in zip(columns, types, strict=True)]
    _print_columns(console, heading, cells)


def _print_columns(console: Console, heading: str, columns: list[tuple[str, str, str]]) -> None:
    console.print(Text(heading))
    _print_grid(console, ("column", "type", "meaning"), columns)


def _print_grid(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows whose last cell is a text: beside the other cells, or below them on a narrow terminal."""
    lines = [[escape_controls(cell) for cell in row] for row in rows]
    if console.width < _WIDE_COLUMNS:
        console.print(Text(", ".join(headings), style="bold"))
        for *cells, text in lines:
            console.print(Text("  ".join(cells)))
            console.print(Padding(Text(text), (0, 0, 0, 4)))
        return
    grid = Grid(box=None)
    for heading in headings:
        is_text = heading == headings[-1]
        grid.add_column(heading, justify="right" if heading == "rows" else "left", no_wrap=not is_text)
    for cells in lines:
        grid.add_row(*map(Text, cells))
    console.print(grid)
