"""Nothing is lost while files are created, updated, closed and deleted during the crawl."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.crawl.flight import Flight
from pipeline.crawl.terms import Known, Sight, Tally, WindowState
from pipeline.crawl.windows import EVERYTHING
from pipeline.emulator import quirks_of
from pipeline.service.protocol import ListItem
from schemas.requests import INCLUDES, FileQuery
from tests.crawl.crawling import (
    LIST_ONLY,
    WITH_DETAILS,
    RestlessEmulator,
    Shelf,
    client_of,
    crawled,
    differences,
    revisions,
    untouched,
)

if TYPE_CHECKING:
    from aiohttp import web

    from pipeline.emulator.wire import Answer

FILES: Final = 260
ORDERS: Final = ("updated-asc", "updated-desc", "shuffled", "id-asc")


def restless(seed: int, **quirks: object) -> RestlessEmulator:
    """A world for one seed."""
    precision = ("seconds", "micros", "millis")[seed % 3]
    settings = {"precision": precision, "order": ORDERS[seed % len(ORDERS)], **quirks}
    return RestlessEmulator(FILES, seed=seed, quirks=quirks_of("seen", settings))


async def crawl_twice(emulator: RestlessEmulator, *, pace: float, seconds: float, header: bool = False) -> None:
    """Crawl while the world changes at every request, then once in quiet; nothing may be missing either time."""
    shelf = Shelf()
    options: dict[str, Any] = {"token_in": "header"} if header else {}
    async with emulator:
        before = revisions(emulator)
        emulator.make_restless(emulator.plan.seed, pace=pace, seconds=seconds)
        first = await crawled(emulator, shelf, **options)
        emulator.calm()
        left_alone = untouched(emulator, before)
        assert left_alone, "some files should have been left alone"
        assert differences(emulator, shelf, left_alone) == []
        print(f"seed {emulator.plan.seed}: {emulator.world.changes} changes, {first.lists} lists")
        emulator.world.clock.advance(emulator.quirks.late_commit_seconds)
        await crawled(emulator, shelf, **options)
        assert differences(emulator, shelf) == []


@pytest.mark.parametrize("seed", range(6))
async def test_a_world_that_changes_within_seconds(seed: int) -> None:
    """With changes at every request, all within a few seconds, a quiet sync makes lake and service equal."""
    await crawl_twice(restless(seed), pace=0.7, seconds=0.0)


@pytest.mark.parametrize("seed", range(8, 14))
async def test_a_world_that_changes_as_time_passes(seed: int) -> None:
    """The same while two seconds pass between two requests, so that the changes lie far apart."""
    await crawl_twice(restless(seed), pace=0.7, seconds=2.0)


@pytest.mark.parametrize("profile", ["sparse", "contrary", "hostile", "instances"])
async def test_a_world_that_changes_and_tells_little(profile: str) -> None:
    """The same for a service that answers otherwise in everything the interface leaves open."""
    emulator = RestlessEmulator(FILES, seed=3, quirks=quirks_of(profile))
    await crawl_twice(emulator, pace=0.3, seconds=0.5, header=profile == "contrary")


async def paged(emulator: RestlessEmulator) -> set[int]:
    """The ids that a client sees that walks page after page."""
    async with client_of(emulator) as client:
        return {
            item.id
            async for page in client.pages(FileQuery(include=INCLUDES))
            for item in page.items
            if item.id is not None
        }


async def test_paging_by_number_loses_files() -> None:
    """The test can fail: a client that pages through the same changing list misses files that nobody touched."""
    lost = 0
    for seed in range(0, 8, 4):
        async with restless(seed) as emulator:
            before = revisions(emulator)
            emulator.make_restless(seed, pace=4.0)
            seen = await paged(emulator)
            emulator.calm()
            lost += len(untouched(emulator, before) - seen)
    assert lost > 0


async def test_a_file_that_never_rests() -> None:
    """A file that is updated at every request arrives in the first run that meets it, and the run ends."""
    async with restless(1) as emulator:
        shelf = Shelf()
        restless_key = emulator.world.keys()[100]
        emulator.change = partial(emulator.world.touch, [restless_key])
        ran = await crawled(emulator, shelf)
        assert restless_key in shelf.known
        assert len(shelf.known) == FILES
        assert ran.lists < 150
        second = await crawled(emulator, shelf)
        assert second.details <= 20


class MovingAway(RestlessEmulator):
    """Right after the newest window was read for the first time, files of older ones are stamped anew."""

    moved: tuple[int, ...] = ()

    async def _answer(self, request: web.BaseRequest, path: str, query: str, endpoint: str) -> tuple[Answer, str]:
        answer = await super()._answer(request, path, query, endpoint)
        if not self.moved and "updated_start" in query and "updated_end" not in query:
            self.moved = tuple(self.world.update(self.world.some(5)))
        return answer


async def test_files_that_move_behind_the_reader() -> None:
    """Files that move into the newest window after it was read are in the lake when the run ends, by the sweep."""
    async with MovingAway(FILES, seed=1) as emulator:
        shelf = Shelf()
        await crawled(emulator, shelf)
        assert len(emulator.moved) == 5
        assert differences(emulator, shelf) == []


@pytest.mark.parametrize("settled", [True, False])
async def test_a_list_that_waited_too_long(settled: bool) -> None:  # noqa: FBT001
    """An item that waited for its turn while a later version was committed never replaces it."""
    later = Known(
        updated_at=2_000_000, fetched_at=9_000_000, digest=b"", shape="", settled=settled,
        deleted=False, instance=None, run_id="this",
    )  # fmt: skip
    tally = Tally()
    flight = Flight(WITH_DETAILS, tally, run_id="this", lookup=lambda _: {7: later})
    state = WindowState(EVERYTHING, sight=Sight(1.0, 2.0, 3_000_000))
    await flight.issue([ListItem(7, None, 1_000_000, b"{}")], state)
    assert tally.skipped == int(settled)
    if not settled:
        # The two documents of the later version disagreed: the list is asked once more, not believed.
        assert (await flight.take()).outdated


async def test_a_file_from_the_future() -> None:
    """A file stamped years ahead arrives in the first run, and does not move the horizon into the future."""
    async with restless(2) as emulator:
        shelf = Shelf()
        now = emulator.world.clock.now()
        ahead = emulator.world.some(3)
        emulator.world.touch(ahead, at=now + 5 * 365 * 86_400 * 1_000_000)
        await crawled(emulator, shelf)
        assert set(ahead) <= set(shelf.known)
        assert shelf.horizon is not None
        assert shelf.horizon <= now // 1_000_000
        emulator.world.update(emulator.world.some(5))
        await crawled(emulator, shelf)
        assert differences(emulator, shelf) == []


async def test_many_files_from_the_future() -> None:
    """More files than fit in a response, all in one second of the future, arrive too."""
    async with restless(3) as emulator:
        shelf = Shelf()
        emulator.world.touch(emulator.world.some(120), at=4_102_444_800 * 1_000_000)
        await crawled(emulator, shelf, LIST_ONLY)
        assert len(shelf.known) == FILES


async def test_a_commit_that_shows_late() -> None:
    """A change that the list shows only minutes after its stamp is picked up by the look-back of a later run."""
    async with restless(4, late_commit_seconds=300.0) as emulator:
        shelf = Shelf()
        await crawled(emulator, shelf)
        emulator.world.update(emulator.world.some(12))
        emulator.world.create(3)
        await crawled(emulator, shelf)
        assert len(differences(emulator, shelf)) == 15
        emulator.world.clock.advance(310)
        await crawled(emulator, shelf)
        assert differences(emulator, shelf) == []


@pytest.mark.parametrize("skew", [-240.0, 240.0])
async def test_a_clock_that_is_wrong(skew: float) -> None:
    """A Date that runs ahead of the stamps or behind them, by less than the look-back, loses nothing."""
    async with restless(5, date_skew_seconds=skew) as emulator:
        shelf = Shelf()
        for _ in range(3):
            await crawled(emulator, shelf)
            emulator.world.clock.advance(45)
            emulator.world.update(emulator.world.some(6))
            emulator.world.create(2)
        await crawled(emulator, shelf)
        assert differences(emulator, shelf) == []


async def test_batches_keep_the_order_of_versions() -> None:
    """A file that was updated while it was on its way is committed as it is in the end, never an older version last."""
    terms = replace(WITH_DETAILS, commit_files=7, commit_seconds=0.01)
    async with restless(6) as emulator:
        shelf = Shelf()
        emulator.make_restless(6, pace=0.7)
        await crawled(emulator, shelf, terms, windows=[EVERYTHING])
        latest: dict[int, int] = {}
        for batch in shelf.batches:
            for version in batch.versions:
                assert latest.get(version.file_id, 0) <= (version.updated_at or 0)
                latest[version.file_id] = version.updated_at or 0
