"""`scanlake replay`: rebuild all tables from the documents in raw/."""

from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, Final

import typer

from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.formatting import pluralize
from pipeline.maintenance.ray_executor import RayExecutor
from pipeline.maintenance.replay import replay
from pipeline.maintenance.writable_lake import open_writable_lake

GROUP: Final = "Maintain the lake"


def run(
    context: CommandContext,
    *,
    on: Annotated[
        str | None,
        typer.Option(metavar="CLUSTER", help="Flatten the documents on a Ray cluster: ray, or ray://HOST:PORT."),
    ] = None,
) -> ExitCode:
    """Rebuild all tables from the raw documents, without calls to the service.

    Use it after an upgrade of scanlake that reads more from the documents: it fills a new column for every file.
    All tables change in one new snapshot.
    """
    settings = context.settings()
    cluster = nullcontext() if on is None else RayExecutor(on)
    with open_writable_lake(settings, "replay") as lake, cluster as executor:
        result = replay(lake, executor)
    text = (
        f"snapshot {result.snapshot}: {pluralize(result.files, 'file')}, {pluralize(result.rows, 'row')}"
        f" rebuilt in {result.seconds:.1f} s\n"
        f"{pluralize(result.parts_before, 'part')} -> {result.parts_after:,}\n"
    )
    context.print_result(asdict(result), text)
    return ExitCode.OK
