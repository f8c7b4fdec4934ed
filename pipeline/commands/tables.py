"""`scanlake tables`: the data dictionary from the declared schema; with a lake also its views and row counts."""

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec import Struct

from pipeline.context import CommandContext
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.reader import fetch_dicts, has_catalog, open_catalog
from pipeline.pages.catalog_access import BrowsedTable, list_catalog_tables
from pipeline.text_tables import format_table
from schemas.tables import TABLES, Table, find_reference

if TYPE_CHECKING:
    import duckdb

GROUP: Final = "Use the data"


class DescribedColumn(Struct, frozen=True):
    """A column; `refers_to` is the TABLE.COLUMN that it joins."""

    name: str
    type: str
    comment: str
    is_key: bool
    is_nullable: bool
    refers_to: str | None


class DescribedTable(Struct, frozen=True):
    """A table or view; `tie_break` is the column that separates rows with equal keys, `rows` needs a lake."""

    name: str
    comment: str
    columns: Sequence[DescribedColumn]
    rows: int | None = None
    key: Sequence[str] = ()
    tie_break: str | None = None
    parent: str | None = None


class DataDictionary(Struct, frozen=True):
    """The declared tables, and with a lake its views and the tables of meta."""

    tables: Sequence[DescribedTable]
    views: Sequence[DescribedTable]


RESULT: Final = DataDictionary
_BY_LABEL: Final = {table.name if table.schema == "main" else table.qualified_name: table for table in TABLES}
_TIE_BREAK: Final = "position"


def run(
    context: CommandContext,
    *,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Table or view to describe. Default: list all."),
    ] = None,
) -> ExitCode:
    """List the tables, or describe one.

    Works without a lake. With a lake it also lists the views and the tables of meta. All TIMESTAMP values are UTC: use
    utc_now() for the current time.
    """
    settings = context.settings()
    published: dict[str, BrowsedTable] = {}
    rows: dict[str, int] = {}
    if has_catalog(settings):
        with open_catalog(settings) as lake:
            published = list_catalog_tables(lake)
            rows = {label: _count(lake, table) for label, table in _BY_LABEL.items() if label in published}
    tables = [
        _describe_table(label, table, published.get(label), rows.get(label)) for label, table in _BY_LABEL.items()
    ]
    views = [_describe_view(view) for label, view in published.items() if label not in _BY_LABEL]
    if name is None:
        return context.print_result(DataDictionary(tables, views), lambda: _format_list(tables, views))
    name = name.removeprefix("main.")
    by_name = {table.name: table for table in (*tables, *views)}
    if name not in by_name:
        raise _unknown_table(name, list(by_name), has_lake=has_catalog(settings))
    selected = DataDictionary(*([table for table in group if table.name == name] for group in (tables, views)))
    return context.print_result(selected, lambda: _format_one(by_name[name]))


def _count(lake: "duckdb.DuckDBPyConnection", table: Table) -> int:
    rows: int = fetch_dicts(lake, f"SELECT count(*) AS n FROM {table.qualified_name}")[0]["n"]
    return rows


def _describe_view(view: BrowsedTable) -> DescribedTable:
    columns = [
        DescribedColumn(name, kind, comment, is_key=False, is_nullable=True, refers_to=find_reference(view.name, name))
        for name, (kind, comment) in view.columns.items()
    ]
    return DescribedTable(view.name, view.contents, columns)


def _describe_table(label: str, table: Table, published: BrowsedTable | None, rows: int | None) -> DescribedTable:
    """Return a declared table, with the columns of the catalog if there is one: it adds computed columns."""
    declared: dict[str, DescribedColumn] = {
        column.name: DescribedColumn(
            column.name,
            column.kind.sql,
            column.comment,
            is_key=column.name in table.key,
            is_nullable=column.nullable,
            refers_to=find_reference(table.name, column.name),
        )
        for column in table.columns
    }
    computed = () if published is None else _describe_view(published).columns
    columns = list({**{column.name: column for column in computed}, **declared}.values())
    tie_break = _TIE_BREAK if _TIE_BREAK in declared else None
    return DescribedTable(label, table.comment, columns, rows, table.key, tie_break, table.parent or None)


def _unknown_table(name: str, known: list[str], *, has_lake: bool) -> SettingsError:
    similar = difflib.get_close_matches(name, known, n=1) or difflib.get_close_matches(f"meta.{name}", known, n=1)
    question = f" Did you mean {similar[0]}?" if similar else ""
    limit = "" if has_lake else " Views and the tables of meta require a lake."
    return SettingsError(f"No table {name}.{question}", hint=f"Run `scanlake tables` to list the tables.{limit}")


def _format_list(tables: Sequence[DescribedTable], views: Sequence[DescribedTable]) -> str:
    if any(table.rows is not None for table in tables):
        rows = [(table.name, f"{table.rows:,}", table.comment) for table in tables]
        text = format_table(("table", "rows", "contents"), rows)
    else:
        text = format_table(("table", "contents"), [(table.name, table.comment) for table in tables])
    if views:
        others = [(view.name, view.comment) for view in views]
        text += "\n" + format_table(("view, or table of meta", "contents"), others)
    return text


def _format_one(table: DescribedTable) -> str:
    text = f"{table.name}: {table.comment}"
    text += "\n" if table.rows is None else f" {table.rows:,} rows.\n"
    if table.key:
        tie_break = f", then {table.tie_break}" if table.tie_break else ""
        parent = f" Parent: {table.parent}." if table.parent else ""
        text += f"Key: {', '.join(table.key)}{tie_break}.{parent}\n"
    rows = [
        (column.name, column.type + ("" if column.is_nullable else " NOT NULL"), column.comment)
        for column in table.columns
    ]
    return text + format_table(("column", "type", "meaning"), rows)
