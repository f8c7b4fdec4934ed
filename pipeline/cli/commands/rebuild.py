"""`scanlake rebuild`: make all tables again from the documents."""

from contextlib import nullcontext
from typing import Annotated, Final

import typer

from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake, Opening
from pipeline.lake.ray_tasks import open_ray
from pipeline.lake.rebuild import RebuildResult, rebuild
from pipeline.output.formatting import pluralize

EXAMPLES: Final = ("rebuild", "rebuild --on ray")
RESULT: Final = RebuildResult


def run(
    context: CommandContext,
    *,
    on: Annotated[
        str | None,
        typer.Option(metavar="CLUSTER", help="Flatten the documents on a Ray cluster: ray, or ray://HOST:PORT."),
    ] = None,
) -> ExitCode:
    """Make all tables again from the documents, without calls to the service.

    Use it after an upgrade of scanlake that reads more from the documents: it fills a new column for every file. All
    tables change in one new snapshot.
    """
    settings = context.settings()
    cluster = nullcontext() if on is None else open_ray(on)
    with cluster as run_tasks, Lake(settings.lake, doing="rebuild", opening=Opening.EXISTING) as lake:
        result = rebuild(lake, run_tasks)
    text = (
        f"snapshot {result.snapshot}: {pluralize(result.files, 'file')}, {pluralize(result.rows, 'row')}"
        f" rebuilt in {result.seconds:.1f} s\n"
        f"{pluralize(result.parts_before, 'part')} -> {result.parts_after:,}\n"
    )
    return context.print_result(result, text)
