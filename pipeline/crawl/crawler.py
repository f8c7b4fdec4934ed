"""The concurrent crawl: windows to list items, list items to versions, versions in batches to the sink.

Three stages with bounded queues between them: a few list workers, many fetch workers, one batcher. The slowest
stage sets the speed, and memory does not grow with the number of files. All tasks belong to one TaskGroup.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from functools import partial
from typing import TYPE_CHECKING, Final

from pipeline.client.protocol import ListItem
from pipeline.crawl.batcher import Batcher
from pipeline.crawl.details import DetailFetcher
from pipeline.crawl.in_flight import FetchWorkers, InFlightFiles
from pipeline.crawl.listing import WindowReader
from pipeline.crawl.models import CrawlStats, ListedWindow, SharedFileIdError, parse_reference
from pipeline.crawl.whole_list import has_hidden, read_whole_list
from pipeline.crawl.windows import ALL_TIME
from pipeline.errors import ProtocolError, ScanlakeError
from pipeline.output.formatting import pluralize
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipeline.client.client import Client
    from pipeline.crawl.batcher import Sink
    from pipeline.crawl.in_flight import LookupVersions
    from pipeline.crawl.models import CrawlOptions, RefetchRequest
    from pipeline.crawl.windows import Window

_LIST_WORKERS: Final = 6
_MAX_REREADS: Final = 200
_FREE_CALLS: Final = 2_000  # list calls that need no reason: a service with an odd list of few files
_MAX_CALLS_PER_WINDOW: Final = 4
_MAX_CALLS_PER_FILE: Final = 20  # a file may have to be searched for by its reference and by its second


class Crawler:
    """One crawl over a set of windows. `run` may be called once."""

    def __init__(self, client: Client, options: CrawlOptions, *, run_id: str, lookup: LookupVersions) -> None:
        """Create the stages. `lookup` returns what the lake has stored of some files."""
        self.stats = CrawlStats()
        self.unproven_files = 0
        """How many files the list counts and does not show."""
        self._untimed_files = 0  # without an update time in the list, found by their references
        self._options = options
        self._client, self._clock = client, client.clock
        self._calls_before = client.stats.list
        self._free_calls = _FREE_CALLS
        self._reader = WindowReader(client, options, lambda: self._clock.now_or_local() // SECOND)
        self._fetcher = DetailFetcher(client, options, self._reader)
        self._in_flight = InFlightFiles(options, self.stats, run_id=run_id, lookup=lookup)

    async def run(
        self,
        windows: Iterable[Window],
        sink: Sink,
        *,
        newest: Window | None = None,
        refetches: Sequence[RefetchRequest] = (),
        compares: bool = False,
    ) -> CrawlStats:
        """Read every window, then `newest` again for files that moved, and pass batches to `sink`.

        `compares`: after that it fetches what the list has and no window shows.
        Finished files are passed on even if the crawl fails or is cancelled. Raises the first `ScanlakeError`, or
        `SharedFileIdError` if the instance id must be the key of a file.
        """
        windows = list(windows)
        batcher = Batcher(self._options, self._in_flight, sink)
        try:
            async with asyncio.TaskGroup() as group:
                committer = group.create_task(batcher.run())
                workers = FetchWorkers(
                    group,
                    partial(self._fetch_file, batcher),
                    concurrency=lambda: self._client.rate_limiter.concurrency,
                    max_workers=self._options.workers,
                )
                read_in_one_response = await self._list_all(windows, batcher)
                await self._refetch_all(refetches, batcher)
                if newest is not None and not read_in_one_response:
                    # Files that moved there during the crawl, in order of time. Those that change faster than they can
                    # be listed are after the watermark: the next run reads them.
                    await self._list_all([newest], batcher, workers=1, max_windows=_MAX_REREADS)
                if compares and not (read_in_one_response and windows == [ALL_TIME]):
                    await self._fetch_hidden()
                batcher.finish()
                await committer
                workers.cancel()
        except BaseExceptionGroup as failures:
            failure = _primary_failure(failures)
            await batcher.close(failure)
            raise failure from failure.__cause__  # without the group around it
        except asyncio.CancelledError:
            await batcher.close(None)
            raise
        return self.stats

    # Listing

    async def _list_all(
        self,
        windows: Iterable[Window],
        batcher: Batcher,
        *,
        workers: int = _LIST_WORKERS,
        max_windows: float = math.inf,
    ) -> bool:
        """Read windows, oldest first. Return whether one response had everything: then no file can have moved."""
        heap = [(_window_sort_key(window), window) for window in windows]
        heapq.heapify(heap)
        self._free_calls += _MAX_CALLS_PER_WINDOW * len(heap)
        self.stats.windows_total += len(heap)
        windows_read = 0
        busy_workers = 0
        wake = asyncio.Event()

        async def list_windows() -> None:
            nonlocal windows_read, busy_workers
            while (heap or busy_workers) and windows_read < max_windows:
                if not heap:
                    wake.clear()
                    await wake.wait()
                    continue
                _, window = heapq.heappop(heap)
                busy_workers += 1
                try:
                    for sub_window in await self._list(window, batcher):
                        heapq.heappush(heap, (_window_sort_key(sub_window), sub_window))
                    windows_read += 1
                finally:
                    busy_workers -= 1
                    wake.set()

        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(list_windows())
        return windows_read <= 1

    async def _list(self, window: Window, batcher: Batcher) -> tuple[Window, ...]:
        self._check_list_calls()
        # The service reads its list between request and answer; the earlier instant is the safe one.
        requested_us = self._clock.now_or_local()
        result = await self._reader.read(window)
        pending = ListedWindow(window, requested_us, is_consistent=result.is_consistent)
        self.stats.windows += not result.sub_windows
        self.stats.windows_total += len(result.sub_windows) - bool(result.sub_windows)
        await self._in_flight.submit(result.items, pending)
        if not result.sub_windows:
            self.stats.rejects += len(pending.rejects)
            batcher.add_window(pending)
        return result.sub_windows

    def _check_list_calls(self) -> None:
        """Raise if the list costs more calls than any list of so many files can need."""
        calls = self._client.stats.list - self._calls_before
        if calls > self._free_calls + _MAX_CALLS_PER_FILE * self.stats.listed:
            raise ProtocolError(
                f"GET /files: {calls:,} list calls have shown {pluralize(self.stats.listed, 'file')}, without an end.",
                hint="Check that base_url is the file service; what was listed so far is stored.",
            )

    async def _fetch_hidden(self) -> None:
        """Fetch the files of the list that no window shows, if there are more than this crawl has found."""
        if await has_hidden(self._reader.pages, self._untimed_files):
            window = ListedWindow(ALL_TIME, self._clock.now_or_local())
            read = partial(read_whole_list, self._reader, partial(self._in_flight.submit, window=window), window)
            self.unproven_files = await self._reader.pages.retry_with_smaller_pages(read)

    async def _refetch_all(self, requests: Sequence[RefetchRequest], batcher: Batcher) -> None:
        remaining = iter(requests)
        self._free_calls += _MAX_CALLS_PER_FILE * len(requests)

        async def refetch_files() -> None:
            for request in remaining:
                await self._refetch(request, batcher)

        async with asyncio.TaskGroup() as group:
            for _ in range(_LIST_WORKERS):
                group.create_task(refetch_files())

    async def _refetch(self, request: RefetchRequest, batcher: Batcher) -> None:
        key, pending = request.file_id, ListedWindow(ALL_TIME, self._clock.now_or_local())
        if await self._in_flight.is_fetched(key, pending):
            return
        item = await self._reader.find_item(key, request.reference, request.updated_at)
        self._untimed_files += item is not None and item.updated_at is None
        if item is None and request.document is not None:
            # The list no longer contains the file; the call by id shows whether it was deleted.
            item = ListItem(key, None, request.updated_at, request.document)
        if item is not None:
            await self._in_flight.resubmit(key, item, pending)
        elif (tombstone := await self._fetcher.check_deleted(key)) is not None:
            batcher.add_deleted(tombstone)

    # Fetching

    async def _fetch_file(self, batcher: Batcher) -> int:
        """Fetch the next file and pass it on. Return the bytes of its documents."""
        task = await self._in_flight.next_task()
        item = task.item
        if task.must_relist:
            task.item = await self._reader.find_item(task.key, parse_reference(item.raw), item.updated_at) or item
        result = await self._fetcher.fetch(task.key, task.item, seen_at=task.seen_at)
        if result.reject is not None:
            self.stats.rejects += 1
        elif result.version is None:
            self.stats.deleted += 1
        else:
            self.stats.files_stored += 1
            self.stats.details_fetched += result.version.detail is not None
        await batcher.add_file(task, result)
        return result.document_bytes


def _window_sort_key(window: Window) -> tuple[float, float]:
    return -math.inf if window.start is None else window.start, math.inf if window.end is None else window.end


def _primary_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the most informative failure: the first of scanlake's own errors, else the first."""
    failure: BaseException = failures.subgroup((ScanlakeError, SharedFileIdError)) or failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
