"""Worker processes that store complete downloads, so that decoding and the disk do not delay the downloads.

A picture whose decoding ends a worker, because a decoder crashes or the system has no memory for it, is refused.
"""

from __future__ import annotations

from queue import LifoQueue
from typing import TYPE_CHECKING, Final

from pipeline.images.storing import StoreResult
from pipeline.lake.layout import translate_os_errors
from pipeline.worker_process import WorkerEndedError, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.lake.image_store import CompleteDownload
    from pipeline.lake.layout import LakeLayout

_WORKER_CODE: Final = "import sys; from pipeline.images.storing import main; main(sys.argv[1])"
MAX_WORKERS: Final = 4
"""Also with fewer processors: workers wait for the disk, which flushes for all of them together."""


class StoringPool:
    """Stores files in worker processes, which start when they are needed. Several threads may use it."""

    def __init__(self, layout: LakeLayout) -> None:
        self._layout = layout
        self._places: LifoQueue[WorkerProcess | None] = LifoQueue()  # None: no worker has started there
        for _ in range(MAX_WORKERS):
            self._places.put(None)

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
            if (worker := self._places.get()) is not None:
                worker.close()

    def _exchange(self, files: Sequence[CompleteDownload]) -> StoreResult:
        worker = self._places.get()
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
            self._places.put(worker)
        assert isinstance(result, StoreResult)  # noqa: S101 - a worker sends nothing else
        return result
