"""`scanlake export`: tables as files, or as one workbook or database."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline.commands._completeness import warn_if_incomplete
from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.lake.export import ExportFormat, find_current_export, plan_export, run_export
from pipeline.lake.lake_folder import require_outside_lakes
from pipeline.lake.reader import open_catalog, run_interruptibly

GROUP: Final = "Use the data"


def run(
    context: CommandContext,
    *,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder: empty or new, unless --replace.")],
    output_format: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="parquet or csv: one file per table; xlsx: a workbook; duckdb: a database.",
        ),
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
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the folder's export of an earlier --replace; skip it if current.")
    ] = False,
) -> ExitCode:
    """Write tables to files, or to one workbook or database.

    All rows come from one snapshot. A spreadsheet reads CSV text as a formula if it begins with = + - @, a tab or a
    line end. Such text gets a leading '; --no-formula-escape leaves it unchanged. The other formats are always exact.

    With --replace the same folder is renewed by every call: its files are replaced when all new ones are complete, and
    nothing is written while the lake has the same rows. Other files in the folder are refused, never removed.
    """
    settings = context.settings()
    folder = Path(os.path.realpath(target))  # the real path is the one that SQL is allowed to write below
    require_outside_lakes(folder, str(target), settings.lake)
    names = [name.strip() for name in (tables or "").split(",") if name.strip()]
    with open_catalog(settings, writes=folder.parent) as lake:
        warn_if_incomplete(lake)
        escape = not no_formula_escape
        plan = plan_export(lake, output_format, names, partition_by, escape_formulas=escape, replaces=replace)
        current = find_current_export(lake, folder, plan)
        counts = current.rows if current else run_interruptibly(lake, lambda: run_export(lake, folder, plan))
    text = "".join(f"{count:>12,} rows of {name}\n" for name, count in counts.items())
    text += f"unchanged: the folder has snapshot {current.snapshot}\n" if current else ""
    text = "" if context.quiet else text
    result = {"out": str(target.absolute()), "format": output_format.value, "rows": dict(counts)}
    context.print_result(result | ({"unchanged": current is not None} if replace else {}), text)
    return ExitCode.OK
