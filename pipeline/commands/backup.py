"""`scanlake backup`: a copy of the lake in a folder or on object storage, brought up to date by the next backup."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.formatting import format_bytes, pluralize
from pipeline.maintenance.writable_lake import open_writable_lake
from pipeline.publish.backup import BackupResult, upload_backup
from pipeline.publish.object_store import open_folder_or_store
from schemas.timestamps import now_us

GROUP: Final = "Maintain the lake"
FOLDER_PER_SOURCE: Final = "folder"
RESULT: Final = BackupResult


def run(
    context: CommandContext,
    *,
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL",
            help="Folder: empty, new, or with a backup of this lake; or a URL: s3://, gs://, az://, file://.",
        ),
    ],
    with_images: Annotated[
        bool, typer.Option("--with-images", help="Also copy the images; only those that the target lacks.")
    ] = False,
) -> ExitCode:
    """Copy the lake into a folder or to object storage, or bring an earlier backup there up to date.

    A backup has the parts, the documents and the ledger; `scanlake restore` makes a lake of it. A later backup to the
    same place copies only new parts and deletes those that the lake no longer has. Every part is compared with its
    hash before it is copied. A place with anything else is refused.

    Images are copied only with --with-images. A lake that is made of a backup without them fetches them again with
    `scanlake images`. An image that is damaged in the lake does not stop a backup: the exit code is 9.

    With --all: the folder has the name of the source. A source that fails does not stop the others; the exit code is
    the most severe one.
    """
    store = open_folder_or_store(folder)
    with open_writable_lake(context.settings(), "backup") as lake:
        result = upload_backup(lake, store, at=now_us(), with_images=with_images)
    text = f"{pluralize(result.files, 'file')} in {pluralize(result.parts, 'part')} ({format_bytes(result.bytes)})"
    text += f" to {result.target}: {pluralize(result.copied, 'part')} copied ({format_bytes(result.copied_bytes)})"
    if result.images:
        new = f"{result.images_copied:,} copied ({format_bytes(result.images_copied_bytes)})"
        text += f"; {pluralize(result.images, 'image')}, {new}"
    return context.print_result(result, f"{text}\n")


def describe_source(result: Mapping[str, Any]) -> str:
    """Return the line of a source from its JSON object."""
    parts = f"{pluralize(result['files'], 'file')} in {pluralize(result['parts'], 'part')}"
    images = f" and {pluralize(result['images'], 'image')}" if result["images"] else ""
    return f"{parts} ({format_bytes(result['bytes'])}){images} to {result['target']}"
