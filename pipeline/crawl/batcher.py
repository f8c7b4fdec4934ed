"""Collects finished files into batches and passes them to the sink.

At most two batches exist at a time: one is collected while the other is stored. Batches are stored one at a time, in
the order in which they were collected.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from pipeline.crawl.models import CommitBatch
from pipeline.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from pipeline.crawl.details import FetchResult
    from pipeline.crawl.in_flight import FetchTask, InFlightFiles
    from pipeline.crawl.models import CrawlOptions, ListedWindow
    from schemas.file_versions import Tombstone

    Sink = Callable[[CommitBatch], Coroutine[Any, Any, None]]

_MAX_PENDING_BATCHES: Final = 2  # batches' worth of files
# A kill costs what is not committed. So the first batches of a run are small, later ones a share of its work.
_INITIAL_BATCH_FILES: Final = 160
_BATCH_GROWTH_DIVISOR: Final = 8
# A file with 10,000 uploads needs 25 MB while it is written. So a file counts once for each piece of its documents.
_BYTES_PER_UNIT: Final = 64 * 1024


class Batcher:
    """The commit stage: a window is completed in the batch that has the last of its files.

    Files enter with `add_file`, windows with `add_window`, files known as deleted with `add_deleted`. `run` commits
    them in batches until `finish` was called and nothing is pending; `close` ends it after a failure.
    """

    def __init__(self, options: CrawlOptions, in_flight: InFlightFiles, sink: Sink) -> None:
        """Create an idle batcher. `sink` stores a batch: afterwards it is committed."""
        self._options = options
        self._in_flight = in_flight
        self._sink = sink
        self._files: list[tuple[FetchTask, FetchResult, int]] = []  # with the units that each counts for
        self._pending_units = 0
        self._listed_windows: set[ListedWindow] = set()
        self._tombstones: list[Tombstone] = []
        self._pending_since: float | None = None  # monotonic seconds of the oldest pending addition
        self._files_taken = 0
        self._batch_files = min(_INITIAL_BATCH_FILES, options.commit_every_files)  # size of a full batch
        self._free_units = _MAX_PENDING_BATCHES * self._batch_files
        self._has_room = asyncio.Event()
        self._admission = asyncio.Lock()  # in order: a large file would wait until no small one comes any more
        self._wake = asyncio.Event()
        self._is_finishing = False
        self._storing: asyncio.Task[None] | None = None
        self._close_error: BaseException | None = None  # raised by the sink during `close`
        self._cancellation: asyncio.CancelledError | None = None  # arrived during `close`

    async def add_file(self, task: FetchTask, result: FetchResult) -> None:
        """Add one file whose calls are finished. Waits while the sink is far behind."""
        units = min(1 + result.document_bytes // _BYTES_PER_UNIT, self._batch_files)
        if self._free_units < units or self._admission.locked():
            async with self._admission:
                while self._free_units < units:
                    self._has_room.clear()
                    await self._has_room.wait()
        self._free_units -= units
        self._files.append((task, result, units))
        self._pending_units += units
        self._mark_dirty()

    def add_window(self, window: ListedWindow) -> None:
        """Add a window whose files were all submitted."""
        self._listed_windows.add(window)
        self._mark_dirty()

    def add_deleted(self, tombstone: Tombstone) -> None:
        """Add a file that is not fetched, because the service does not have it."""
        self._tombstones.append(tombstone)
        self._mark_dirty()

    def finish(self) -> None:
        """Commit the rest as soon as it arrives, because nothing more is submitted."""
        self._is_finishing = True
        self._wake.set()

    async def run(self) -> None:
        """Commit batches until `finish()` was called and nothing is pending."""
        while not self._is_finishing or self._files or self._listed_windows or self._tombstones or self._in_flight:
            await self._wait_until_due()
            # At most one full batch: taking more would leave no capacity to collect the next one.
            tasks, batch, units = self._take_batch(self._batch_files)
            if batch:
                # A cancellation does not stop a commit that has begun; `close` waits for it.
                self._storing = asyncio.create_task(self._sink(batch))
                await asyncio.shield(self._storing)
                self._storing = None
            self._free(units)
            self._in_flight.on_committed(tasks)

    def _free(self, units: int) -> None:
        self._free_units += units
        self._has_room.set()

    async def close(self, failure: BaseException | None) -> None:
        """Finish what has begun and commit the rest, after `failure` or (None) a cancellation.

        After a storage failure nothing more is committed. Raises the error of a commit, unless it is `failure`.
        """
        succeeded = await self._await_uncancelled(self._storing, failure)
        if succeeded and self._cancellation is None and not isinstance(failure, OSError | StorageError):
            _, batch, _ = self._take_batch()
            if batch:
                await self._await_uncancelled(asyncio.create_task(self._sink(batch)), failure)
        if (error := self._close_error or self._cancellation) is not None:
            raise error

    async def _await_uncancelled(self, work: asyncio.Task[None] | None, failure: BaseException | None) -> bool:
        """Wait for `work` even if cancelled, so that no task is left behind. Return whether it succeeded."""
        while work is not None and not work.done():
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError as error:
                self._cancellation = error
        problem = work.exception() if work is not None else None
        if problem is not failure:
            self._close_error = self._close_error or problem
        return problem is None

    def _grow_batch_size(self, files: int) -> None:
        """Grow the batch size, and the capacity with it, to a share of the files taken so far."""
        self._files_taken += files
        size = max(self._batch_files, min(self._options.commit_every_files, self._files_taken // _BATCH_GROWTH_DIVISOR))
        self._free(_MAX_PENDING_BATCHES * (size - self._batch_files))
        self._batch_files = size

    def _mark_dirty(self) -> None:
        if self._pending_since is None:
            self._pending_since = monotonic()
            self._wake.set()
        elif self._is_finishing or self._pending_units >= self._batch_files:
            self._wake.set()

    async def _wait_until_due(self) -> None:
        interval = self._options.commit_every_seconds
        while True:
            if self._pending_units >= self._batch_files:
                return
            if self._is_finishing and len(self._files) == len(self._in_flight):
                return
            since = self._pending_since
            timeout = None if since is None else since + interval - monotonic()
            if timeout is not None and timeout <= 0:
                return
            self._wake.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                return

    def _take_batch(self, max_units: int | None = None) -> tuple[list[FetchTask], CommitBatch, int]:
        """Return the tasks and files of the next batch, and the units that they count for."""
        units = count = 0
        while count < len(self._files) and (max_units is None or units < max_units):
            units += self._files[count][2]
            count += 1
        files, self._files = [file[:2] for file in self._files[:count]], self._files[count:]
        self._pending_units -= units
        self._pending_since = monotonic() if self._files else None
        self._grow_batch_size(len(files))
        for task, _ in files:
            task.in_batch = True
            for window in task.windows:
                window.pending_files -= 1
        completed = [window for window in self._listed_windows if not window.pending_files]
        self._listed_windows.difference_update(completed)
        batch = CommitBatch(
            versions=[result.version for _, result in files if result.version is not None],
            rejects=[
                *(result.reject for _, result in files if result.reject is not None),
                *(reject for window in completed for reject in window.rejects),
            ],
            windows=completed,
            tombstones=[*self._tombstones, *(result.tombstone for _, result in files if result.tombstone is not None)],
        )
        self._tombstones = []
        return [task for task, _ in files], batch, units
