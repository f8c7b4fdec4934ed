"""`scanlake resume`: let syncs run again after a rollback."""

import sys

from pipeline.call import Call
from pipeline.errors import Exit
from pipeline.lake.history import resume
from pipeline.lake.lake import Lake


def run(call: Call) -> Exit:
    """Let syncs run again after a rollback.

    The next one fetches what has changed since the horizon of the snapshot that was gone back to, and
    verifies the lake (unless verify_every_days is 0): afterwards it shows what the service holds.
    """
    settings = call.settings()
    with Lake(settings.lake, doing="resume", anchor=settings.anchor, must_exist=True) as lake:
        pause = resume(lake.ledger)
    if call.as_json:
        call.print_json({"was_rolled_back_to": None if pause is None else pause["to"]})
    elif pause is None:
        sys.stdout.write("syncing was not paused\n")
    else:
        sys.stdout.write(f"syncing goes on from snapshot {pause['to']}; run `scanlake sync`\n")
    return Exit.DONE
