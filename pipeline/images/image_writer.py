"""Writes images and their rows in batches: files first, durably, then one transaction of the ledger."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from queue import LifoQueue
from threading import Lock
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import asdict

from pipeline.client.image_client import find_type
from pipeline.images.storing import StoreResult
from pipeline.lake.image_store import (
    CompleteDownload,
    ImageRecord,
    ImageState,
    ImageTotals,
    incoming_folder,
    list_complete_downloads,
    remove_files,
    require_space,
    write_images,
)
from pipeline.lake.layout import translate_os_errors
from pipeline.worker_process import WorkerEndedError, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pipeline.images.storing import ImageContent
    from pipeline.lake.lake import Lake
    from pipeline.lake.layout import LakeLayout

_ADOPTED_BATCH: Final = 256
_MAX_REASONS: Final = 50


class ImageWriter:
    """Writes the outcomes of one run. Several threads may use it: they wait for the disk together."""

    def __init__(self, lake: Lake, summary: ImageSummary) -> None:
        self.incoming = incoming_folder(lake.layout)
        self._layout = lake.layout
        self._pool = StoringPool(lake.layout)
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

    def close(self) -> None:
        """End the workers, when no thread writes any more."""
        self._pool.close()

    def write(self, batch: Sequence[CompleteDownload | ImageRecord]) -> None:
        """Store the images of a batch and commit the rows. Raises `StorageError`, after it if space is low."""
        fetched = [outcome for outcome in batch if isinstance(outcome, CompleteDownload)]
        others = [outcome for outcome in batch if isinstance(outcome, ImageRecord)]
        result = self._pool.store(fetched) if fetched else StoreResult()
        records = [*others, *map(_describe, fetched, result.contents)]
        with self._committing:
            write_images(self._ledger, records)
            self._count(records, result.new)
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


_WORKER_CODE: Final = "import sys; from pipeline.images.storing import main; main(sys.argv[1])"
MAX_WORKERS: Final = 4
"""Also with fewer processors: workers wait for the disk, which flushes for all of them together."""


class StoringPool:
    """Stores files in worker processes, which start when they are needed. Several threads may use it."""

    def __init__(self, layout: LakeLayout) -> None:
        self._layout = layout
        self._workers: LifoQueue[WorkerProcess | None] = LifoQueue()  # None: no worker has started there
        for _ in range(MAX_WORKERS):
            self._workers.put(None)

    def store(self, files: Sequence[CompleteDownload]) -> StoreResult:
        """Store files. Raises `StorageError`, also if the system refuses a process.

        If they end the worker, each is stored alone, to find the one that does.
        """
        try:
            return self._exchange(files)
        except WorkerEndedError as error:
            if len(files) == 1:
                return StoreResult((f"decoding it ended the process (exit code {error.ended_with})",))
        results = [self.store((file,)) for file in files]
        contents = tuple(content for result in results for content in result.contents)
        return StoreResult(contents, frozenset().union(*(result.new for result in results)))

    def close(self) -> None:
        """End the workers, when no thread uses them any more."""
        for _ in range(MAX_WORKERS):
            if (worker := self._workers.get()) is not None:
                worker.close()

    def _exchange(self, files: Sequence[CompleteDownload]) -> StoreResult:
        worker = self._workers.get()
        try:
            if worker is None:
                with translate_os_errors(self._layout.root):
                    worker = WorkerProcess("image", _WORKER_CODE, str(self._layout.root))
            result = worker.exchange(files)
        except WorkerEndedError:
            if worker is not None:
                worker.close()
            worker = None
            raise
        finally:
            self._workers.put(worker)
        assert isinstance(result, StoreResult)  # noqa: S101 - a worker sends nothing else
        return result


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
    is_decoded: bool = True
    reasons: dict[str, int] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    seconds: float = 0.0
    lake: ImageTotals = field(default_factory=ImageTotals)

    @property
    def has_new_rejects(self) -> bool:
        """Whether this run found images that are not there."""
        return bool(self.not_found or self.refused or self.failed)
