"""`scanlake rollback`: publish an earlier snapshot again and pause syncs, or allow them again."""

from typing import Annotated, Final

import typer
from msgspec import Struct

from pipeline import __version__
from pipeline.cli.context import CommandContext, require_confirmation
from pipeline.cli.followers import publish_in_subprocess
from pipeline.cli.option_rules import Excludes
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.lake import Lake, Opening
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.rollback import RollbackPlan, clear_pause, plan_rollback, roll_back
from pipeline.output.formatting import pluralize
from pipeline.publish.outcome import PublishOutcome
from schemas.timestamps import new_run_id, now_us


class RollbackResult(Struct, frozen=True):
    """The new snapshot with the content of an earlier one, and its publish to object storage."""

    rolled_back_to: int
    snapshot: int
    files: int
    publish: PublishOutcome | None


class RollbackUndone(Struct, frozen=True):
    """Syncs are allowed: the snapshot that the lake was rolled back to; None if it was not."""

    was_rolled_back_to: int | None


EXAMPLES: Final = ("rollback 12", "rollback --undo")
RESULT: Final = RollbackResult | RollbackUndone


def run(
    context: CommandContext,
    *,
    number: Annotated[
        int | None, typer.Argument(metavar="[N]", min=1, help="Number of the snapshot (see `scanlake snapshots`).")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Allow syncs again.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Roll back without confirmation."), Excludes("--undo")] = False,
) -> ExitCode:
    """Publish an earlier snapshot again and pause syncs, or allow them again.

    Shows what the lake would lose and asks for confirmation. Without a terminal, --yes is required. The snapshot must
    still be kept; its files and its watermark become a new snapshot. Nothing fetched is lost, so a rollback can be
    rolled back.

    Syncs are refused until `scanlake rollback --undo`, because the next sync could repeat the mistake. The sync after
    that fetches again what is later than the restored snapshot, and verifies the lake unless verify_every_days is 0.
    Then the lake has the current state of the service again.
    """
    if undo is (number is not None):
        raise SettingsError("A rollback needs the number of a snapshot, or --undo.", hint="Run `scanlake snapshots`.")
    settings = context.settings()
    with Lake(settings.lake, doing="rollback", opening=Opening.EXISTING) as lake:
        if number is None:
            pause = clear_pause(lake.ledger)
            text = f"syncs are allowed again, from snapshot {pause['to']}; run `scanlake sync`\n" if pause else ""
            return context.print_result(RollbackUndone(pause["to"] if pause else None), text or "nothing to undo\n")
        plan = plan_rollback(lake, number)
        if not yes:
            refusal = f"A rollback to snapshot {number} changes what readers see. Nothing was changed."
            require_confirmation(_describe_loss(plan), f"Roll back to snapshot {number}?", refusal=refusal)
        at = now_us()
        run_record = RunRecord(new_run_id(), "rollback", __version__, at, state="done", ended_at=at)
        published = roll_back(lake, plan, run=run_record)
    text = (
        f"snapshot {published.snapshot} has the content of snapshot {number}: {pluralize(published.files, 'file')}\n"
        "syncs are paused; run `scanlake rollback --undo` to allow them\n"
    )
    outcome = publish_in_subprocess(context, settings) if settings.publish_after_sync else None
    return context.print_result(RollbackResult(number, published.snapshot, published.files, outcome), text)


def _describe_loss(plan: RollbackPlan) -> str:
    """Return what readers would not see any more after a rollback."""
    state = "" if plan.target.complete else "It is incomplete: it was published during a run.\n"
    return (
        f"{state}{pluralize(plan.disappearing, 'file')} that came in later would disappear,"
        f" {pluralize(plan.changing, 'file')} would have an earlier version,"
        f" {pluralize(plan.returning, 'deleted file')} would return.\n"
    )
