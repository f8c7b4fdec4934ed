"""Images on object storage: one object per image, under the name that it has in the lake, created once.

A store and the ledger are compared in chunks, by the first digits of the hashes, because a lake can have millions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, field

from pipeline.errors import ForeignObjectError, LakeCorruptedError, SettingsError
from pipeline.lake.ledger.images import read_images_of, read_totals
from pipeline.lake.storage.atomic_files import fsync_dir
from pipeline.lake.storage.layout import IMAGES, is_image_path, translate_os_errors
from pipeline.output.formatting import pluralize
from pipeline.publish.object_store import (
    Comparison,
    PendingUpload,
    create_object,
    download_object,
    find_difference,
    find_problems,
    run_side_by_side,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.queries import LedgerQueries
    from pipeline.lake.storage.layout import LakeLayout
    from pipeline.publish.object_store import ObjectStore, StoredObject

_ONE_LIST: Final = 10_000  # images; more are listed folder by folder, some side by side
_FOLDERS: Final = tuple(f"{number:02x}" for number in range(256))
_LISTS_SIDE_BY_SIDE: Final = 16


class ImageChunk(NamedTuple):
    """Images of the lake, and the objects of the store whose hashes begin in the same way; both by path."""

    images: dict[str, PendingUpload]
    objects: dict[str, StoredObject]

    @property
    def missing(self) -> list[PendingUpload]:
        """The images that the store lacks."""
        return [image for path, image in self.images.items() if path not in self.objects]

    @property
    def unnamed(self) -> list[StoredObject]:
        """The objects that no row of the lake names."""
        return [item for path, item in self.objects.items() if path not in self.images]

    def list_differences(self) -> Iterator[tuple[str, str]]:
        """Yield the paths of objects that are not the image of their name, with what differs."""
        for path, image in self.images.items():
            if path in self.objects and (difference := find_difference(image, self.objects[path])):
                yield path, difference


def compare_images(
    layout: LakeLayout, ledger: LedgerQueries, store: ObjectStore, *, until: int | None = None
) -> Iterator[ImageChunk]:
    """Yield the stored images of a lake beside the objects of a store, chunk by chunk. Raises `PublishError`.

    Images that came after `until` (microseconds) are left out.
    """
    prefixes = _choose_prefixes(ledger)
    for first in range(0, len(prefixes), _LISTS_SIDE_BY_SIDE):
        next_ones = prefixes[first : first + _LISTS_SIDE_BY_SIDE]
        listed = run_side_by_side(partial(_list_objects, store), next_ones)
        for prefix, objects in zip(next_ones, listed, strict=True):
            yield ImageChunk(_read_images(layout, ledger, prefix, until), objects)


def has_images_on(store: ObjectStore, *, upload: bool) -> bool:
    """Return whether a store without a record of images has some: a killed run can have left them.

    Raises `SettingsError` if others have objects where an `upload` would be the first image.
    """
    listed = [item.path for item in store.list(IMAGES)]
    has_images = any(map(is_image_path, listed))
    if listed and upload and not has_images:
        raise SettingsError(
            f"{store.base_url} has other objects, such as {listed[0]}.",
            hint=f"Move {IMAGES} away, or use a separate folder or URL.",
        )
    return has_images


def _choose_prefixes(ledger: LedgerQueries) -> Sequence[str]:
    return ("",) if read_totals(ledger).images <= _ONE_LIST else _FOLDERS


def _list_objects(store: ObjectStore, prefix: str) -> dict[str, StoredObject]:
    listed = store.list(f"{IMAGES}/{prefix}".rstrip("/"))
    return {item.path: item for item in listed if is_image_path(item.path)}


def _read_images(
    layout: LakeLayout, ledger: LedgerQueries, prefix: str, until: int | None = None
) -> dict[str, PendingUpload]:
    images: dict[str, PendingUpload] = {}
    for row in read_images_of(ledger, prefix):
        if row.path is not None and (until is None or row.fetched_at <= until):
            if not is_image_path(row.path):  # of a restored ledger: it must not lead out of the lake
                raise LakeCorruptedError("The ledger names a file that is not an image.", hint="Run `scanlake check`.")
            file = layout.root / row.path
            images[row.path] = PendingUpload(row.path, file, row.bytes or 0, row.sha256 or "")
    return images


class ImagesOnStore(Struct):
    """The images of a store beside those of the lake.

    `unnamed` are the objects that the lake no longer has, `problems` texts about images that could not be uploaded.
    """

    count: int = 0
    uploaded: int = 0
    uploaded_bytes: int = 0
    unnamed: list[StoredObject] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def require_whole(self) -> None:
        """Raise `LakeCorruptedError` if images of the lake are missing or damaged."""
        if self.problems:
            raise LakeCorruptedError(
                f"{pluralize(len(self.problems), 'image')} could not be uploaded: {self.problems[0].rstrip('.')}.",
                hint="All else was. Run `scanlake repair --read-data` and `scanlake images`, then this command again.",
            )


def upload_images(lake: Lake, store: ObjectStore, comparison: Comparison) -> ImagesOnStore:
    """Compare the images of a store with the lake, and create those that it lacks, many side by side.

    An object of another size is replaced: its name is the hash of what it should have. Those that are due by the
    `comparison` are read, and replaced if they are damaged. An image that is missing or damaged in the lake is a
    problem of the result: it does not stop the others. Raises `PublishError`.
    """
    result = ImagesOnStore()
    for chunk in compare_images(lake.layout, lake.ledger, store):
        damaged = [path for path, _ in chunk.list_differences()]
        images = (item for path, item in chunk.images.items() if path in chunk.objects and path not in damaged)
        to_compare = [item for item in images if comparison.is_due(item.sha256)]
        damaged += [item.path for item in comparison.find_damaged(store, to_compare)]
        missing = [*chunk.missing, *(chunk.images[path] for path in damaged)]
        result.count += len(chunk.images)
        result.unnamed += chunk.unnamed
        store.delete(damaged)
        for image, problem in zip(missing, run_side_by_side(partial(_create, store), missing), strict=True):
            if problem is None:
                result.uploaded += 1
                result.uploaded_bytes += image.bytes
            else:
                result.count -= 1
                result.problems.append(problem)
    return result


def _create(store: ObjectStore, image: PendingUpload) -> str | None:
    """Create the object of an image; return why it cannot be, None if it is there."""
    try:
        create_object(store, image)
    except (ForeignObjectError, LakeCorruptedError) as error:
        return error.message
    return None


def download_images(store: ObjectStore, layout: LakeLayout, ledger: LedgerQueries) -> dict[str, str]:
    """Write the images that the ledger names to an empty lake.

    Returns those that are missing or damaged in the store, by path, with the reason. Raises `PublishError`.
    """
    problems: dict[str, str] = {}
    for prefix in _choose_prefixes(ledger):
        images = _read_images(layout, ledger, prefix)
        folders = {image.file.parent for image in images.values()}
        layout.create_dirs({folder.parent for folder in folders} | folders)
        problems |= find_problems(store, images.values(), partial(download_object, store, layout.root))
        with translate_os_errors(layout.root):
            for folder in sorted(folders):
                fsync_dir(folder)
    return problems
