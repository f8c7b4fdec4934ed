"""`scanlake sync`: fetch everything that changed in the service into the lake."""

import os
import sys
from typing import Annotated, Any, Final

import typer
from msgspec import Struct
from msgspec.structs import asdict, replace

from pipeline.cli.context import CommandContext
from pipeline.cli.followers import publish_in_subprocess, run_maintenance
from pipeline.cli.option_rules import Excludes
from pipeline.cli.summaries import format_sync_summary, format_verification
from pipeline.cli.time_bounds import parse_range
from pipeline.client.probe import probe_service
from pipeline.errors import ExitCode
from pipeline.lake.compaction import compact_if_due
from pipeline.lake.lake import Lake
from pipeline.lake.storage.mounts import remember_mount
from pipeline.processes.event_loop import run_async
from pipeline.publish.outcome import PublishOutcome
from pipeline.settings.settings import Settings, require_base_url
from pipeline.sync.after_run import LakeStats, RunDelta, measure_delta, report_killed_sync
from pipeline.sync.sync import SyncSummary, TimeRange, sync
from pipeline.sync.verify import VerifyResult, VerifyStopped, verify_if_due

EXAMPLES: Final = ("sync", "sync --limit 100")
IS_MONITORED: Final = True


class ImagesOutcome(Struct, frozen=True):
    """The download of images after a sync; `problem` is None if all are stored."""

    exit_code: int
    problem: str | None


class SyncOutcome(SyncSummary, frozen=True, kw_only=True):
    """A sync, the lake after it, and what followed: publish, images and verify are None if they were not due."""

    delta: RunDelta
    lake: LakeStats
    publish: PublishOutcome | None = None
    images: ImagesOutcome | None = None
    verify: VerifyResult | VerifyStopped | None = None


TAKES_ALL_SOURCES: Final = True
RESULT: Final = SyncOutcome


def run(
    context: CommandContext,
    *,
    since: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Fetch files updated at or after this (ISO-8601, UTC).")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Fetch files updated before this; a date includes its day.")
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="List all files again; fetch those that differ from the lake or have newly signed links."
        ),
        Excludes("--since", "--until"),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=100_000, help="Fetch only the N newest files, as a trial."),
        Excludes("--since", "--until", "--full"),
    ] = None,
    accept_new_base_url: Annotated[
        bool, typer.Option("--accept-new-base-url", help="Continue this lake after the service's base URL changed.")
    ] = False,
) -> ExitCode:
    """Fetch everything that changed in the service into the lake.

    The first run fetches everything; later runs fetch only changes. The next run continues an interrupted one. Every 7
    days (verify_every_days) a sync also verifies the lake.

    --limit fetches the newest files of a service of any size, including all with the same update time as the last one.
    The lake is not complete then. A sync without --limit fetches the rest, and none of the files twice.

    If max_duration_seconds stops a sync, it ends with exit code 0 and prints what is left. A verify is stopped in the
    same way, and the next sync starts it again.
    """
    time_range = TimeRange(*parse_range(since, until), full, limit)
    settings = context.settings()
    require_base_url(settings)
    report_killed_sync(settings, context.source or "")
    token = context.token(settings)
    lake = Lake(settings.lake, doing="sync")
    if lake.is_new:  # a wrong address or token leaves no folder
        run_async(probe_service(settings, token, is_quick=False))
    with lake:
        outcome = _sync_and_verify(context, lake, settings, token, time_range, accept_new_base_url=accept_new_base_url)
        compact_if_due(lake, settings)
    remember_mount(settings.lake)
    outcome = replace(outcome, **_run_followers(context, settings))
    text = _format_verify(settings, outcome.verify, prints_summary=_prints_summary(context))
    return context.print_result(outcome, text, _choose_exit_code(outcome))


def _sync_and_verify(
    context: CommandContext,
    lake: Lake,
    settings: Settings,
    token: str,
    time_range: TimeRange,
    *,
    accept_new_base_url: bool,
) -> SyncOutcome:
    """Sync, print the summary, and verify if that is due; a sync with a limit is not verified."""
    progress = context.progress()
    before = lake.ledger.last_snapshot(), lake.ledger.next_commit_seq()
    summary = run_async(sync(lake, settings, token, time_range, progress, accept_new_base_url=accept_new_base_url))
    delta = measure_delta(lake, summary.run_id, summary.files_stored, before, progress.last)
    stats = LakeStats.read_from(lake)
    if _prints_summary(context):
        is_partial = time_range.is_explicit and not time_range.full
        sys.stdout.write(format_sync_summary(summary, delta, stats, is_partial=is_partial))
    verification = None
    if time_range.newest is None:  # a verify fetches all that the lake lacks
        verification = run_async(verify_if_due(lake, settings, token, summary, progress))
    if verification is not None:
        stats = LakeStats.read_from(lake)
    return SyncOutcome(**asdict(summary), delta=delta, lake=stats, verify=verification)


def _prints_summary(context: CommandContext) -> bool:
    return not (context.as_json or context.quiet)


def _choose_exit_code(outcome: SyncOutcome) -> ExitCode:
    is_consistent = not isinstance(outcome.verify, VerifyResult) or outcome.verify.consistent
    return ExitCode.OK if is_consistent and not (outcome.rejects or outcome.unproven) else ExitCode.REJECTS


def _run_followers(context: CommandContext, settings: Settings) -> dict[str, Any]:
    """Run the commands that follow a sync, each in a process of its own; return their results by field."""
    results: dict[str, Any] = {}
    if settings.publish_after_sync:
        results["publish"] = publish_in_subprocess(context, settings)
    if settings.images_after_sync:
        child = run_async(run_maintenance(["images"], options=context.child_options(), variables=os.environ))
        results["images"] = ImagesOutcome(child.code, child.message or None)
        if settings.publish_after_sync and settings.publish_images:
            # Again: images may take hours, and the tables must not wait for them.
            results["publish"] = publish_in_subprocess(context, settings)
    return results


def _format_verify(
    settings: Settings, verification: VerifyResult | VerifyStopped | None, *, prints_summary: bool
) -> str:
    if isinstance(verification, VerifyStopped) and prints_summary:
        return "verify     stopped at max_duration_seconds: the next sync does it again\n"
    if isinstance(verification, VerifyResult) and (prints_summary or not verification.consistent):
        return f"verify (due every {settings.verify_every_days:g} days):\n{format_verification(verification)}"
    return ""
