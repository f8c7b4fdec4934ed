"""However a crawl ends, it leaves no task, commits what is finished, and the next run continues from there."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import CoroutineType
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.crawl.crawler import Crawler
from pipeline.crawl.windows import ALL_TIME
from pipeline.emulator import Emulator
from pipeline.errors import StorageError
from schemas.timestamps import SECOND
from tests.crawl.crawl_harness import LIST_ONLY, WITH_DETAILS, FakeLake, differences, open_client, run_crawl

if TYPE_CHECKING:
    from pipeline.crawl.batcher import Commit
    from pipeline.crawl.models import CommitBatch

FILES: Final = 220
_SMALL: Final = replace(WITH_DETAILS, commit_every_files=25, commit_every_seconds=0.05)


def crawl_tasks() -> list[str]:
    """Return the tasks of a crawl or its sink that still exist."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks() - {asyncio.current_task()}]
    return [
        repr(coroutine)
        for coroutine in coroutines
        if isinstance(coroutine, CoroutineType) and "pipeline/crawl/" in coroutine.cr_code.co_filename
    ]


@pytest.mark.parametrize("seed", range(10))
async def test_cancelled_at_any_moment(seed: int) -> None:
    """A crawl that is cancelled at a random moment commits what is finished; the next ones repeat few details."""
    rng = random.Random(seed)
    async with Emulator(FILES, seed=seed) as emulator:
        lake = FakeLake()
        for _ in range(3):
            task = asyncio.create_task(run_crawl(emulator, lake, _SMALL))
            enough = emulator.requests + rng.randrange(100)
            while emulator.requests < enough and not task.done():
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert crawl_tasks() == []
            print(f"seed {seed}: {len(lake.stored)} files after {emulator.requests} requests")
        await run_crawl(emulator, lake, _SMALL)
        assert differences(emulator, lake) == []
        assert emulator.counts["detail"] <= FILES + 3 * (_SMALL.workers + 2)


async def test_cancelled_during_a_commit() -> None:
    """A commit that has begun is finished, even if the crawl is cancelled twice."""
    async with Emulator(FILES, seed=1) as emulator:
        lake = FakeLake()
        begun = asyncio.Event()
        ended: list[int] = []

        async def slow(batch: CommitBatch) -> None:
            begun.set()
            await asyncio.sleep(0.1)
            ended.append(len(batch.versions))

        task = asyncio.create_task(run_crawl(emulator, lake, _SMALL, sink=slow))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert crawl_tasks() == []
        assert ended
        assert sum(ended) == len(lake.stored)


