"""`scanlake restore`: a lake from a backup in a folder or on object storage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import Struct

from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.formatting import pluralize
from pipeline.publish.restore import restore_backup
from pipeline.publish.stores import open_folder_or_store

GROUP: Final = "Maintain the lake"


class RestoredLake(Struct, frozen=True):
    """A restored lake. `images_lost` are missing or damaged in the backup, by path, with the reason."""

    folder: Path
    origin: str
    files: int
    snapshot: int
    images_lost: Mapping[str, str]


RESULT: Final = RestoredLake


def run(
    context: CommandContext,
    *,
    origin: Annotated[
        str, typer.Argument(metavar="DIR|URL", help="The backup: a folder, or s3://, gs://, az://, file://.")
    ],
    folder: Annotated[
        Path | None, typer.Argument(metavar="LAKE", help="Folder for the lake. Default: the lake of the settings.")
    ] = None,
) -> ExitCode:
    """Copy a backup into the lake's folder, which must be empty or new.

    Every part is compared with its hash. After a failure the folder is as before. The next sync fetches what has
    changed since the backup. To restore over a lake, move the lake's folder away first.

    Images come back if the backup has them. One that is missing or damaged there is left out, with exit
    code 9: the next `scanlake images` fetches it.
    """
    target, store = folder or context.settings().lake, open_folder_or_store(origin)
    record, lost = restore_backup(store, target)
    result = RestoredLake(target, store.base_url, record.files, record.snapshot, lost)
    text = f"{pluralize(result.files, 'file')} restored to {target}: snapshot {result.snapshot}; run `scanlake sync`\n"
    if lost:
        text += "".join(f"{path}: {problem}\n" for path, problem in sorted(lost.items()))
        text += f"{pluralize(len(lost), 'image')} missing or damaged in the backup; run `scanlake images`\n"
    return context.print_result(result, text, ExitCode.DAMAGE if lost else ExitCode.OK)
