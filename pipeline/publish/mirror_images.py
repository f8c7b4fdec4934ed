"""Images on a mirror, beside its tables: uploaded on request, and deleted when the lake no longer has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.errors import LakeCorruptedError
from pipeline.formatting import pluralize
from pipeline.publish.image_objects import compare_images, upload_pictures
from pipeline.publish.latest import PublishedImages

if TYPE_CHECKING:
    from pipeline.lake.lake import Lake
    from pipeline.publish.latest import LatestRecord
    from pipeline.publish.store_contract import ObjectStore, StoredObject


@dataclass(slots=True)
class MirroredImages:
    """The pictures of a target. `unnamed` are objects that no row of the lake names; `problems` are texts."""

    pictures: int = 0
    uploaded: int = 0
    uploaded_bytes: int = 0
    unnamed: list[StoredObject] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def describe(self, former: LatestRecord | None, at: int | None) -> PublishedImages | None:
        """Return the images of the next record; `at` is when all images were uploaded, None if they were not."""
        if not self.pictures:
            return None
        if at is None or self.problems:
            return PublishedImages(self.pictures, former.images.whole_at if former and former.images else 0)
        return PublishedImages(self.pictures, at)

    def require_whole(self) -> None:
        """Raise `LakeCorruptedError` if pictures could not be published."""
        if self.problems:
            raise LakeCorruptedError(
                f"{pluralize(len(self.problems), 'image')} could not be published: {self.problems[0].rstrip('.')}.",
                hint="Everything else was published. For images of the lake, run `scanlake images --verify` and then"
                " `scanlake images`; delete a damaged object. Then publish again.",
            )


def mirror_images(lake: Lake, store: ObjectStore, *, upload: bool) -> MirroredImages:
    """Compare the images of a target with the lake, and with `upload` create those that it lacks.

    An image that is missing or damaged, here or there, is a problem of the result: it must not delay the tables.
    Raises `PublishError`.
    """
    result = MirroredImages()
    for chunk in compare_images(lake.layout, lake.ledger, store):
        result.unnamed += chunk.unnamed
        result.pictures += len(chunk.pictures)
        if upload:
            result.problems += [f"{store.url(path)} has {difference}" for path, difference in chunk.list_differences()]
            uploads = upload_pictures(store, chunk.missing)
            result.uploaded += uploads.uploaded
            result.uploaded_bytes += uploads.uploaded_bytes
            result.problems += uploads.problems.values()
        else:
            result.pictures -= len(chunk.missing)
    result.pictures -= len(result.problems)
    return result
