"""The tasks that fetch files: as many as the rate limiter lets through, and some that wait for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MIN_WORKERS: Final = 64
_WAITING_SHARE: Final = 4  # a quarter more than may be in flight: the rate limiter sees that more would be used
_MAX_BYTES_IN_FLIGHT: Final = 64 * 1024**2
_SIZE_SAMPLES: Final = 32  # files over which the mean size forgets


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
