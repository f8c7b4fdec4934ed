"""The number of fetch workers: it follows the concurrency, and large files keep it small."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.crawl.fetch_workers import FetchWorkers

MIB = 1024**2


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
