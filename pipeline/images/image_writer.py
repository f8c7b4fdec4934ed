"""Writes pictures and their rows in batches: files first, durably, then one transaction of the ledger."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from pipeline.client.image_downloads import find_type
from pipeline.errors import StorageError
from pipeline.formatting import format_bytes
from pipeline.images.decoding import UndecodableError, read_content
from pipeline.images.models import FetchedImage, ImageSummary
from pipeline.lake.image_records import ImageRecord, ImageState, find_stored, read_totals, write_images
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pipeline.lake.image_store import ImageStore
    from pipeline.lake.ledger import Ledger
    from pipeline.settings import Settings

_ADOPTED_BATCH: Final = 256
_HEAD_BYTES: Final = 32
_MAX_REASONS: Final = 50


class ImageWriter:
    """Writes the outcomes of one run; only one thread uses it at a time."""

    def __init__(self, store: ImageStore, ledger: Ledger, settings: Settings, summary: ImageSummary) -> None:
        self._store = store
        self._ledger = ledger
        self._settings = settings
        self._summary = summary
        self._bytes = read_totals(ledger).bytes
        self._reasons: Counter[str] = Counter()

    def adopt(self) -> None:
        """Store the complete downloads of a run that was killed."""
        batch: list[FetchedImage | ImageRecord] = []
        for download in self._store.list_complete():
            with download.path.open("rb") as file:
                image_type = find_type(file.read(_HEAD_BYTES))
            if image_type is None:
                self._store.remove_incoming([download.path])
                continue
            batch.append(FetchedImage(download, download.path.stat().st_size, image_type, now_us()))
            if len(batch) >= _ADOPTED_BATCH:
                self.write(batch)
                batch = []
        if batch:
            self.write(batch)
        self._summary.adopted = self._summary.stored

    def write(self, batch: Iterable[FetchedImage | ImageRecord]) -> None:
        """Store the pictures of a batch and commit the rows. Raises `StorageError`; then no row is committed.

        A limit of the disk is checked before; pictures that fit are committed all the same.
        """
        fetched: list[tuple[FetchedImage, ImageRecord]] = []
        others: list[ImageRecord] = []
        unwanted = []
        for outcome in batch:
            if isinstance(outcome, ImageRecord):
                others.append(outcome)
                continue
            record = _describe(outcome, self._store)
            if record.state is ImageState.STORED:
                fetched.append((outcome, record))
            else:
                others.append(record)
                unwanted.append(outcome.download.path)
        fitting, problem = self._select_fitting(fetched)
        new = self._store.add({record.path: image.download for image, record in fitting if record.path})
        write_images(self._ledger, [*others, *(record for _, record in fitting)])
        self._store.remove_incoming([*unwanted, *(image.download.path for image, _ in fetched)])
        self._count([record for _, record in fitting], others, new)
        if problem is not None:
            raise problem

    def _select_fitting(
        self, fetched: Sequence[tuple[FetchedImage, ImageRecord]]
    ) -> tuple[list[tuple[FetchedImage, ImageRecord]], StorageError | None]:
        """Return the pictures that images_max_bytes and the disk have room for, and why others have none."""
        limit, total = self._settings.images_max_bytes, self._bytes
        fitting: list[tuple[FetchedImage, ImageRecord]] = []
        known = find_stored(self._ledger, {image.download.sha256 for image, _ in fetched}) if limit else set()
        for image, record in fetched:
            size = 0 if image.download.sha256 in known else image.bytes
            if limit is not None and total + size > limit:
                problem = StorageError(
                    f"images_max_bytes: the images of the lake have {format_bytes(total)}, and the next one exceeds"
                    f" {format_bytes(limit)}.",
                    hint="Raise images_max_bytes, or select fewer uploads with --where.",
                )
                return fitting, problem
            total += size
            known.add(image.download.sha256)
            fitting.append((image, record))
        try:
            # The complete downloads are on the disk already.
            self._store.require_space(0, keep_free=self._settings.images_keep_free_bytes)
        except StorageError as error:
            return fitting, error
        return fitting, None

    def _count(self, stored: Sequence[ImageRecord], others: Sequence[ImageRecord], new: Collection[str]) -> None:
        summary = self._summary
        summary.stored += len(stored)
        summary.duplicates += len(stored) - len(new)
        size = sum({record.sha256: record.bytes or 0 for record in stored if record.path in new}.values())
        self._bytes += size
        summary.bytes += size
        for record in others:
            setattr(summary, record.state, getattr(summary, record.state) + 1)
            self._reasons[f"{record.state}: {record.reason}"] += 1
        summary.reasons = dict(self._reasons.most_common(_MAX_REASONS))


def _describe(image: FetchedImage, store: ImageStore) -> ImageRecord:
    """Return the row of a complete download. One that cannot be decoded is refused."""
    key, download = image.key, image.download
    try:
        content = read_content(download.path, image.type.mime)
    except UndecodableError as error:
        return ImageRecord(*key, ImageState.REFUSED, image.fetched_at, str(error))
    return ImageRecord(
        *key,
        ImageState.STORED,
        image.fetched_at,
        sha256=download.sha256,
        bytes=image.bytes,
        mime=image.type.mime,
        width=content.width,
        height=content.height,
        taken_at=content.taken_at,
        latitude=content.latitude,
        longitude=content.longitude,
        path=store.name_of(download.sha256, image.type.extension),
    )
