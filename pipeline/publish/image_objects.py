"""Images on object storage: one object per picture, under the name that it has in the lake, created once.

A store and the ledger are compared in chunks, by the first digits of the hashes, because a lake can have millions.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pipeline.errors import LakeCorruptedError, StorageError
from pipeline.lake.image_names import IMAGES
from pipeline.lake.image_records import read_images_of, read_totals
from pipeline.publish.target_layout import is_image_path
from pipeline.publish.uploads import UPLOADS_SIDE_BY_SIDE, PendingUpload, create_object, find_difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.publish.store_contract import ObjectStore, StoredObject

_ONE_LIST: Final = 10_000  # pictures; more are listed folder by folder, some side by side
_FOLDERS: Final = tuple(f"{number:02x}" for number in range(256))
_LISTS_SIDE_BY_SIDE: Final = 16


@dataclass(frozen=True, slots=True)
class PendingPicture(PendingUpload):
    """A picture of the lake; `fetched_at` (microseconds) is when its first row came."""

    fetched_at: int


class ImageChunk(NamedTuple):
    """Pictures of the lake, and the objects of the store whose hashes begin in the same way; both by path."""

    pictures: dict[str, PendingPicture]
    objects: dict[str, StoredObject]

    @property
    def missing(self) -> list[PendingPicture]:
        """The pictures that the store lacks."""
        return [picture for path, picture in self.pictures.items() if path not in self.objects]

    @property
    def unnamed(self) -> list[StoredObject]:
        """The objects that no row of the lake names."""
        return [item for path, item in self.objects.items() if path not in self.pictures]

    def list_differences(self) -> Iterator[tuple[str, str]]:
        """Yield the paths of objects that are not the picture of their name, with what differs."""
        for path, picture in self.pictures.items():
            if path in self.objects and (difference := find_difference(picture, self.objects[path])):
                yield path, difference


def compare_images(layout: LakeLayout, ledger: LedgerQueries, store: ObjectStore) -> Iterator[ImageChunk]:
    """Yield the stored pictures of a lake beside the objects of a store, chunk by chunk. Raises `PublishError`."""
    if read_totals(ledger).pictures <= _ONE_LIST:
        yield ImageChunk(_read_pictures(layout, ledger, ""), _list_objects(store, IMAGES))
        return
    with ThreadPoolExecutor(_LISTS_SIDE_BY_SIDE) as pool:
        for first in range(0, len(_FOLDERS), _LISTS_SIDE_BY_SIDE):
            folders = _FOLDERS[first : first + _LISTS_SIDE_BY_SIDE]
            listed = pool.map(lambda folder: _list_objects(store, f"{IMAGES}/{folder}"), folders)
            for folder, objects in zip(folders, listed, strict=True):
                yield ImageChunk(_read_pictures(layout, ledger, folder), objects)


def _list_objects(store: ObjectStore, prefix: str) -> dict[str, StoredObject]:
    return {item.path: item for item in store.list(prefix) if is_image_path(item.path)}


def _read_pictures(layout: LakeLayout, ledger: LedgerQueries, prefix: str) -> dict[str, PendingPicture]:
    pictures: dict[str, PendingPicture] = {}
    for row in read_images_of(ledger, prefix):
        if row.path is not None:
            former = pictures.get(row.path)
            fetched_at = row.fetched_at if former is None else min(former.fetched_at, row.fetched_at)
            file = layout.root / row.path
            pictures[row.path] = PendingPicture(row.path, file, row.bytes or 0, row.sha256 or "", fetched_at)
    return pictures


class ImageUploads(NamedTuple):
    """Result of an upload of pictures. `problems` has a text for each that could not be uploaded."""

    uploaded: int
    uploaded_bytes: int
    problems: list[str]


def upload_pictures(store: ObjectStore, pictures: Sequence[PendingPicture]) -> ImageUploads:
    """Create the objects, many side by side. One picture that is missing or damaged does not stop the others.

    Raises `PublishError`.
    """

    def create(picture: PendingPicture) -> str | None:
        try:
            create_object(store, picture)
        except (LakeCorruptedError, StorageError) as error:
            return error.message
        return None

    with ThreadPoolExecutor(UPLOADS_SIDE_BY_SIDE) as pool:
        try:
            results = list(pool.map(create, pictures))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    sizes = [picture.bytes for picture, problem in zip(pictures, results, strict=True) if problem is None]
    return ImageUploads(len(sizes), sum(sizes), [problem for problem in results if problem is not None])
