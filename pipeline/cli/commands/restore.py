"""`scanlake restore`: a lake from a backup in a folder or on object storage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import Struct

from pipeline.cli.context import CommandContext
from pipeline.cli.options import Location
from pipeline.errors import ExitCode
from pipeline.output.formatting import pluralize
from pipeline.publish.restore import restore_backup
from pipeline.publish.stores import open_location
from pipeline.settings.locations import parse_location

EXAMPLES: Final = ("restore /mnt/backup", "restore s3://bucket/backup /srv/lake")


class RestoredLake(Struct, frozen=True):
    """A restored lake, `files` and `snapshot` null without its ledger.

    `lost` and `images_lost` are missing or damaged in the backup, by path.
    """

    folder: Path
    origin: str
    files: int | None
    snapshot: int | None
    lost: Mapping[str, str]
    images_lost: Mapping[str, str]


RESULT: Final = RestoredLake


def run(
    context: CommandContext,
    *,
    origin: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL",
            click_type=Location(parse_location),
            help="The backup: a folder, or s3://, gs://, az://, file://.",
        ),
    ],
    folder: Annotated[
        Path | None, typer.Argument(metavar="LAKE", help="Folder for the lake. Default: the lake of the settings.")
    ] = None,
) -> ExitCode:
    """Copy a backup into the lake's folder, which must be empty or new.

    Every part is compared with its hash. After a failure the folder is as before. The next sync fetches what has
    changed since the backup. To restore over a lake, move the lake's folder away first.

    If something is missing or damaged in the backup, it is named and left out, and the exit code is 9. `scanlake
    repair` rebuilds a part or the ledger from the documents, and the next sync fetches the files whose documents are
    lost. Images are restored if the backup has them; the next `scanlake images` fetches the others.
    """
    target, store = folder or context.settings().lake, open_location(origin)
    restored = restore_backup(store, target)
    snapshot, lost, images_lost = restored.snapshot, restored.lost, restored.images_lost
    files, number = (snapshot.files, snapshot.snapshot) if snapshot is not None else (None, None)
    result = RestoredLake(target, store.base_url, files, number, lost, images_lost)
    what = "documents" if files is None else pluralize(files, "file")
    state = "no ledger" if number is None else f"snapshot {number}"
    step = "`scanlake repair`, then `scanlake sync`" if lost else "`scanlake sync`"
    text = f"{what} restored to {target}: {state}; run {step}\n"
    text += "".join(f"{path}: {problem}\n" for path, problem in sorted({**lost, **images_lost}.items()))
    if lost:
        text += f"{pluralize(len(lost), 'object')} missing or damaged in the backup\n"
    if images_lost:
        text += f"{pluralize(len(images_lost), 'image')} missing or damaged in the backup; run `scanlake images`\n"
    return context.print_result(result, text, ExitCode.DAMAGE if lost or images_lost else ExitCode.OK)
