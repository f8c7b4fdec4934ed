"""However a crawl ends, it leaves no task behind, what was whole is committed, and the next run goes on from there."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import CoroutineType
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.crawl.crawler import Crawl
from pipeline.crawl.windows import EVERYTHING
from pipeline.emulator import Emulator
from pipeline.errors import StorageError
from schemas.instants import SECOND
from tests.crawl.crawling import LIST_ONLY, WITH_DETAILS, Shelf, client_of, crawled, differences

if TYPE_CHECKING:
    from pipeline.crawl.batching import Commit
    from pipeline.crawl.terms import Batch

FILES: Final = 220
_SMALL: Final = replace(WITH_DETAILS, commit_files=25, commit_seconds=0.05)


def crawl_tasks() -> list[str]:
    """Tasks of a crawl or of its sink that are still there."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks() - {asyncio.current_task()}]
    return [
        repr(each) for each in coroutines if isinstance(each, CoroutineType) and "crawl" in each.cr_code.co_filename
    ]


@pytest.mark.parametrize("seed", range(10))
async def test_cancelled_at_any_moment(seed: int) -> None:
    """A crawl that is cancelled at a random moment commits what is whole; the next ones repeat few details."""
    rng = random.Random(seed)
    async with Emulator(FILES, seed=seed) as emulator:
        shelf = Shelf()
        for _ in range(3):
            task = asyncio.create_task(crawled(emulator, shelf, _SMALL))
            enough = emulator.requests + rng.randrange(100)
            while emulator.requests < enough and not task.done():
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert crawl_tasks() == []
            print(f"seed {seed}: {len(shelf.known)} files after {emulator.requests} requests")
        await crawled(emulator, shelf, _SMALL)
        assert differences(emulator, shelf) == []
        assert emulator.counts["detail"] <= FILES + 3 * (_SMALL.workers + 2)


async def test_cancelled_during_a_commit() -> None:
    """A commit that has begun is carried to its end, even when the stop is asked for twice."""
    async with Emulator(FILES, seed=1) as emulator:
        shelf = Shelf()
        begun = asyncio.Event()
        ended: list[int] = []

        async def slow(batch: Batch) -> None:
            begun.set()
            await asyncio.sleep(0.1)
            ended.append(len(batch.versions))

        task = asyncio.create_task(crawled(emulator, shelf, _SMALL, sink=slow))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert crawl_tasks() == []
        assert ended
        assert sum(ended) == len(shelf.known)


