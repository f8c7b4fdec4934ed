"""`scanlake rollback`: show readers what an earlier snapshot showed, and pause syncing."""

import sys
from typing import Annotated

import typer

from pipeline import __version__
from pipeline.call import Call
from pipeline.errors import Exit
from pipeline.lake.history import roll_back
from pipeline.lake.lake import Lake
from pipeline.lake.records import RunRecord
from pipeline.runs.session import local_us, new_run_id
from pipeline.wording import many


def run(
    call: Call,
    *,
    number: Annotated[int, typer.Argument(metavar="N", min=1, help="The snapshot; `scanlake snapshots` lists them.")],
) -> Exit:
    """Go back to an earlier snapshot, and pause syncing.

    What the snapshot showed is published as a new one, with its horizon. Later parts stay for the time of
    grace, so a rollback can itself be rolled back. Syncs are refused until `scanlake resume`: else the next
    one would repeat the mistake.
    """
    settings = call.settings()
    at = local_us()
    made = RunRecord(new_run_id(), "rollback", __version__, at, state="done", ended_at=at)
    with Lake(settings.lake, doing="rollback", anchor=settings.anchor, must_exist=True) as lake:
        record = roll_back(lake, number, run=made)
    if call.as_json:
        call.print_json({"rolled_back_to": number, "snapshot": record.snapshot, "files": record.files})
    else:
        sys.stdout.write(
            f"snapshot {record.snapshot} shows what snapshot {number} showed: {many(record.files, 'file')}\n"
            "syncing is paused; `scanlake resume` lets it go on\n"
        )
    return Exit.DONE
