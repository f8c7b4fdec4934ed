"""`scanlake backup`: a copy of the lake in a folder or on object storage, brought up to date by the next backup."""

from typing import Annotated, Final

import typer

from pipeline.cli.context import CommandContext
from pipeline.cli.options import Location
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake, Opening
from pipeline.publish.mirror import MirrorOptions, MirrorResult, complete_catalog, mirror_lake
from pipeline.publish.outcome import format_mirror
from pipeline.publish.stores import open_location
from pipeline.settings.locations import parse_location
from schemas.timestamps import now_us

EXAMPLES: Final = ("backup /mnt/backup", "backup s3://bucket/backup --with-images")
IS_MONITORED: Final = True
RESULT: Final = MirrorResult


def run(
    context: CommandContext,
    *,
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL",
            click_type=Location(parse_location),
            help="Folder: empty, new, or with a backup of this lake; or a URL: s3://, gs://, az://, file://.",
        ),
    ],
    with_images: Annotated[
        bool, typer.Option("--with-images", help="Also copy the images; only those that the target lacks.")
    ] = False,
) -> ExitCode:
    """Copy the lake into a folder or to object storage, or bring an earlier backup there up to date.

    A backup contains the catalog and everything else that `scanlake restore` needs: documents, parts and the ledger.
    Readers can attach its catalog.duckdb, and it stays a backup if you also publish to its place. A later backup copies
    only what is new and deletes what the lake no longer has. Every part is compared with its hash before it is copied.
    A place that contains anything else is refused.

    Each backup also reads a thirtieth of what is already there, so thirty backups have read all of it. Damage there is
    replaced from the lake. `scanlake check --backup` names damage and writes nothing.

    Images are copied with --with-images, and always to a place that already has some. A lake restored from a backup
    without images fetches them again with `scanlake images`. An image that is damaged in the lake does not stop a
    backup, but the exit code is 9.
    """
    store = open_location(folder)
    with Lake(context.settings().lake, doing="backup", opening=Opening.EXISTING) as lake:
        complete_catalog(lake, at=now_us())
        result = mirror_lake(lake, store, MirrorOptions(images=with_images, backup=True), at=now_us())
    return context.print_result(result, format_mirror(result))
