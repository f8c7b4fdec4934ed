"""`scanlake compact`: merge many small parts into few large parts."""

from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, Final

import typer

from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.formatting import format_bytes, pluralize
from pipeline.maintenance.compact import run_compaction
from pipeline.maintenance.ray_executor import RayExecutor
from pipeline.maintenance.writable_lake import open_writable_lake

GROUP: Final = "Maintain the lake"


def run(
    context: CommandContext,
    *,
    full: Annotated[bool, typer.Option("--full", help="Merge all parts, even if compaction is not due.")] = False,
    on: Annotated[
        str | None,
        typer.Option(metavar="CLUSTER", help="Merge the parts on a Ray cluster: ray, or ray://HOST:PORT."),
    ] = None,
) -> ExitCode:
    """Merge small parts into large parts, so that queries stay fast.

    Syncs do this automatically when it is due. Readers are not disturbed: the replaced parts stay on disk for
    retention_hours.
    """
    settings = context.settings()
    cluster = nullcontext() if on is None else RayExecutor(on)
    with open_writable_lake(settings, "compact") as lake, cluster as executor:
        result = run_compaction(lake, settings, everything=full, executor=executor)
    if result is None:
        context.print_result({"compacted": None}, "nothing to compact\n")
        return ExitCode.OK
    text = (
        f"{pluralize(result.parts_before, 'part')} of {pluralize(result.part_groups, 'commit')}"
        f" merged into {result.parts_after:,}; {pluralize(result.superseded, 'superseded version')} removed\n"
        f"{format_bytes(result.bytes_before)} -> {format_bytes(result.bytes_after)}\n"
    )
    context.print_result({"compacted": asdict(result)}, text)
    return ExitCode.OK
