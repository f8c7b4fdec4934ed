"""`scanlake backup`: a copy of the lake that opens by itself and syncs on."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipeline.call import Call
from pipeline.errors import Exit
from pipeline.lake.lake import Lake
from pipeline.runs.copying import backup
from pipeline.wording import many


def run(
    call: Call,
    *,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An empty folder, or one that is not there yet.")],
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy every part, also where a hard link would do: for a backup to move.")
    ] = False,
) -> Exit:
    """Copy the lake, as it stands, into an empty folder.

    The copy is a lake: it opens by itself, and a sync goes on with it. On the same file system parts are hard
    links, which take neither time nor space; they are never written again, so the two lakes do not touch.
    What a backup left that was killed, the next one to the same folder replaces.
    """
    settings = call.settings()
    with Lake(settings.lake, doing="backup", anchor=settings.anchor, must_exist=True) as lake:
        done = backup(lake, folder, copy=copy)
    if call.as_json:
        call.print_json(asdict(done))
    else:
        sys.stdout.write(
            f"{many(done.files, 'file')} in {many(done.parts, 'part')} ({done.bytes / 1e6:,.1f} MB) to {done.folder}:"
            f" {done.linked:,} linked, {done.copied:,} copied\n"
        )
    return Exit.DONE
