"""`scanlake unpause`: allow syncs again after a rollback."""

from typing import Final

from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.lake.snapshots import clear_pause
from pipeline.maintenance.writable_lake import open_writable_lake

GROUP: Final = "Maintain the lake"


def run(context: CommandContext) -> ExitCode:
    """Allow syncs again after a rollback.

    The next sync fetches what changed since the watermark of the restored snapshot. It also verifies the lake, unless
    verify_every_days is 0. Afterwards the lake has the current state of the service.
    """
    settings = context.settings()
    with open_writable_lake(settings, "unpause") as lake:
        pause = clear_pause(lake.ledger)
    if pause is None:
        context.print_result({"was_rolled_back_to": None}, "syncs were not paused\n")
    else:
        text = f"syncs are allowed again, from snapshot {pause['to']}; run `scanlake sync`\n"
        context.print_result({"was_rolled_back_to": pause["to"]}, text)
    return ExitCode.OK