async def test_one_is_written_while_another_is_made_true() -> None:
    """Writing a batch and making the one before true overlap; they are made true in the order they were gathered."""
    async with Emulator(FILES, seed=8) as emulator:
        told: list[tuple[str, int]] = []

        async def sink(_: Batch) -> Commit:
            number = sum(word == "write" for word, _ in told)
            told.append(("write", number))
            await asyncio.sleep(0.01)
            told.append(("written", number))

            async def commit() -> None:
                told.append(("commit", number))
                await asyncio.sleep(0.03)
                told.append(("true", number))

            return commit

        shelf = Shelf()
        await crawled(emulator, shelf, replace(_SMALL, commit_files=10), sink=sink)
        assert differences(emulator, shelf) == []
        assert crawl_tasks() == []
        ordered = [(word, number) for word, number in told if word in {"commit", "true"}]
        assert ordered == [(word, number) for number in range(len(ordered) // 2) for word in ("commit", "true")]
        places = {entry: place for place, entry in enumerate(told)}
        assert any(places["write", number + 1] < places["true", number] for number in range(5))


async def test_nothing_is_made_true_after_what_failed() -> None:
    """When making one batch true fails, the one that was written meanwhile is not made true."""
    async with Emulator(FILES, seed=9) as emulator:
        written: list[int] = []
        true: list[int] = []

        async def sink(_: Batch) -> Commit:
            number = len(written)
            written.append(number)

            async def commit() -> None:
                await asyncio.sleep(0.05)
                if number == 2:
                    raise StorageError("ledger.sqlite: disk full")
                true.append(number)

            return commit

        shelf = Shelf()
        with pytest.raises(StorageError, match="disk full"):
            await crawled(emulator, shelf, replace(_SMALL, commit_files=10), sink=sink)
        assert true == [0, 1]
        assert len(written) >= 3
        assert crawl_tasks() == []
        await crawled(emulator, shelf, _SMALL)
        assert differences(emulator, shelf) == []


@pytest.mark.parametrize("seed", range(5))
async def test_stopped_with_two_on_their_way(seed: int) -> None:
    """A stop at a random moment, asked for twice, leaves no batch written and not made true, and no task."""
    rng = random.Random(seed)
    async with Emulator(FILES, seed=seed) as emulator:
        written: list[int] = []
        true: list[int] = []

        async def sink(_: Batch) -> Commit:
            await asyncio.sleep(0.01)
            number = len(written)
            written.append(number)

            async def commit() -> None:
                await asyncio.sleep(0.02)
                true.append(number)

            return commit

        shelf = Shelf()
        task = asyncio.create_task(crawled(emulator, shelf, replace(_SMALL, commit_files=10), sink=sink))
        while len(written) < 3:
            await asyncio.sleep(0.001)
        await asyncio.sleep(rng.random() * 0.05)
        task.cancel()
        await asyncio.sleep(rng.random() * 0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        print(f"seed {seed}: {len(written)} written")
        assert true == written
        assert crawl_tasks() == []
        await crawled(emulator, shelf, _SMALL)
        assert differences(emulator, shelf) == []


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("error", [StorageError("ledger.sqlite: disk full"), OSError(28, "no space")])
async def test_a_disk_that_is_full(after: int, error: Exception) -> None:
    """A sink that fails ends the crawl with that very error, and nothing is handed to it afterwards."""
    async with Emulator(FILES, seed=2) as emulator:
        shelf = Shelf()
        calls = 0

        async def full(_: Batch) -> None:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0.01)
            if calls >= after:
                raise error

        with pytest.raises(type(error)) as caught:
            await crawled(emulator, shelf, _SMALL, sink=full)
        assert caught.value is error
        assert crawl_tasks() == []
        assert calls == after
        await crawled(emulator, shelf, _SMALL)
        assert differences(emulator, shelf) == []


async def test_a_lookup_that_fails_during_a_commit() -> None:
    """When the lake cannot be read the crawl ends with that error, after the commit that had begun."""
    async with Emulator(FILES, seed=3) as emulator, client_of(emulator) as client:
        begun: list[int] = []
        ended: list[int] = []

        async def slow(batch: Batch) -> None:
            begun.append(len(batch.versions))
            await asyncio.sleep(0.2)
            ended.append(len(batch.versions))

        def lookup(_: object) -> dict[int, object]:
            if begun:
                raise StorageError("ledger.sqlite: cannot be read")
            return {}

        terms = replace(_SMALL, workers=2)
        crawl = Crawl(client, terms, run_id="r", lookup=lookup, now_us=lambda: 1_900_000_000 * SECOND)  # type: ignore[arg-type]
        with pytest.raises(StorageError, match="cannot be read"):
            await crawl.run([EVERYTHING], slow)
        assert ended == begun
        assert begun
        assert crawl_tasks() == []


async def test_a_bug_is_raised_as_it_is() -> None:
    """An unexpected error in the sink comes out as itself, not in a group and not twice."""
    async with Emulator(60, seed=4) as emulator:

        async def broken(_: Batch) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await crawled(emulator, Shelf(), _SMALL, sink=broken)


async def test_the_slow_side_sets_the_pace() -> None:
    """While the sink is slow no more is fetched than a few batches ahead: memory does not grow with the files."""
    terms = replace(_SMALL, workers=4, commit_files=10)
    async with Emulator(FILES, seed=5) as emulator:
        shelf = Shelf()
        ahead: list[int] = []

        async def slow(batch: Batch) -> None:
            await asyncio.sleep(0.03)
            ahead.append(emulator.counts["detail"] - len(shelf.known) - len(batch.versions))

        await crawled(emulator, shelf, terms, sink=slow)
        assert max(ahead) <= 2 * 10 + 4 * 4
        assert differences(emulator, shelf) == []


async def test_a_world_that_is_all_at_once() -> None:
    """A commit a file, one worker, and a sink that is slower than everything: the crawl still comes to its end."""
    terms = replace(LIST_ONLY, workers=1, commit_files=1, commit_seconds=0.001)
    async with Emulator(120, seed=6) as emulator:
        shelf = Shelf()
        async with asyncio.timeout(30):
            await crawled(emulator, shelf, terms)
        assert differences(emulator, shelf) == []
        assert all(len(batch.versions) <= 2 for batch in shelf.batches)


async def test_an_empty_service() -> None:
    """A service without files is synced with a few calls, and has a horizon."""
    async with Emulator(0, seed=7) as emulator:
        shelf = Shelf()
        ran = await crawled(emulator, shelf)
        assert ran.lists <= 4
        assert shelf.horizon is not None
        emulator.world.create(3)
        await crawled(emulator, shelf)
        assert differences(emulator, shelf) == []
