"""`scanlake restore`: a lake from a backup in a folder or on object storage."""

from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.formatting import pluralize
from pipeline.lake.lake import Lake
from pipeline.maintenance.backup import backup, fill_folder
from pipeline.publish.object_store import open_store
from pipeline.publish.remote_backup import download_backup

GROUP: Final = "Maintain the lake"


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

    Images come back if the backup has them. One that is missing or damaged on object storage is left out, with exit
    code 9: the next `scanlake images` fetches it.
    """
    settings = context.settings()
    problems: dict[str, str] = {}
    target = folder or settings.lake
    if "://" in origin:
        store = open_store(origin)
        record = fill_folder(target, lambda layout: problems.update(download_backup(store, layout)))
        origin, files, snapshot = store.base_url, record.files, record.snapshot
    else:
        with Lake(Path(origin), doing="restore", must_exist=True, is_backup=True) as copied:
            result = backup(copied, target, is_restore=True, with_images=True)
        files, snapshot = result.files, result.snapshot
    output = {"folder": str(target), "source": origin, "files": files, "snapshot": snapshot, "images_lost": problems}
    text = f"{pluralize(files, 'file')} restored to {target}: snapshot {snapshot}; run `scanlake sync`\n"
    if problems:
        text += "".join(f"{path}: {problem}\n" for path, problem in sorted(problems.items()))
        text += f"{pluralize(len(problems), 'image')} missing or damaged in the backup; run `scanlake images`\n"
    context.print_result(output, text)
    return ExitCode.DAMAGE if problems else ExitCode.OK
