"""Images of a backup on object storage: uploaded on request, deleted with their files, and brought back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pipeline.atomic_files import READ_ONLY, fsync_dir, fsync_file, sha256_file
from pipeline.errors import LakeCorruptedError, PublishError
from pipeline.formatting import pluralize
from pipeline.lake.image_records import forget_images, iter_images
from pipeline.lake.layout import translate_os_errors
from pipeline.publish.image_objects import PendingPicture, compare_images, read_pictures, upload_pictures
from pipeline.publish.uploads import UPLOADS_SIDE_BY_SIDE

if TYPE_CHECKING:
    from collections.abc import Collection

    from pipeline.lake.lake import Lake
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.publish.store_contract import ObjectStore


@dataclass(slots=True)
class BackedUpImages:
    """The images of a backup. `absent` are the paths of those that it lacks, None for all.

    `unnamed` are the paths of objects that the lake no longer has, `problems` texts.
    """

    pictures: int = 0
    uploaded: int = 0
    uploaded_bytes: int = 0
    absent: set[str] | None = None
    unnamed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def require_whole(self) -> None:
        """Raise `LakeCorruptedError` if images of the lake are missing or damaged."""
        if self.problems:
            raise LakeCorruptedError(
                f"{pluralize(len(self.problems), 'image')} could not be backed up: {self.problems[0].rstrip('.')}.",
                hint="Everything else was. Run `scanlake images --verify` and `scanlake images`, then back up again.",
            )


def back_up_images(lake: Lake, store: ObjectStore, *, upload: bool) -> BackedUpImages:
    """Compare the images of a backup with the lake, and with `upload` create those that it lacks.

    An object of another size is replaced: its name is the hash of what it should have. Raises `PublishError`.
    """
    absent = set[str]()
    result = BackedUpImages(absent=absent)
    for chunk in compare_images(lake.layout, lake.ledger, store):
        result.unnamed += [item.path for item in chunk.unnamed]
        damaged = [path for path, _ in chunk.list_differences()]
        missing = [*chunk.missing, *(chunk.pictures[path] for path in damaged)]
        if upload:
            store.delete(damaged)
            uploads = upload_pictures(store, missing)
            result.uploaded += uploads.uploaded
            result.uploaded_bytes += uploads.uploaded_bytes
            result.problems += uploads.problems.values()
            absent.update(uploads.problems)
        else:
            absent.update(picture.path for picture in missing)
        result.pictures += len(chunk.pictures)
    result.pictures -= len(absent)
    return result


def forget_absent_images(ledger: Ledger, absent: Collection[str] | None) -> None:
    """Delete the rows of images that a backup does not have, None for all: the restored lake fetches them again."""
    if absent is not None and not absent:
        return
    for records in iter_images(ledger):
        keys = [
            record.key for record in records if record.path is not None and (absent is None or record.path in absent)
        ]
        if keys:
            forget_images(ledger, keys)


def download_images(store: ObjectStore, layout: LakeLayout, ledger: Ledger) -> dict[str, str]:
    """Write the images that the ledger names to an empty lake, and delete the rows of those that cannot be.

    Returns them by path, each with the reason: missing or damaged in the backup. Raises `PublishError`.
    """
    problems: dict[str, str] = {}
    download = partial(_download, store)
    with ThreadPoolExecutor(UPLOADS_SIDE_BY_SIDE) as pool:
        for pictures in read_pictures(layout, ledger):
            folders = {picture.file.parent for picture in pictures.values()}
            layout.create_dirs({folder.parent for folder in folders} | folders)
            try:
                results = zip(pictures, pool.map(download, pictures.values()), strict=True)
                problems |= {path: problem for path, problem in results if problem is not None}
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
            with translate_os_errors(layout.root):
                for folder in sorted(folders):
                    fsync_dir(folder)
    if problems:
        forget_absent_images(ledger, problems)
    return problems


def _download(store: ObjectStore, picture: PendingPicture) -> str | None:
    """Write one image; return why the backup does not have it, None if it has."""
    try:
        store.download(picture.path, picture.file)
    except PublishError:
        if store.head(picture.path) is not None:
            raise
        return "missing"
    with translate_os_errors(picture.file):
        if sha256_file(picture.file) != picture.sha256:
            picture.file.unlink()
            return "damaged"
        fsync_file(picture.file)
        picture.file.chmod(READ_ONLY)
    return None
