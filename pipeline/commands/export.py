"""`scanlake export`: the lake's tables as files, or as one database to mail."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.call import Call
from pipeline.errors import Exit, SettingsError
from pipeline.lake.extracts import Shape, export, plan
from pipeline.published import has_catalog, published, until_done


def run(
    call: Call,
    *,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty or not there yet.")],
    shape: Annotated[Shape, typer.Option("--format", help="Files a table, or one workbook or database.")],
    tables: Annotated[
        str | None,
        typer.Option(
            "--tables", metavar="A,B", help="These tables or views. Default: every table.", show_default=False
        ),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by", metavar="COLUMN", help="Split tables that have it by this column.", show_default=False
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Leave CSV exact: do not guard spreadsheets against formulas.")
    ] = False,
) -> Exit:
    """Write the tables to files, or to one database to mail.

    All is of one snapshot. In CSV, text that a spreadsheet would take for a formula (it begins with = + - @,
    a tab or a line's end) gets a ' before it; --raw leaves it exact. The other formats need no guard.
    """
    settings = call.settings()
    if not has_catalog(settings):
        raise SettingsError(f"No lake at {settings.lake}.", remedy="Run `scanlake sync` first, or mend --lake.")
    folder = Path(os.path.realpath(target))  # where it really is: that is what SQL may write below
    if folder.is_relative_to(settings.lake.resolve()):
        raise SettingsError(f"{target} lies within the lake.", remedy="Export to somewhere else.")
    named = [name.strip() for name in (tables or "").split(",") if name.strip()]
    with published(settings, writes=folder.parent) as lake:
        wanted = plan(lake, shape, named, partition_by, raw=raw)
        counts = until_done(lake, lambda: export(lake, folder, wanted))
    if call.as_json:
        call.print_json({"out": str(target.absolute()), "format": shape.value, "rows": counts})
    else:
        for name, count in counts.items():
            sys.stdout.write(f"{count:>12,} rows of {name}\n")
    return Exit.DONE
