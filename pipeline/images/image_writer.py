"""Writes pictures and their rows in batches: files first, durably, then one transaction of the ledger."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict

from pipeline.client.image_downloads import find_type
from pipeline.errors import StorageError
from pipeline.formatting import format_bytes
from pipeline.images.storing import StoreResult
from pipeline.lake.image_files import remove_files
from pipeline.lake.image_records import ImageRecord, ImageState, find_stored, read_totals, write_images
from pipeline.lake.image_store import CompleteDownload

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pipeline.images.models import ImageSummary
    from pipeline.images.storing import ImageContent
    from pipeline.images.storing_pool import StoringPool
    from pipeline.lake.image_store import ImageStore
    from pipeline.lake.ledger import Ledger
    from pipeline.settings import Settings

_ADOPTED_BATCH: Final = 256
_MAX_REASONS: Final = 50


class ImageWriter:
    """Writes the outcomes of one run. Several threads may use it: they wait for the disk together."""

    def __init__(
        self, store: ImageStore, pool: StoringPool, ledger: Ledger, settings: Settings, summary: ImageSummary
    ) -> None:
        self._store = store
        self._pool = pool
        self._ledger = ledger
        self._settings = settings
        self._summary = summary
        self._bytes = read_totals(ledger).bytes
        self._reasons: Counter[str] = Counter()
        self._limited, self._committing = Lock(), Lock()

    def adopt(self) -> None:
        """Store the complete downloads of a run that was killed."""
        downloads = self._store.list_complete(_find_type)
        while batch := list(islice(downloads, _ADOPTED_BATCH)):
            self.write(batch)
        self._summary.adopted = self._summary.stored

    def write(self, batch: Iterable[CompleteDownload | ImageRecord]) -> None:
        """Store the pictures of a batch and commit the rows. Raises `StorageError`; then no row is committed.

        A limit of the disk is checked before; pictures that fit are committed all the same.
        """
        # A limit counts what was stored before, so then one batch comes after the other.
        with self._limited if self._settings.images_max_bytes is not None else nullcontext():
            self._write(list(batch))

    def _write(self, batch: Sequence[CompleteDownload | ImageRecord]) -> None:
        fetched = [outcome for outcome in batch if isinstance(outcome, CompleteDownload)]
        others = [outcome for outcome in batch if isinstance(outcome, ImageRecord)]
        fitting, problem = self._select_fitting(fetched)
        result = self._pool.store(fitting) if fitting else StoreResult()
        records = [*others, *map(_describe, fitting, result.contents)]
        with self._committing:
            write_images(self._ledger, records)
            self._count(records, result.new)
        remove_files(image.path for image in fetched)
        if problem is not None:
            raise problem

    def _select_fitting(
        self, fetched: Sequence[CompleteDownload]
    ) -> tuple[Sequence[CompleteDownload], StorageError | None]:
        """Return the pictures that images_max_bytes and the disk have room for, and why others have none."""
        problem = None
        if (limit := self._settings.images_max_bytes) is not None:
            fetched, problem = self._select_within(limit, fetched)
        try:
            # The complete downloads are on the disk already.
            self._store.require_space()
        except StorageError as error:
            problem = problem or error
        return fetched, problem

    def _select_within(
        self, limit: int, fetched: Sequence[CompleteDownload]
    ) -> tuple[Sequence[CompleteDownload], StorageError | None]:
        """Return the pictures that fit if none of them is refused."""
        total = self._bytes
        known = find_stored(self._ledger, {image.sha256 for image in fetched})
        for number, image in enumerate(fetched):
            total += 0 if image.sha256 in known else image.bytes
            if total > limit:
                size = total - image.bytes
                problem = StorageError(
                    f"images_max_bytes: the images of the lake have {format_bytes(size)}, and the next one exceeds"
                    f" {format_bytes(limit)}.",
                    hint="Raise images_max_bytes, or select fewer uploads with --where.",
                )
                return fetched[:number], problem
            known.add(image.sha256)
        return fetched, None

    def _count(self, records: Sequence[ImageRecord], new: Collection[str]) -> None:
        summary = self._summary
        stored = [record for record in records if record.state is ImageState.STORED]
        summary.stored += len(stored)
        summary.duplicates += len(stored) - len(new)
        size = sum({record.sha256: record.bytes or 0 for record in stored if record.path in new}.values())
        self._bytes += size
        summary.bytes += size
        for record in records:
            if record.state is not ImageState.STORED:
                setattr(summary, record.state, getattr(summary, record.state) + 1)
                self._reasons[f"{record.state}: {record.reason}"] += 1
        summary.reasons = dict(self._reasons.most_common(_MAX_REASONS))


def _find_type(head: bytes) -> tuple[str, str] | None:
    image_type = find_type(head)
    return None if image_type is None else (image_type.mime, image_type.extension)


def _describe(image: CompleteDownload, content: ImageContent | str) -> ImageRecord:
    """Return the row of a complete download. One that cannot be decoded is refused."""
    if isinstance(content, str):
        return ImageRecord(*image.key, ImageState.REFUSED, image.fetched_at, content)
    return ImageRecord(
        *image.key,
        ImageState.STORED,
        image.fetched_at,
        sha256=image.sha256,
        bytes=image.bytes,
        mime=image.mime,
        **asdict(content),
        path=image.name,
    )
