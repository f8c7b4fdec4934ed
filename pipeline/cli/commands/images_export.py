"""`scanlake images export`: stored images in a folder to hand over."""

from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline.cli.context import CommandContext
from pipeline.cli.options import Location
from pipeline.errors import ExitCode
from pipeline.images.image_export import ExportedImages, export_images, select_images
from pipeline.lake.catalog.folder_checks import require_lake
from pipeline.lake.ledger.folder import require_outside_lakes
from pipeline.output.formatting import format_bytes, pluralize
from pipeline.query.reader import open_catalog, warn_if_incomplete
from pipeline.query.sandbox import run_interruptibly
from pipeline.settings.locations import parse_folder

EXAMPLES: Final = ("images export -o photos", 'images export -o damage --where "uploads.has_damage"')
RESULT: Final = ExportedImages


def run(
    context: CommandContext,
    *,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="DIR", click_type=Location(parse_folder), help="New or empty folder."),
    ],
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Only uploads that meet a condition on the tables uploads and files."),
    ] = None,
    thumbnails: Annotated[bool, typer.Option("--thumbnails", help="Also the thumbnails.")] = False,
) -> ExitCode:
    """Copy stored images into a folder, with checksums and a manifest.

    Every image is compared with its hash. manifest.csv names every selected image, including those that are not stored,
    with the reason. `sha256sum -c SHA256SUMS` checks the folder. An export that does not complete leaves no folder.
    """
    settings = context.settings()
    layout = require_lake(settings.lake)
    require_outside_lakes(out, f"--out {out}", settings.lake)
    with open_catalog(settings) as lake:
        warn_if_incomplete(lake)
        select = partial(select_images, lake, where, thumbnails=thumbnails)
        rows = run_interruptibly(lake, select, settings.query_memory_bytes)
        result = export_images(layout, rows, out)
    lines = [f"{pluralize(result.exported, 'image')}, {format_bytes(result.bytes)}, in {out}"]
    lines += [f"{count:,} {state.replace('_', ' ')}; see manifest.csv" for state, count in result.missing.items()]
    return context.print_result(result, "\n".join(lines) + "\n", ExitCode.REJECTS if result.missing else ExitCode.OK)
