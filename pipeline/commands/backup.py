"""`scanlake backup`: a copy of the lake in a folder or on object storage, brought up to date by the next backup."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pipeline.context import CommandContext
from pipeline.errors import ExitCode, SettingsError
from pipeline.formatting import format_bytes, pluralize
from pipeline.maintenance.writable_lake import open_writable_lake
from pipeline.publish.folder_backup import BackupResult, backup
from pipeline.publish.object_store import open_store
from pipeline.publish.remote_backup import upload_backup
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
    link: Annotated[
        bool, typer.Option("--link", help="Use hard links where possible: no space, but damage to a part is in both.")
    ] = False,
    with_images: Annotated[
        bool, typer.Option("--with-images", help="Also copy the images; only those that the target lacks.")
    ] = False,
) -> ExitCode:
    """Copy the lake into a folder or to object storage, or bring an earlier backup there up to date.

    The copy in a folder is a lake: it can be queried and checked. A later backup into the same folder copies only new
    parts and removes the others. Every part is compared with its hash before it is copied. A backup that another run
    has synced is refused as a target.

    A backup on object storage has the parts, the documents and the ledger. The next one there uploads only new parts
    and deletes those that the lake no longer has. `scanlake restore` makes a lake of either.

    Images are copied only with --with-images. A lake that is made of a backup without them fetches them again with
    `scanlake images`. An image that is damaged in the lake does not stop a backup to a URL: the exit code is 9.

    With --all: the folder has the name of the source. A source that fails does not stop the others; the exit code is
    the most severe one.
    """
    settings = context.settings()
    store = open_store(folder) if "://" in folder else None
    if store is not None and link:
        raise SettingsError("--link requires a folder.", hint="Leave out --link: a backup to a URL copies every part.")
    with open_writable_lake(settings, "backup", is_backup=True) as lake:
        if store is None:
            result = backup(lake, Path(folder), link=link, with_images=with_images)
        else:
            result = upload_backup(lake, store, at=now_us(), with_images=with_images)
    copied = f"{pluralize(result.copied, 'part')} copied" + (f", {result.linked:,} linked" if link else "")
    images = f"; {pluralize(result.images, 'image')}, {result.images_copied:,} copied" if result.images else ""
    text = f"{pluralize(result.files, 'file')} in {pluralize(result.parts, 'part')} ({format_bytes(result.bytes)})"
    return context.print_result(result, f"{text} to {result.target}: {copied}{images}\n")


def describe_source(result: Mapping[str, Any]) -> str:
    """Return the line of a source from its JSON object."""
    parts = f"{pluralize(result['files'], 'file')} in {pluralize(result['parts'], 'part')}"
    images = f" and {pluralize(result['images'], 'image')}" if result["images"] else ""
    return f"{parts} ({format_bytes(result['bytes'])}){images} to {result['target']}"
