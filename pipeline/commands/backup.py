"""`scanlake backup`: a copy of the lake that can be opened and synced."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands._open_lake import open_lake
from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.formatting import format_bytes, pluralize
from pipeline.maintenance.backup import backup


def run(
    context: CommandContext,
    *,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the copy. It must be empty or not exist.")],
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy every part instead of using hard links. Use it for a backup to move.")
    ] = False,
) -> ExitCode:
    """Copy the lake into an empty folder.

    The copy is a lake: it can be opened and synced. On the same file system the parts are hard links, which take no
    time and no space. Parts are never written again, so the two lakes are independent. A backup replaces an
    interrupted backup in the same folder.
    """
    settings = context.settings()
    with open_lake(context, settings, "backup", is_backup=True) as lake:
        result = backup(lake, folder, copy=copy)
    text = (
        f"{pluralize(result.files, 'file')} in {pluralize(result.parts, 'part')} ({format_bytes(result.bytes)})"
        f" to {result.folder}: {result.linked:,} linked, {result.copied:,} copied\n"
    )
    context.print_result(asdict(result), text)
    return ExitCode.OK
