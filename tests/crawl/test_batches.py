"""Batches and their bounds: bytes, files and tasks in memory, and what follows a failed commit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from pipeline.client.protocol import ListItem
from pipeline.crawl import batcher
from pipeline.crawl.batcher import Batcher
from pipeline.crawl.details import FetchResult
from pipeline.crawl.in_flight import FetchWorkers, InFlightFiles
from pipeline.crawl.models import CrawlStats, ListedWindow
from pipeline.crawl.windows import ALL_TIME, Window
from pipeline.emulator import Emulator
from pipeline.errors import StorageError
from schemas.file_versions import FileVersion, content_digest
from tests.crawl.crawl_harness import LIST_ONLY, WITH_DETAILS, FakeLake, know_nothing, run_crawl, stored_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.crawl.batcher import Sink
    from pipeline.crawl.models import CommitBatch
    from pipeline.lake.ledger.queries import FileVersionRecord

_MAX_UNITS = 40
_UNIT_BYTES = 1_000


async def test_large_files_make_small_batches(lake: FakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose documents are many units make batches of few files, every file is stored, and the crawl ends."""
    monkeypatch.setattr(batcher, "_BYTES_PER_UNIT", _UNIT_BYTES)
    async with Emulator(200, seed=5) as emulator:
        await run_crawl(emulator, lake, replace(WITH_DETAILS, commit_every_files=_MAX_UNITS, commit_every_seconds=60))
    sizes = [
        [len(version.list_item or b"") + len(version.detail or b"") for version in batch.versions]
        for batch in lake.batches
    ]
    assert len(lake.stored) == 200
    assert max(map(sum, sizes)) <= _MAX_UNITS * _UNIT_BYTES + 2 * max(map(max, filter(None, sizes)))
    assert max(map(len, sizes)) < _MAX_UNITS


async def test_nothing_is_stored_after_a_failed_commit() -> None:
    """A batch that was collected while the one before it failed is not stored: its window is read again."""
    stored, has_begun, may_fail = list[list[int]](), asyncio.Event(), asyncio.Event()

    async def sink(batch: CommitBatch) -> None:
        stored.append([version.file_id for version in batch.versions])
        has_begun.set()
        await may_fail.wait()
        raise StorageError("The disk is full.")

    batches, in_flight = await _create_batcher(sink)
    running = asyncio.create_task(batches.run())
    await _finish_next(batches, in_flight)
    await has_begun.wait()
    await _finish_next(batches, in_flight)
    may_fail.set()
    async with asyncio.timeout(10):
        with pytest.raises(StorageError) as failed:  # at once, not when a next batch is due
            await running
    await batches.close(failed.value)
    assert stored == [[1]]


async def _create_batcher(sink: Sink) -> tuple[Batcher, InFlightFiles]:
    """Return a batcher of single files, and two files in flight."""
    options = replace(WITH_DETAILS, commit_every_files=1, commit_every_seconds=60)
    in_flight = InFlightFiles(options, CrawlStats(), run_id="run", lookup=know_nothing)
    await in_flight.submit([ListItem(number, None, None, b"{}") for number in (1, 2)], ListedWindow(Window(0, 10)))
    return Batcher(options, in_flight, sink), in_flight


async def _finish_next(batches: Batcher, in_flight: InFlightFiles) -> int:
    """Add the next file to the batcher, and return its key."""
    task = await in_flight.next_task()
    await batches.add_file(task, FetchResult(FileVersion(task.key, b"{}", None, None, 0, "detail")))
    return task.key


async def test_a_commit_during_a_look_up_is_seen() -> None:
    """A file that is committed while a second window asks for it is asked for once more, and not fetched again."""
    item = ListItem(1, None, 5_000_000, b'{"id": 1}')
    asked = 0
    stored: dict[int, FileVersionRecord] = {}

    async def lookup(_: Sequence[int]) -> dict[int, FileVersionRecord]:
        nonlocal asked
        asked, answer = asked + 1, dict(stored)
        assert asked < 9
        if asked == 2:
            stored[1] = stored_version(
                1, updated_at=item.updated_at, fetched_at=6_000_000, digest=content_digest(item.raw), is_stable=True
            )
            in_flight.on_committed([task])
        return answer

    in_flight = InFlightFiles(WITH_DETAILS, CrawlStats(), run_id="run", lookup=lookup)
    await in_flight.submit([item], ListedWindow(Window(0, 10)))
    task = await in_flight.next_task()
    await in_flight.submit([item], ListedWindow(Window(5, 10)))
    assert (asked, len(in_flight)) == (3, 0)


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


@pytest.mark.parametrize(("pause", "details"), [(0.0, True), (0.15, True), (0.01, False)])
async def test_tasks_and_in_flight_files_are_bounded(pause: float, details: bool) -> None:  # noqa: FBT001 - a table
    """With a slow or a fast disk, three times the files need no more tasks and no more files in flight, or listed."""
    sizes = (80, 240) if details else (200, 600)
    few, many = [await measure_peaks(files, pause=pause, details=details) for files in sizes]
    assert many[0] <= min(few[0] + (4 if details else 2) * WORKERS, 6 * WORKERS + 20)
    assert many[1] <= 2 * COMMIT + 4 * WORKERS


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


async def workers_after(changes: list[tuple[int, int]], *, max_workers: int) -> list[int]:
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


@pytest.mark.parametrize(
    ("changes", "max_workers", "expected"),
    [
        ([(concurrency, 8_000) for concurrency in (8, 51, 200, 512, 64)], 512, [64, 64, 250, 512, 80]),
        ([(concurrency, 8_000) for concurrency in (8, 51, 200, 512, 64)], 40, [40] * 5),
        ([(400, 8_000), (400, 4 * MIB), (400, 8_000)], 512, [500, 64, 500]),
    ],
)
async def test_workers_follow_the_concurrency(
    changes: list[tuple[int, int]], max_workers: int, expected: list[int]
) -> None:
    """A quarter more files are fetched than may be in flight, at least 64 and at most the setting; of 4 MiB each 64."""
    assert await workers_after(changes, max_workers=max_workers) == expected


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
