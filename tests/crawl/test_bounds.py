"""Nothing grows with the number of files: neither what is fetched ahead, nor the tasks that do it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.emulator import Emulator
from tests.crawl.crawling import LIST_ONLY, WITH_DETAILS, Shelf, crawled

if TYPE_CHECKING:
    from pipeline.crawl.terms import Batch

WORKERS: Final = 8
COMMIT: Final = 20


async def most(files: int, *, pause: float, details: bool) -> tuple[int, int]:
    """The most tasks at once, and the most files that were fetched and not yet committed, in one crawl."""
    terms = replace(WITH_DETAILS if details else LIST_ONLY, workers=WORKERS, commit_files=COMMIT, commit_seconds=0.05)
    tasks = ahead = 0
    async with Emulator(files, seed=9, cache_bytes=0) as emulator:
        shelf = Shelf()
        before = len(asyncio.all_tasks())

        async def slow(batch: Batch) -> None:
            nonlocal tasks, ahead
            await asyncio.sleep(pause)
            # The emulator lives in this loop as well: a task for each of the client's connections.
            tasks = max(tasks, len(asyncio.all_tasks()) - before)
            ahead = max(ahead, emulator.counts["detail"] - len(shelf.known) - len(batch.versions))

        await crawled(emulator, shelf, terms, sink=slow)
        assert len(shelf.known) == files
    return tasks, ahead


@pytest.mark.parametrize("pause", [0.0, 0.15])
async def test_tasks_and_files_on_their_way_are_bounded(pause: float) -> None:
    """A disk ten times slower than the service, or quick, and five times the files: no more tasks, no more ahead."""
    few, many = await most(80, pause=pause, details=True), await most(400, pause=pause, details=True)
    assert many[0] <= few[0] + 4 * WORKERS
    assert many[0] <= 6 * WORKERS + 20
    assert many[1] <= 2 * COMMIT + 4 * WORKERS


async def test_lists_do_not_run_ahead_either() -> None:
    """Without detail calls the same: what was listed waits for the disk."""
    few, many = await most(200, pause=0.01, details=False), await most(2_000, pause=0.01, details=False)
    assert many[0] <= few[0] + 2 * WORKERS
