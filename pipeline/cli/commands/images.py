"""`scanlake images`: download the images of uploads into the lake."""

from typing import Annotated, Final

import typer

from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.images.download import fetch_images, plan_images
from pipeline.images.image_writer import ImageSummary
from pipeline.images.work_list import ImageSelection, WorkCounts
from pipeline.lake.catalog.folder_checks import require_lake
from pipeline.lake.lake import Lake, Opening
from pipeline.output.formatting import format_bytes, pluralize
from pipeline.output.redaction import to_one_line
from pipeline.settings.settings import require_base_url

EXAMPLES: Final = ("images --dry-run", 'images --where "uploads.has_damage"')
IS_MONITORED: Final = True
RESULT: Final = ImageSummary | WorkCounts

_MAX_REASONS: Final = 10


def run(
    context: CommandContext,
    *,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Only uploads that meet a condition on the tables uploads and files."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Also images that were not found or refused before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be fetched, and change nothing.")] = False,
) -> ExitCode:
    """Download the images of uploads into the lake, checked and named by their hash.

    Every image is fetched once. Images with the same content share one file below images/. If a link has expired, its
    file is read again once to renew it. An image that cannot be stored is not found (the service no longer has it),
    refused (the answer is not an image, or lacks its end) or failed (every attempt failed). The next run tries failed
    images again. It tries the others only with --retry, or after a sync has fetched their file again.

    The next run continues an interrupted one. With max_duration_seconds the run stops with exit code 0.

    `scanlake check --read-data` hashes every stored image. `scanlake repair --read-data` lets the next run fetch
    damaged ones again.
    """
    settings = context.settings()
    require_base_url(settings)
    selection = ImageSelection(where, settings.images_thumbnails, retry)
    if dry_run:
        require_lake(settings.lake)
        counts = plan_images(settings, selection)
        return context.print_result(counts, _format_plan(counts))
    token = context.token(settings)
    with Lake(settings.lake, doing="images", opening=Opening.EXISTING) as lake:
        summary = fetch_images(lake, settings, token, selection, context.progress())
    code = ExitCode.REJECTS if summary.has_new_rejects else ExitCode.OK
    return context.print_result(summary, "" if context.quiet else format_summary(summary), code)


def _format_plan(counts: WorkCounts) -> str:
    selected = pluralize(counts.selected, "image")
    lines = [f"{selected} selected: {counts.to_fetch:,} to fetch, {counts.stored:,} stored"]
    if counts.not_found or counts.refused:
        lines.append(f"{counts.not_found:,} not found and {counts.refused:,} refused before")
    if counts.without_link:
        lines.append(f"{counts.without_link:,} without a link in the lake")
    return "\n".join([*lines, "nothing was fetched"]) + "\n"


def format_summary(summary: ImageSummary) -> str:
    """Return the closing lines of a run."""
    rate = summary.stored / summary.seconds if summary.seconds else 0.0
    stored = [f"{pluralize(summary.stored, 'image')} stored, {format_bytes(summary.bytes)}"]
    stored += [f"{summary.duplicates:,} with the content of another"] if summary.duplicates else []
    stored += [f"{summary.adopted:,} left by a killed run"] if summary.adopted else []
    stored += [f"{summary.stored_before:,} stored before"] if summary.stored_before else []
    missing = {"not found": summary.not_found, "refused": summary.refused, "failed": summary.failed}
    before = {"not found before": summary.not_found_before, "refused before": summary.refused_before}
    others = [f"{count:,} {name}" for name, count in {**missing, **before}.items() if count]
    others += [f"{summary.without_link:,} without a link in the lake"] if summary.without_link else []
    calls = [f"{summary.requests.get('image', 0):,} image", f"{summary.requests.get('detail', 0):,} detail"]
    lines = {
        "images": ", ".join(stored),
        "missing": ", ".join(others),
        "time": f"{summary.seconds:.1f} s, {rate:,.0f} images/s",
        "calls": " and ".join(calls) + f", {pluralize(summary.retries, 'retry', 'retries')}",
        "lake": f"{pluralize(summary.lake.images, 'image')}, {format_bytes(summary.lake.bytes)}",
        "next": f"stopped at max_duration_seconds, {summary.left:,} left: the next run continues"
        if summary.state == "stopped"
        else "",
    }
    text = "".join(f"{name:<9}  {line}\n" for name, line in lines.items() if line)
    reasons = list(summary.reasons.items())[:_MAX_REASONS]
    return text + "".join(f"  {count:,} x {to_one_line(reason)}\n" for reason, count in reasons)