async def test_one_batch_is_written_while_another_is_committed() -> None:
    """A write and the commit of the batch before overlap; batches are committed in the order of collection."""
    async with Emulator(FILES, seed=8) as emulator:
        events: list[tuple[str, int]] = []

        async def sink(_: CommitBatch) -> Commit:
            number = sum(word == "write" for word, _ in events)
            events.append(("write", number))
            await asyncio.sleep(0.01)
            events.append(("written", number))

            async def commit() -> None:
                events.append(("commit", number))
                await asyncio.sleep(0.03)
                events.append(("committed", number))

            return commit

        lake = FakeLake()
        await run_crawl(emulator, lake, replace(_SMALL, commit_every_files=10), sink=sink)
        assert differences(emulator, lake) == []
        assert crawl_tasks() == []
        ordered = [(word, number) for word, number in events if word in {"commit", "committed"}]
        assert ordered == [(word, number) for number in range(len(ordered) // 2) for word in ("commit", "committed")]
        positions = {event: position for position, event in enumerate(events)}
        assert any(positions["write", number + 1] < positions["committed", number] for number in range(5))


async def test_nothing_is_committed_after_a_failed_commit() -> None:
    """If a commit fails, the batch that was written during it is not committed."""
    async with Emulator(FILES, seed=9) as emulator:
        written: list[int] = []
        committed: list[int] = []

        async def sink(_: CommitBatch) -> Commit:
            number = len(written)
            written.append(number)

            async def commit() -> None:
                await asyncio.sleep(0.05)
                if number == 2:
                    raise StorageError("ledger.sqlite: disk full")
                committed.append(number)

            return commit

        lake = FakeLake()
        with pytest.raises(StorageError, match="disk full"):
            await run_crawl(emulator, lake, replace(_SMALL, commit_every_files=10), sink=sink)
        assert committed == [0, 1]
        assert len(written) >= 3
        assert crawl_tasks() == []
        await run_crawl(emulator, lake, _SMALL)
        assert differences(emulator, lake) == []


@pytest.mark.parametrize("seed", range(5))
async def test_stopped_with_two_batches_in_flight(seed: int) -> None:
    """A crawl that is cancelled twice at a random moment leaves no uncommitted batch and no task."""
    rng = random.Random(seed)
    async with Emulator(FILES, seed=seed) as emulator:
        written: list[int] = []
        committed: list[int] = []

        async def sink(_: CommitBatch) -> Commit:
            await asyncio.sleep(0.01)
            number = len(written)
            written.append(number)

            async def commit() -> None:
                await asyncio.sleep(0.02)
                committed.append(number)

            return commit

        lake = FakeLake()
        task = asyncio.create_task(run_crawl(emulator, lake, replace(_SMALL, commit_every_files=10), sink=sink))
        while len(written) < 3:
            await asyncio.sleep(0.001)
        await asyncio.sleep(rng.random() * 0.05)
        task.cancel()
        await asyncio.sleep(rng.random() * 0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        print(f"seed {seed}: {len(written)} written")
        assert committed == written
        assert crawl_tasks() == []
        await run_crawl(emulator, lake, _SMALL)
        assert differences(emulator, lake) == []


@pytest.mark.parametrize(
    ("error", "after"), [(StorageError("ledger.sqlite: disk full"), 3), (OSError(28, "no space"), 1)]
)
async def test_a_disk_that_is_full(error: Exception, after: int) -> None:
    """A failing sink ends the crawl with its error, and receives nothing afterwards."""
    async with Emulator(FILES, seed=2) as emulator:
        lake = FakeLake()
        calls = 0

        async def full(_: CommitBatch) -> None:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0.01)
            if calls >= after:
                raise error

        with pytest.raises(type(error)) as caught:
            await run_crawl(emulator, lake, _SMALL, sink=full)
        assert caught.value is error
        assert crawl_tasks() == []
        assert calls == after
        await run_crawl(emulator, lake, _SMALL)
        assert differences(emulator, lake) == []


async def test_a_lookup_that_fails_during_a_commit() -> None:
    """If the lake cannot be read, the crawl ends with that error after the current commit."""
    async with Emulator(FILES, seed=3) as emulator, open_client(emulator) as client:
        begun: list[int] = []
        ended: list[int] = []

        async def slow(batch: CommitBatch) -> None:
            begun.append(len(batch.versions))
            await asyncio.sleep(0.2)
            ended.append(len(batch.versions))

        async def lookup(_: object) -> dict[int, object]:
            if begun:
                raise StorageError("ledger.sqlite: cannot be read")
            return {}

        options = replace(_SMALL, workers=2)
        crawl = Crawler(client, options, run_id="r", lookup=lookup, now_us=lambda: 1_900_000_000 * SECOND)  # type: ignore[arg-type]
        with pytest.raises(StorageError, match="cannot be read"):
            await crawl.run([ALL_TIME], slow)
        assert ended == begun
        assert begun
        assert crawl_tasks() == []


async def test_a_bug_is_raised_as_it_is() -> None:
    """An unexpected error in the sink is raised unchanged, not in a group."""
    async with Emulator(60, seed=4) as emulator:

        async def broken(_: CommitBatch) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await run_crawl(emulator, FakeLake(), _SMALL, sink=broken)


async def test_a_slow_sink_limits_the_crawl() -> None:
    """With a slow sink at most a few batches are fetched ahead, so memory does not grow with the files."""
    options = replace(_SMALL, workers=4, commit_every_files=10)
    async with Emulator(FILES, seed=5) as emulator:
        lake = FakeLake()
        ahead: list[int] = []

        async def slow(batch: CommitBatch) -> None:
            await asyncio.sleep(0.03)
            ahead.append(emulator.counts["detail"] - len(lake.stored) - len(batch.versions))

        await run_crawl(emulator, lake, options, sink=slow)
        assert max(ahead) <= 2 * 10 + 4 * 4
        assert differences(emulator, lake) == []


async def test_the_smallest_batches_and_one_worker() -> None:
    """With one file per commit, one worker and a slow sink the crawl still ends."""
    options = replace(LIST_ONLY, workers=1, commit_every_files=1, commit_every_seconds=0.001)
    async with Emulator(120, seed=6) as emulator:
        lake = FakeLake()
        async with asyncio.timeout(150):
            await run_crawl(emulator, lake, options)
        assert differences(emulator, lake) == []
        assert all(len(batch.versions) <= 2 for batch in lake.batches)


async def test_an_empty_service() -> None:
    """A service without files is synced with a few calls, and has a watermark."""
    async with Emulator(0, seed=7) as emulator:
        lake = FakeLake()
        result = await run_crawl(emulator, lake)
        assert result.lists <= 4
        assert lake.watermark is not None
        emulator.world.create(3)
        await run_crawl(emulator, lake)
        assert differences(emulator, lake) == []
