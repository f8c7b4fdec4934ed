"""`scanlake export`: tables as files, or as one workbook or database."""

import os
from pathlib import Path
from typing import Annotated

import typer

from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.lake.export import ExportFormat, plan_export, run_export
from pipeline.lake.lake_folder import require_outside_lakes
from pipeline.lake.reader import open_catalog, run_interruptibly


def run(
    context: CommandContext,
    *,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder. It must be empty or not exist.")],
    output_format: Annotated[
        ExportFormat, typer.Option("--format", help="One file per table, or one workbook or database.")
    ],
    tables: Annotated[
        str | None, typer.Option(metavar="A,B", help="Tables or views to export. Default: all tables.")
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Partition the tables that have this column.")
    ] = None,
    no_formula_escape: Annotated[
        bool, typer.Option("--no-formula-escape", help="Write CSV values unchanged, also spreadsheet formulas.")
    ] = False,
) -> ExitCode:
    """Write tables to files, or to one workbook or database.

    All rows come from one snapshot. A spreadsheet reads CSV text as a formula if it begins with = + - @, a tab or a
    line end. Such text gets a leading '; --no-formula-escape leaves it unchanged. The other formats are always exact.
    """
    settings = context.settings()
    folder = Path(os.path.realpath(target))  # the real path is the one that SQL is allowed to write below
    require_outside_lakes(folder, str(target), settings.lake)
    names = [name.strip() for name in (tables or "").split(",") if name.strip()]
    with open_catalog(settings, writes=folder.parent) as lake:
        plan = plan_export(lake, output_format, names, partition_by, escape_formulas=not no_formula_escape)
        counts = run_interruptibly(lake, lambda: run_export(lake, folder, plan))
    text = "".join(f"{count:>12,} rows of {name}\n" for name, count in counts.items())
    context.print_result({"out": str(target.absolute()), "format": output_format.value, "rows": counts}, text)
    return ExitCode.OK
