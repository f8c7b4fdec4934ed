"""Writes images and their rows in batches: files first, durably, then one transaction of the ledger."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from pipeline.client.image_types import find_type
from pipeline.lake.ledger.images import ImageRecord, ImageState, ImageTotals, write_images
from pipeline.lake.storage.images import (
    CompleteDownload,
    add_images,
    incoming_folder,
    list_complete_downloads,
    remove_files,
    require_space,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pipeline.lake.lake import Lake

_ADOPTED_BATCH: Final = 256
_MAX_REASONS: Final = 50


class ImageWriter:
    """Writes the outcomes of one run. Several threads may use it: they wait for the disk together."""

    def __init__(self, lake: Lake, summary: ImageSummary) -> None:
        self.incoming = incoming_folder(lake.layout)
        self._layout = lake.layout
        self._ledger = lake.ledger
        self._summary = summary
        self._reasons: Counter[str] = Counter()
        self._committing = Lock()

    def adopt(self) -> None:
        """Store the complete downloads of a run that was killed."""
        downloads = list_complete_downloads(self.incoming, find_type)
        while batch := list(islice(downloads, _ADOPTED_BATCH)):
            self.write(batch)
        self._summary.adopted = self._summary.stored

    def write(self, batch: Sequence[CompleteDownload | ImageRecord]) -> None:
        """Store the images of a batch and commit the rows. Raises `StorageError`, after it if space is low."""
        fetched = [outcome for outcome in batch if isinstance(outcome, CompleteDownload)]
        others = [outcome for outcome in batch if isinstance(outcome, ImageRecord)]
        new = add_images(self._layout, {image.name: (image.path, image.sha256) for image in fetched})
        records = [*others, *map(_describe, fetched)]
        with self._committing:
            write_images(self._ledger, records)
            self._count(records, new)
        remove_files(image.path for image in fetched)
        require_space(self._layout)

    def _count(self, records: Sequence[ImageRecord], new: Collection[str]) -> None:
        summary = self._summary
        stored = [record for record in records if record.state is ImageState.STORED]
        summary.stored += len(stored)
        summary.duplicates += len(stored) - len(new)
        summary.bytes += sum({record.sha256: record.bytes or 0 for record in stored if record.path in new}.values())
        for record in records:
            if record.state is not ImageState.STORED:
                setattr(summary, record.state, getattr(summary, record.state) + 1)
                self._reasons[f"{record.state}: {record.reason}"] += 1
        summary.reasons = dict(self._reasons.most_common(_MAX_REASONS))


def _describe(image: CompleteDownload) -> ImageRecord:
    """Return the row of a complete download."""
    return ImageRecord(
        *image.key,
        ImageState.STORED,
        image.fetched_at,
        sha256=image.sha256,
        bytes=image.bytes,
        mime=image.mime,
        path=image.name,
    )


class ImageSummary(Struct):
    """Result of a run; the object that `--json` prints.

    Counts are images of uploads. `stored` were stored by this run, `duplicates` of them had a content that the lake
    had, `adopted` of them were downloaded by a run that was killed. `left` were selected and not tried or not
    answered. `reasons` counts those that are not there, by reason.
    """

    state: str = "done"
    selected: int = 0
    stored: int = 0
    duplicates: int = 0
    adopted: int = 0
    stored_before: int = 0
    not_found: int = 0
    refused: int = 0
    failed: int = 0
    not_found_before: int = 0
    refused_before: int = 0
    without_link: int = 0
    left: int = 0
    renewed_links: int = 0
    bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    seconds: float = 0.0
    lake: ImageTotals = field(default_factory=ImageTotals)

    @property
    def has_new_rejects(self) -> bool:
        """Whether this run found images that are not there."""
        return bool(self.not_found or self.refused or self.failed)
