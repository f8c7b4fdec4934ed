"""However a crawl ends, it leaves no task, commits what is finished, and the next run continues from there."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from types import CoroutineType
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from pipeline.crawl.crawler import Crawler
from pipeline.crawl.windows import ALL_TIME
from pipeline.emulator import Emulator
from pipeline.errors import StorageError
from tests.crawl.crawl_harness import (
    LIST_ONLY,
    WITH_DETAILS,
    FakeLake,
    crawl_exactly,
    differences,
    open_client,
    run_crawl,
)
from tests.soaking import sample

if TYPE_CHECKING:
    from pipeline.crawl.models import CommitBatch

FILES: Final = 120
_SMALL: Final = replace(WITH_DETAILS, commit_every_files=10, commit_every_seconds=0.05)


def crawl_tasks() -> list[str]:
    """Return the tasks of a crawl or its sink that still exist."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks() - {asyncio.current_task()}]
    return [
        repr(coroutine)
        for coroutine in coroutines
        if isinstance(coroutine, CoroutineType) and "pipeline/crawl/" in coroutine.cr_code.co_filename
    ]


@dataclass
class SlowSink:
    """A sink that takes ten milliseconds to write a batch and thirty to commit it."""

    events: list[tuple[str, int]] = field(default_factory=list)

    async def __call__(self, _: CommitBatch) -> None:
        """Write a batch, and commit it."""
        number = len(self.numbers("write"))
        self.events.append(("write", number))
        await asyncio.sleep(0.01)
        self.events.append(("commit", number))
        await asyncio.sleep(0.03)
        self.events.append(("committed", number))

    def numbers(self, event: str) -> list[int]:
        """Return the batches of which something has happened, in order."""
        return [number for name, number in self.events if name == event]


@pytest.mark.parametrize("seed", sample(range(10), 5))
async def test_cancelled_at_any_moment(lake: FakeLake, seed: int) -> None:
    """A crawl that is cancelled at a random moment commits what is finished; the next ones repeat few details."""
    rng = random.Random(seed)
    async with Emulator(FILES, seed=seed) as emulator:
        for _ in range(3):
            task = asyncio.create_task(run_crawl(emulator, lake, _SMALL))
            enough = emulator.requests + rng.randrange(60)
            while emulator.requests < enough and not task.done():
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert crawl_tasks() == []
        await crawl_exactly(emulator, lake, _SMALL)
        assert emulator.counts["detail"] <= FILES + 3 * (_SMALL.workers + 2)


@pytest.mark.parametrize("seed", sample(range(10), 3))
async def test_cancelled_twice_during_commits(seed: int) -> None:
    """A crawl that is cancelled twice at a random moment finishes the commits that have begun, and leaves no task."""
    rng = random.Random(seed)
    async with Emulator(FILES, seed=seed) as emulator:
        lake, sink = FakeLake(), SlowSink()
        task = asyncio.create_task(run_crawl(emulator, lake, _SMALL, sink=sink))
        while len(sink.numbers("write")) < 3:
            await asyncio.sleep(0.001)
        await asyncio.sleep(rng.random() * 0.05)
        task.cancel()
        await asyncio.sleep(rng.random() * 0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sink.numbers("committed") == sink.numbers("write")
        assert crawl_tasks() == []
        await crawl_exactly(emulator, lake, _SMALL)


async def test_files_are_fetched_while_a_batch_is_stored() -> None:
    """Batches are stored one after the other, in the order of collection; the next one is collected meanwhile."""
    async with Emulator(FILES, seed=8) as emulator:
        lake, sink = FakeLake(), SlowSink()
        await crawl_exactly(emulator, lake, _SMALL, sink=sink)
    steps = ("write", "commit", "committed")
    assert sink.events == [(step, number) for number in range(len(lake.batches)) for step in steps]


@pytest.mark.parametrize(
    ("error", "after"),
    [(StorageError("ledger.sqlite: disk full"), 3), (OSError(28, "no space"), 1), (ZeroDivisionError(), 2)],
)
async def test_a_sink_that_fails(lake: FakeLake, error: Exception, after: int) -> None:
    """A full disk or a bug ends the crawl with its error, not in a group, and the sink receives nothing afterwards."""
    async with Emulator(FILES, seed=2) as emulator:
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
        await crawl_exactly(emulator, lake, _SMALL)


async def test_a_lookup_that_fails_during_a_commit() -> None:
    """If the lake cannot be read, the crawl ends with that error after the current commit."""
    async with Emulator(FILES, seed=3) as emulator, open_client(emulator) as client:
        sink = SlowSink()

        async def lookup(_: object) -> dict[int, object]:
            if sink.numbers("commit"):
                raise StorageError("ledger.sqlite: cannot be read")
            await asyncio.sleep(0.02)
            return {}

        options = replace(_SMALL, workers=2)
        crawl = Crawler(client, options, run_id="r", lookup=lookup)  # type: ignore[arg-type]
        with pytest.raises(StorageError, match="cannot be read"):
            await crawl.run([ALL_TIME], sink)
        assert sink.numbers("committed") == sink.numbers("commit") != []
        assert crawl_tasks() == []


async def test_the_smallest_batches_and_one_worker(lake: FakeLake) -> None:
    """With one file per commit, one worker and a slow sink the crawl still ends."""
    options = replace(LIST_ONLY, workers=1, commit_every_files=1, commit_every_seconds=0.001)
    async with Emulator(FILES, seed=6) as emulator:
        async with asyncio.timeout(150):
            await run_crawl(emulator, lake, options, sink=SlowSink())
        assert differences(emulator, lake) == []
        assert all(len(batch.versions) <= 2 for batch in lake.batches)


async def test_an_empty_service(lake: FakeLake) -> None:
    """A service without files is synced with a few calls, and has a watermark."""
    async with Emulator(0, seed=7) as emulator:
        result = await run_crawl(emulator, lake)
        assert result.lists <= 4
        assert lake.watermark is not None
        emulator.world.create(3)
        await crawl_exactly(emulator, lake)
