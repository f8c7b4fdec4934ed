"""Neither tasks nor fetched files that wait for a commit grow with the number of files; how many workers fetch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.client.protocol import ListItem
from pipeline.crawl.fetch_workers import FetchWorkers
from pipeline.crawl.in_flight import InFlightFiles
from pipeline.crawl.models import CrawlStats, ListedWindow
from pipeline.crawl.windows import ALL_TIME
from pipeline.emulator import Emulator
from tests.crawl.crawl_harness import LIST_ONLY, WITH_DETAILS, FakeLake, know_nothing, run_crawl

if TYPE_CHECKING:
    from pipeline.crawl.models import CommitBatch

WORKERS: Final = 8
COMMIT: Final = 20
MIB: Final = 1024**2


async def measure_peaks(files: int, *, pause: float, details: bool) -> tuple[int, int]:
    """Return the largest number of tasks, and of files fetched and not yet committed, in one crawl."""
    options = replace(
        WITH_DETAILS if details else LIST_ONLY, workers=WORKERS, commit_every_files=COMMIT, commit_every_seconds=0.05
    )
    tasks = ahead = 0
    async with Emulator(files, seed=9) as emulator:
        lake = FakeLake()
        before = len(asyncio.all_tasks())

        async def slow(batch: CommitBatch) -> None:
            nonlocal tasks, ahead
            await asyncio.sleep(pause)
            # The emulator lives in this loop as well: a task for each of the client's connections.
            tasks = max(tasks, len(asyncio.all_tasks()) - before)
            ahead = max(ahead, emulator.counts["detail"] - len(lake.stored) - len(batch.versions))

        await run_crawl(emulator, lake, options, sink=slow)
        assert len(lake.stored) == files
    return tasks, ahead


@pytest.mark.parametrize("pause", [0.0, 0.15])
async def test_tasks_and_in_flight_files_are_bounded(pause: float) -> None:
    """With a slow or a fast disk, three times the files need no more tasks and no more files in flight."""
    few, many = [await measure_peaks(files, pause=pause, details=True) for files in (80, 240)]
    assert many[0] <= min(few[0] + 4 * WORKERS, 6 * WORKERS + 20)
    assert many[1] <= 2 * COMMIT + 4 * WORKERS


async def test_lists_do_not_run_ahead_either() -> None:
    """Without detail calls the listed files wait for the disk as well."""
    few, many = [await measure_peaks(files, pause=0.01, details=False) for files in (200, 600)]
    assert many[0] <= few[0] + 2 * WORKERS


async def test_lists_wait_for_the_workers() -> None:
    """While as many files are queued as workers soon need, no list adds any; as soon as there is room, one does."""
    in_flight = InFlightFiles(replace(WITH_DETAILS, workers=WORKERS), CrawlStats(), run_id="this", lookup=know_nothing)
    lists = [[ListItem(first + number, None, 0, b"{}") for number in range(40)] for first in (0, 100)]
    await in_flight.submit(lists[0], ListedWindow(ALL_TIME))
    submitting = asyncio.create_task(in_flight.submit(lists[1], ListedWindow(ALL_TIME)))
    for taken in range(9):
        await asyncio.sleep(0)
        assert (len(in_flight), submitting.done()) == (40, False), taken
        await in_flight.next_task()
    await submitting
    assert len(in_flight) == 80


async def workers_after(changes: list[tuple[int, int]], *, max_workers: int = 512) -> list[int]:
    """Return the number of workers after rounds of 30 fetches, each with a concurrency and bytes per file."""
    concurrency, size = changes[0]
    found: list[int] = []

    async def fetch() -> int:
        await asyncio.sleep(0.001)
        return size

    async with asyncio.TaskGroup() as group:
        workers = FetchWorkers(group, fetch, concurrency=lambda: concurrency, max_workers=max_workers)
        for change in changes:
            concurrency, size = change
            await asyncio.sleep(0.03)
            found.append(len(workers))
        workers.cancel()
    return found


@pytest.mark.parametrize(("max_workers", "expected"), [(512, [64, 64, 250, 512, 80]), (40, [40] * 5)])
async def test_workers_follow_the_concurrency(max_workers: int, expected: list[int]) -> None:
    """A quarter more files are fetched than may be in flight, at least 64 and at most the setting."""
    changes = [(concurrency, 8_000) for concurrency in (8, 51, 200, 512, 64)]
    assert await workers_after(changes, max_workers=max_workers) == expected


async def test_large_files_keep_the_workers_few() -> None:
    """Files of 4 MiB get no more than 64 workers, and small ones afterwards all of them."""
    assert await workers_after([(400, 8_000), (400, 4 * MIB), (400, 8_000)]) == [500, 64, 500]


async def test_all_workers_end_at_a_failure() -> None:
    """A failing fetch ends all workers with its error."""
    fetched = 0

    async def fetch() -> int:
        nonlocal fetched
        fetched += 1
        await asyncio.sleep(0)
        if fetched > 200:
            raise OSError("disk")
        return 1

    with pytest.raises(ExceptionGroup) as failure:
        async with asyncio.TaskGroup() as group:
            workers = FetchWorkers(group, fetch, concurrency=lambda: 100, max_workers=512)
    assert isinstance(failure.value.exceptions[0], OSError)
    await asyncio.sleep(0)
    assert len(workers) == 0
