"""`scanlake plan`: the estimated cost of the next sync."""

from typing import Final

from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.output.formatting import format_bytes, format_duration, pluralize
from pipeline.processes.event_loop import run_async
from pipeline.settings.settings import require_base_url
from pipeline.sync.plan import SyncPlan, plan_sync

EXAMPLES: Final = ("plan", "plan --json")
RESULT: Final = SyncPlan


def run(context: CommandContext) -> ExitCode:
    """Estimate calls, time and disk space of the next sync.

    Reads the lake, and at most 20 list pages of each window without includes. It also reads one list page and the
    details of its files to estimate the size of a file and the rate, and discards them. Changes nothing.
    """
    settings = context.settings()
    require_base_url(settings)
    plan = run_async(plan_sync(settings, context.token(settings)))
    return context.print_result(plan, _format_plan(plan))


def _format_plan(plan: SyncPlan) -> str:
    about = "" if plan.exact else "about "
    total = "" if plan.files_in_service is None else f" of {plan.files_in_service:,} in the service"
    first = "The rest of the first sync" if plan.files_in_lake else "A first sync"
    name = first if plan.kind == "first" else "The next sync"
    lines = [
        f"{name} would fetch {about}{pluralize(plan.files_to_fetch, 'file')}{total}:",
        f"  calls    {about}{plan.list_calls:,} list and {plan.detail_calls:,} detail",
        f"  time     {'unknown' if plan.seconds is None else f'about {format_duration(round(plan.seconds))}'}",
        f"  disk     {'unknown' if plan.disk_bytes is None else f'about {format_bytes(plan.disk_bytes)}'}",
    ]
    if plan.verify_calls:
        lines.append(f"  verify   is due: about {plan.verify_calls:,} additional list calls")
    sample = pluralize(plan.sampled_files, "file")
    basis = f"Estimated from a sample of {sample}. This plan took {pluralize(plan.calls_made, 'call')}."
    return "\n".join([*lines, basis]) + "\n"
