"""`scanlake rollback`: publish an earlier snapshot again, and pause syncs."""

from typing import Annotated, Any, Final

import typer

from pipeline.completion import complete_snapshots
from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.formatting import pluralize
from pipeline.lake.models import RunRecord
from pipeline.lake.snapshots import roll_back
from pipeline.maintenance.writable_lake import open_writable_lake
from pipeline.publish_after_run import publish_in_subprocess
from pipeline.version import __version__
from schemas.timestamps import new_run_id, now_us

GROUP: Final = "Maintain the lake"


def run(
    context: CommandContext,
    *,
    number: Annotated[
        int,
        typer.Argument(
            metavar="N",
            min=1,
            help="Number of the snapshot (see `scanlake snapshots`).",
            autocompletion=complete_snapshots,
        ),
    ],
) -> ExitCode:
    """Publish an earlier snapshot again and pause syncs.

    Publishes the content and the watermark of the snapshot as a new snapshot. Later parts stay for retention_hours,
    so a rollback can be rolled back. Syncs are refused until `scanlake unpause`, because the next sync could repeat
    the mistake.
    """
    settings = context.settings()
    at = now_us()
    run_record = RunRecord(new_run_id(), "rollback", __version__, at, state="done", ended_at=at)
    with open_writable_lake(settings, "rollback") as lake:
        published = roll_back(lake, number, run=run_record)
    text = (
        f"snapshot {published.snapshot} has the content of snapshot {number}: {pluralize(published.files, 'file')}\n"
        "syncs are paused; run `scanlake unpause` to allow them\n"
    )
    output: dict[str, Any] = {"rolled_back_to": number, "snapshot": published.snapshot, "files": published.files}
    if settings.publish_after_sync:
        output["publish"] = publish_in_subprocess(context, settings)
    context.print_result(output, text)
    return ExitCode.OK
