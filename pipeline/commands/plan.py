"""`scanlake plan`: the estimated cost of the next sync."""

from typing import Final

from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.formatting import format_bytes, pluralize
from pipeline.process import run_async
from pipeline.settings import require_base_url
from pipeline.sync.plan import SyncEstimate, estimate_sync

GROUP: Final = "Fetch data"


def run(context: CommandContext) -> ExitCode:
    """Estimate calls, time, rows and disk space of the next sync.

    Reads at most 20 list pages without includes, and the lake. For an empty lake it also reads some list items and
    100 details, to estimate the size of a file, and discards them. Changes nothing.
    """
    settings = context.settings()
    require_base_url(settings)
    estimate = run_async(estimate_sync(settings, context.token(settings)))
    context.print_result(estimate.as_json(), _format_plan(estimate))
    return ExitCode.OK


def _format_plan(estimate: SyncEstimate) -> str:
    about = "" if estimate.exact else "about "
    total = "" if estimate.files_in_service is None else f" of {estimate.files_in_service:,} in the service"
    run_name = "A first sync" if estimate.kind == "first" else "The next sync"
    if estimate.kind == "first" and estimate.files_in_lake:
        run_name = "The rest of the first sync"
    disk = estimate.disk
    sizes = ", ".join(
        f"{name} {format_bytes(size)}"
        for name, size in (("parts", disk.parts), ("catalogs", disk.catalogs), ("ledger", disk.ledger))
    )
    lines = [
        f"{run_name} would fetch {about}{pluralize(estimate.files_to_fetch, 'file')}{total}:",
        f"  calls    {about}{estimate.list_calls:,} list and {estimate.detail_calls:,} detail",
        f"  time     {_format_time(estimate)}",
        f"  rows     about {estimate.rows:,}, estimated from {estimate.size_per_file.basis}",
        f"  disk     about {format_bytes(disk.total)}: {sizes}",
    ]
    if estimate.verify_calls:
        lines.append(f"  verify   is due: about {estimate.verify_calls:,} additional list calls")
    return "\n".join([*lines, *estimate.notes, f"This plan took {pluralize(estimate.calls_made, 'call')}."]) + "\n"


def _format_time(estimate: SyncEstimate) -> str:
    if estimate.seconds is None or estimate.call_rate.calls_per_second is None:
        return f"unknown: {estimate.call_rate.basis}"
    minutes = estimate.seconds / 60
    time = f"{minutes:,.0f} min" if minutes >= 10 else f"{minutes:.1f} min" if minutes >= 1 else "under a minute"
    return f"{time} ({estimate.call_rate.calls_per_second:,.0f} calls/s, {estimate.call_rate.basis})"
