"""`scanlake unpause`: allow syncs again after a rollback."""

import sys

from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from pipeline.lake.snapshots import clear_pause


def run(context: CommandContext) -> ExitCode:
    """Allow syncs again after a rollback.

    The next sync fetches what changed since the watermark of the restored snapshot. It also verifies the lake, unless
    verify_every_days is 0. Afterwards the lake has the current state of the service.
    """
    settings = context.settings()
    with Lake(settings.lake, doing="unpause", reader_root=settings.reader_root, must_exist=True) as lake:
        pause = clear_pause(lake.ledger)
    if context.as_json:
        context.print_json({"was_rolled_back_to": None if pause is None else pause["to"]})
    elif pause is None:
        sys.stdout.write("syncs were not paused\n")
    else:
        sys.stdout.write(f"syncs are allowed again, from snapshot {pause['to']}; run `scanlake sync`\n")
    return ExitCode.OK
