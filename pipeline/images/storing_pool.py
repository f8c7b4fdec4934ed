"""Worker processes that store complete downloads, so that decoding and the disk do not delay the downloads.

A picture whose decoding ends a worker, because a decoder crashes or the system has no memory for it, is refused.
"""

from __future__ import annotations

import queue
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

from pipeline.images.storing import StoreResult, store_files
from pipeline.lake.image_files import ImageFiles, remove_files
from pipeline.logs import get_logger
from pipeline.worker_process import WorkerEndedError, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pipeline.lake.image_store import CompleteDownload
    from pipeline.lake.layout import LakeLayout

_Item = TypeVar("_Item")
_WORKER_CODE: Final = "import sys; from pipeline.images.storing import main; main(sys.argv[1])"
MAX_WORKERS: Final = 4
"""Also with fewer processors: workers wait for the disk, which flushes for all of them together."""
_IMAGES_PER_WORKER: Final = 200  # for fewer images of one run the start of another worker costs more than it saves
_log = get_logger()


class StoringPool:
    """Stores files in worker processes; in this process if the system refuses one. Several threads may use it."""

    def __init__(self, layout: LakeLayout) -> None:
        self._layout = layout
        self._own = ImageFiles(layout)
        self._started = 0
        self._starting = Lock()
        self._free: queue.SimpleQueue[WorkerProcess | None] = queue.SimpleQueue()
        self._to_remove: queue.SimpleQueue[Path] = queue.SimpleQueue()

    def start(self, images: int) -> None:
        """Start as many workers as so many images need: at once, so that they start during the first downloads."""
        workers = min(MAX_WORKERS, max(1, images // _IMAGES_PER_WORKER))
        with self._starting:
            while self._started < workers:
                self._free.put(self._start_worker())
                self._started += 1

    def store(self, files: Sequence[CompleteDownload]) -> StoreResult:
        """Store files. Raises `StorageError`.

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

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove downloads that are in the store and the ledger, or are not wanted: the next worker does."""
        for path in paths:
            self._to_remove.put(path)

    def close(self) -> None:
        """End the workers. No thread uses one any more."""
        for worker in _take_all(self._free):
            if worker is not None:
                worker.close()
        remove_files(_take_all(self._to_remove))

    def _exchange(self, files: Sequence[CompleteDownload]) -> StoreResult:
        if not self._started:
            self.start(len(files))
        worker = self._free.get()
        try:
            to_remove = tuple(_take_all(self._to_remove))
            if worker is None:
                return store_files(self._own, files, to_remove)
            result = worker.exchange((files, to_remove))
        except WorkerEndedError:
            if worker is not None:
                worker.close()
            worker = self._start_worker()
            raise
        finally:
            self._free.put(worker)
        assert isinstance(result, StoreResult)  # noqa: S101 - a worker sends nothing else
        return result

    def _start_worker(self) -> WorkerProcess | None:
        try:
            return WorkerProcess("image", _WORKER_CODE, str(self._layout.root))
        except OSError as error:
            _log.warning("image_worker.not_started", reason=error.strerror, hint="Images are stored more slowly.")
            return None


def _take_all(items: queue.SimpleQueue[_Item]) -> Iterator[_Item]:
    with suppress(queue.Empty):
        while True:
            yield items.get_nowait()
