"""Files in flight: each file from its list item to its commit, fetched at most once at a time, and who fetches them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.crawl.listing import select_newest
from pipeline.crawl.models import SharedFileIdError
from schemas.file_versions import CONTENT_DIGEST_BYTES, Reject, content_digest, same_content, version_digest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pipeline.client.protocol import ListItem
    from pipeline.crawl.models import CrawlOptions, CrawlStats, ListedWindow
    from pipeline.lake.ledger.queries import FileVersionRecord

    LookupVersions = Callable[[Sequence[int]], Awaitable[Mapping[int, FileVersionRecord]]]

MIN_WORKERS: Final = 64
_WAITING_SHARE: Final = 4  # a quarter more than may be in flight: the rate limiter sees that more would be used
_MAX_BYTES_IN_FLIGHT: Final = 64 * 1024**2
_SIZE_SAMPLES: Final = 32  # files over which the mean size forgets
_QUEUE_DEPTH_PER_WORKER: Final = 4  # fetch tasks queued for each worker, up to `MIN_WORKERS`
_RECENTLY_SKIPPED_FILES: Final = 50_000  # windows that share files are read within a short time
_LOOKUP_CHUNK_FILES: Final = 500


class FetchWorkers:
    """Workers of a crawl. Their number follows the concurrency, between `MIN_WORKERS` and `max_workers`.

    List calls wait in the same line as the workers. More workers than the service has use for would delay them.
    Beyond `MIN_WORKERS` the files in flight may have `_MAX_BYTES_IN_FLIGHT` in total, by the last ones' mean size.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        fetch: Callable[[], Awaitable[int]],
        *,
        concurrency: Callable[[], int],
        max_workers: int,
    ) -> None:
        """Start workers in `group`. `fetch` fetches the next file and returns its bytes."""
        self._group = group
        self._fetch = fetch
        self._concurrency = concurrency
        self._max_workers = max_workers
        self._mean_bytes = 1.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._start(self._count_missing())

    def __len__(self) -> int:
        """Return the number of workers."""
        return len(self._tasks)

    def cancel(self) -> None:
        """Cancel all workers, because nothing is left to fetch."""
        for task in self._tasks:
            task.cancel()

    def _count_missing(self) -> int:
        """Return how many workers are missing; a negative number is that of those too many."""
        concurrency = self._concurrency()
        by_limit = concurrency + concurrency // _WAITING_SHARE
        by_memory = int(_MAX_BYTES_IN_FLIGHT / self._mean_bytes)
        return min(self._max_workers, max(MIN_WORKERS, min(by_limit, by_memory))) - len(self._tasks)

    def _start(self, workers: int) -> None:
        for _ in range(workers):
            task = self._group.create_task(self._work())
            self._tasks.add(task)

    async def _work(self) -> None:
        try:
            missing = 0
            while missing >= 0:
                size = await self._fetch()
                self._mean_bytes = max(1.0, self._mean_bytes + (size - self._mean_bytes) / _SIZE_SAMPLES)
                missing = self._count_missing()
                self._start(missing)
        finally:  # at once: those that end in the same turn of the loop must not all take themselves for one too many
            if (task := asyncio.current_task()) is not None:
                self._tasks.discard(task)


class FetchTask(Struct, eq=False):
    """A file between being listed and being committed, with every window that listed it and waits for it.

    Once the file is `in_batch`, no further window has to wait: batches are committed in order, so a window
    that completes later is committed later.

    `followup` fetches the file again, because a list showed another version. It starts when this task is committed, and
    reads the list item again, so that an older version never replaces a newer one.
    """

    key: int
    item: ListItem
    windows: list[ListedWindow]
    followup: FetchTask | None = None
    in_batch: bool = False
    must_relist: bool = False  # the item may be outdated: it must be read again
    seen_at: int | None = None  # when the lake has fetched a version with the same timestamp


