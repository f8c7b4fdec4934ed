"""`scanlake tables`: the data dictionary of the newest snapshot."""

import difflib
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from msgspec import Struct

from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode, SettingsError
from pipeline.output.tables import format_table
from pipeline.query.reader import fetch_catalog_columns, fetch_dicts, open_catalog

EXAMPLES: Final = ("tables", "tables uploads")


class DescribedColumn(Struct, frozen=True):
    """A column; `refers_to` is the TABLE.COLUMN that it joins."""

    name: str
    type: str
    comment: str
    is_key: bool = False
    is_nullable: bool = True
    refers_to: str | None = None


class DescribedTable(Struct, frozen=True):
    """A table or view, with what a row is."""

    name: str
    comment: str
    columns: list[DescribedColumn]


class DataDictionary(Struct, frozen=True):
    """The tables and views, also those of meta."""

    tables: Sequence[DescribedTable]


RESULT: Final = DataDictionary
_DECLARED: Final = "SELECT table_name, column_name, is_key, is_nullable, refers_to FROM meta.data_dictionary"


def run(
    context: CommandContext,
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Table or view to describe. Default: list all.")
    ] = None,
) -> ExitCode:
    """List the tables and views, or describe one.

    All TIMESTAMP values are UTC: use utc_now() for the current time. `scanlake status` counts the rows.
    """
    tables: dict[str, DescribedTable] = {}
    with open_catalog(context.settings()) as lake:
        declared = fetch_dicts(lake, _DECLARED)
        details = {(row.pop("table_name"), row.pop("column_name")): row for row in declared}
        for row in fetch_catalog_columns(lake):
            table = tables.setdefault(row["name"], DescribedTable(row["name"], row["comment"], []))
            column = (row["column_name"], row["data_type"], row["column_comment"])
            table.columns.append(DescribedColumn(*column, **details.get((row["name"], row["column_name"]), {})))
    if name is None:
        rows = [(table.name, table.comment) for table in tables.values()]
        return context.print_result(
            DataDictionary(list(tables.values())), lambda: format_table(("table or view", "contents"), rows)
        )
    selected = tables.get(name.removeprefix("main."))
    if selected is None:
        similar = difflib.get_close_matches(name, tables, n=1) or difflib.get_close_matches(f"meta.{name}", tables, n=1)
        question = f" Did you mean {similar[0]}?" if similar else ""
        raise SettingsError(f"No table {name}.{question}", hint="Run `scanlake tables` to list the tables.")
    return context.print_result(DataDictionary([selected]), lambda: _format_table(selected))


def _format_table(table: DescribedTable) -> str:
    key = ", ".join(column.name for column in table.columns if column.is_key)
    rows = [
        (column.name, column.type + ("" if column.is_nullable else " NOT NULL"), column.comment)
        for column in table.columns
    ]
    heading = f"{table.name}: {table.comment}\n" + (f"Key: {key}.\n" if key else "")
    return heading + format_table(("column", "type", "meaning"), rows)
