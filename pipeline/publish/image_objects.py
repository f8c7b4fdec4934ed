"""Images on object storage: one object per picture, under the name that it has in the lake, created once.

A store and the ledger are compared in chunks, by the first digits of the hashes, because a lake can have millions.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pipeline.errors import LakeCorruptedError, StorageError
from pipeline.lake.image_names import IMAGES, is_image_path
from pipeline.lake.image_records import read_images_of, read_totals
from pipeline.publish.uploads import UPLOADS_SIDE_BY_SIDE, PendingUpload, create_object, find_difference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
    prefixes = _choose_prefixes(ledger)
    with ThreadPoolExecutor(_LISTS_SIDE_BY_SIDE) as pool:
        for first in range(0, len(prefixes), _LISTS_SIDE_BY_SIDE):
            next_ones = prefixes[first : first + _LISTS_SIDE_BY_SIDE]
            listed = pool.map(lambda prefix: _list_objects(store, f"{IMAGES}/{prefix}".rstrip("/")), next_ones)
            for prefix, objects in zip(next_ones, listed, strict=True):
                yield ImageChunk(_read_pictures(layout, ledger, prefix), objects)


def has_other_images(layout: LakeLayout, ledger: LedgerQueries, store: ObjectStore) -> bool:
    """Return whether a store has images that the lake does not name: perhaps another lake's, which must not go."""
    return any(chunk.unnamed for chunk in compare_images(layout, ledger, store))


def read_pictures(layout: LakeLayout, ledger: LedgerQueries) -> Iterator[dict[str, PendingPicture]]:
    """Yield the stored pictures of a lake, by path, chunk by chunk."""
    for prefix in _choose_prefixes(ledger):
        yield _read_pictures(layout, ledger, prefix)


def _choose_prefixes(ledger: LedgerQueries) -> Sequence[str]:
    return ("",) if read_totals(ledger).pictures <= _ONE_LIST else _FOLDERS


def list_without_images(
    store: ObjectStore, objects: Iterable[str], folders: Iterable[str], *, has_images: bool
) -> tuple[dict[str, StoredObject], bool]:
    """Return the objects of a store but for its images, by path, and whether it has images.

    If it `has_images`, only these objects and folders are looked at, because images can be millions. Else all are
    listed: a run that was killed before its record was written can have left some.
    """
    if has_images:
        heads = [store.head(path) for path in objects]
        items = [item for item in heads if item is not None]
        items += [item for folder in folders for item in store.list(folder)]
        return {item.path: item for item in items}, True
    listed = {}
    for item in store.list():
        if is_image_path(item.path):
            has_images = True
        else:
            listed[item.path] = item
    return listed, has_images


def _list_objects(store: ObjectStore, prefix: str) -> dict[str, StoredObject]:
    return {item.path: item for item in store.list(prefix) if is_image_path(item.path)}


def _read_pictures(layout: LakeLayout, ledger: LedgerQueries, prefix: str) -> dict[str, PendingPicture]:
    pictures: dict[str, PendingPicture] = {}
    for row in read_images_of(ledger, prefix):
        if row.path is not None:
            if not is_image_path(row.path):  # of a restored ledger: it must not lead out of the lake
                raise LakeCorruptedError("The ledger names a file that is no image.", hint="Run `scanlake check`.")
            former = pictures.get(row.path)
            fetched_at = row.fetched_at if former is None else min(former.fetched_at, row.fetched_at)
            file = layout.root / row.path
            pictures[row.path] = PendingPicture(row.path, file, row.bytes or 0, row.sha256 or "", fetched_at)
    return pictures


class ImageUploads(NamedTuple):
    """Result of an upload of pictures. `problems` has a text for each that could not be uploaded, by path."""

    uploaded: int
    uploaded_bytes: int
    problems: dict[str, str]


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
    problems = {item.path: problem for item, problem in zip(pictures, results, strict=True) if problem is not None}
    sizes = [picture.bytes for picture in pictures if picture.path not in problems]
    return ImageUploads(len(sizes), sum(sizes), problems)
