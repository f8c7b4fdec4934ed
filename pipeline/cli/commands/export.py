"""`scanlake export`: tables as files, or as one workbook."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from msgspec import Struct

from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.ledger.folder import require_outside_lakes
from pipeline.query.export import run_export, select_tables
from pipeline.query.reader import open_catalog, warn_if_incomplete
from pipeline.query.sandbox import run_interruptibly
from pipeline.settings.locations import is_file_name

EXAMPLES: Final = ("export tables --format csv", "export files.xlsx --tables files,uploads")


class ExportedTables(Struct, frozen=True):
    """The place of an export, its format, and the rows by table."""

    out: Path
    format: str
    rows: Mapping[str, int]


RESULT: Final = ExportedTables


def run(
    context: CommandContext,
    *,
    target: Annotated[
        Path, typer.Argument(metavar="FOLDER|FILE", help="New or empty folder, or a new file that ends in .xlsx.")
    ],
    output_format: Annotated[
        Literal["parquet", "csv"] | None,
        typer.Option("--format", help="Format of the files in a folder: parquet or csv. Default: parquet."),
    ] = None,
    tables: Annotated[
        str | None, typer.Option(metavar="A,B", help="Tables or views to export. Default: all tables.")
    ] = None,
    no_formula_escape: Annotated[
        bool, typer.Option("--no-formula-escape", help="Write CSV values unchanged, also spreadsheet formulas.")
    ] = False,
) -> ExitCode:
    """Write tables to files, or to one workbook.

    A folder gets one file per table; a name that ends in .xlsx becomes a workbook. All rows come from one snapshot.

    A spreadsheet reads CSV text as a formula if it begins with = + - @, a tab or a line end. Such text gets a leading
    '; --no-formula-escape leaves it unchanged. The other formats are always exact: values that a workbook cannot hold,
    such as a text of more than 32,767 characters, are refused.
    """
    settings = context.settings()
    require_outside_lakes(target, str(target), settings.lake)
    chosen = _choose_format(target, output_format)
    names = [name.strip() for name in (tables or "").split(",") if name.strip()]
    with open_catalog(settings) as lake:
        warn_if_incomplete(lake)
        selected = select_tables(lake, names)
        export = partial(run_export, lake, target, chosen, selected, escape_formulas=not no_formula_escape)
        counts = run_interruptibly(lake, export, settings.query_memory_bytes)
    text = "" if context.quiet else "".join(f"{count:>12,} rows of {name}\n" for name, count in counts.items())
    return context.print_result(ExportedTables(target.absolute(), chosen, counts), text)


def _choose_format(target: Path, typed: str | None) -> str:
    """Return the format of a workbook by its name, of a folder as typed. Raises `SettingsError` for a mix."""
    if target.suffix.lower() != ".xlsx":
        if is_file_name(target) and not target.is_dir():
            hint = "Use a folder, .xlsx for a workbook, or `scanlake query` with --out for the file of one table."
            raise SettingsError(f"{target.name}: an export is a folder or a workbook.", hint=hint)
        return typed or "parquet"
    if typed is not None:
        hint = "Leave out --format for a workbook, or use a folder."
        raise SettingsError(f"{target.name} and --format {typed} exclude each other.", hint=hint)
    return "xlsx"