class InFlightFiles:
    """The fetch tasks of files that the lake has not stored.

    The queue is bounded: nothing is submitted while too many tasks wait for a worker.
    """

    def __init__(self, options: CrawlOptions, stats: CrawlStats, *, run_id: str, lookup: LookupVersions) -> None:
        self._options = options
        self._fetch_signature = options.fetch_signature
        self._stats = stats
        self._run_id = run_id
        self._lookup = lookup
        self._queue: asyncio.Queue[FetchTask] = asyncio.Queue()
        self._max_queued = _QUEUE_DEPTH_PER_WORKER * min(options.workers, MIN_WORKERS)
        self._has_room = asyncio.Event()
        self._tasks: dict[int, FetchTask] = {}
        self._recently_skipped: dict[int, None] = {}
        self._committed_keys: dict[ListedWindow, set[int]] = {}  # commits while a window is submitted

    def __len__(self) -> int:
        """Return the number of files that were submitted and are not committed."""
        return len(self._tasks)

    async def submit(self, items: Sequence[ListItem], window: ListedWindow) -> None:
        """Submit the list items of a window. Of a file that is listed twice the newest item counts.

        Raises `SharedFileIdError` if the instance id must be the key of a file.
        """
        items = select_newest(items)
        committed = self._committed_keys[window] = set()
        try:
            for start in range(0, len(items), _LOOKUP_CHUNK_FILES):
                chunk = items[start : start + _LOOKUP_CHUNK_FILES]
                keyed_items = [(self._options.get_key(item), item) for item in chunk]
                await self._wait_for_room()
                committed.clear()
                stored = dict(await self._lookup([key for key, _ in keyed_items if key is not None]))
                self._stats.listed += len(keyed_items)
                window.files += len(keyed_items)
                for key, item in keyed_items:
                    if key is None:
                        bounds = (window.window.start, window.window.end)
                        window.rejects.append(Reject(None, "list item without a usable id", item.raw, bounds))
                        continue
                    await self._refresh_if_committed(key, committed, stored)
                    self._submit_item(key, item, window, stored.get(key))
        finally:
            del self._committed_keys[window]

    async def is_fetched(self, key: int, window: ListedWindow) -> bool:
        """Return whether this run has fetched a file, or is about to."""
        committed = self._committed_keys[window] = set()
        try:
            stored = dict(await self._lookup([key]))
            await self._refresh_if_committed(key, committed, stored)
        finally:
            del self._committed_keys[window]
        return key in self._tasks or (key in stored and stored[key].run_id == self._run_id)

    async def resubmit(self, key: int, item: ListItem, window: ListedWindow) -> None:
        """Submit a file whatever the lake has stored of it, unless this run has already fetched the file."""
        await self._wait_for_room()
        if not await self.is_fetched(key, window):
            self._submit_item(key, item, window, None)

    async def _refresh_if_committed(self, key: int, committed: set[int], stored: dict[int, FileVersionRecord]) -> None:
        """Look a file up again until it has not been committed since the lookup began."""
        while key in committed:
            committed.discard(key)
            stored.update(await self._lookup([key]))

    async def next_task(self) -> FetchTask:
        """Return the next file to fetch."""
        task = await self._queue.get()
        if self._queue.qsize() < self._max_queued:
            self._has_room.set()
        return task

    async def _wait_for_room(self) -> None:
        """Wait while the queue is full. The files of one list then enter together, so it may overflow by some lists."""
        while self._queue.qsize() >= self._max_queued:
            self._has_room.clear()
            await self._has_room.wait()

    def on_committed(self, tasks: Sequence[FetchTask]) -> None:
        """Remove committed tasks and start their followups."""
        for task in tasks:
            del self._tasks[task.key]
            for committed in self._committed_keys.values():
                committed.add(task.key)
            if task.followup is not None:
                self._tasks[task.key] = task.followup
                self._queue.put_nowait(task.followup)

    def _submit_item(self, key: int, item: ListItem, window: ListedWindow, stored: FileVersionRecord | None) -> None:
        task = self._tasks.get(key)
        self._check_id_is_unique(item, task, stored)
        if task is not None:
            self._attach_to_existing(task, item, window)
            return
        is_outdated = stored is not None and self._is_outdated(item, window, stored)
        if stored is not None and (self._is_up_to_date(item, stored) or (is_outdated and stored.is_stable)):
            self._count_unchanged(key, stored)
            return
        seen_at = stored.fetched_at if stored and stored.updated_at == item.updated_at else None
        task = FetchTask(key, item, [window], must_relist=is_outdated, seen_at=seen_at)
        self._tasks[key] = task
        window.pending_files += 1
        self._queue.put_nowait(task)

    def _count_unchanged(self, key: int, stored: FileVersionRecord) -> None:
        """Count a file that is not fetched: as skipped once, unless this run has fetched it."""
        skipped = self._recently_skipped
        if stored.run_id == self._run_id or key in skipped:
            self._stats.relisted += 1
            return
        self._stats.skipped += 1
        skipped[key] = None
        if len(skipped) > _RECENTLY_SKIPPED_FILES:
            del skipped[next(iter(skipped))]

    def _attach_to_existing(self, task: FetchTask, item: ListItem, window: ListedWindow) -> None:
        """Attach a window to a file in flight. A different version is fetched after the commit of the first."""
        latest = task.followup or task
        is_same = item.updated_at == latest.item.updated_at and same_content(item.raw, latest.item.raw)
        if is_same and latest.in_batch:
            return
        if is_same or latest is not task:
            latest.windows.append(window)
        else:
            newest = max(item, task.item, key=lambda listed: listed.updated_at or 0)
            task.followup = FetchTask(task.key, newest, [window], must_relist=True)
        window.pending_files += 1

    def _check_id_is_unique(self, item: ListItem, task: FetchTask | None, stored: FileVersionRecord | None) -> None:
        """Raise if two list items share an id and differ in `file_id`: they are two files."""
        if self._options.identity == "file_id" or item.instance_id is None:
            return
        task_instance = task.item.instance_id if task is not None else None
        stored_instance = stored.instance_id if stored is not None and not stored.deleted else None
        if task_instance not in {None, item.instance_id} or stored_instance not in {None, item.instance_id}:
            raise SharedFileIdError

    def _is_outdated(self, item: ListItem, window: ListedWindow, stored: FileVersionRecord) -> bool:
        """Return whether this run fetched a later version after the list was requested: the item may have waited."""
        return (
            stored.run_id == self._run_id
            and window.requested_us < stored.fetched_at
            and (item.updated_at or 0) < (stored.updated_at or 0)
        )

    def _is_up_to_date(self, item: ListItem, stored: FileVersionRecord) -> bool:
        """Return whether the lake has stored this version with the same fetch signature."""
        if stored.deleted:
            return False
        if self._options.compare_updated_at_only:
            return item.updated_at is not None and stored.updated_at == item.updated_at
        if (
            stored.updated_at != item.updated_at
            or stored.fetch_signature != self._fetch_signature
            or stored.digest[:CONTENT_DIGEST_BYTES] != content_digest(item.raw)
        ):
            return False
        # A version that this run has fetched is not fetched again, whatever the options are.
        if stored.run_id == self._run_id:
            return True
        if self._options.renews_links and stored.digest != version_digest(item.raw):
            return False
        # Without an update time nothing shows whether what only the detail has is as before.
        return item.updated_at is not None and stored.is_stable and self._options.fetch_details != "always"
