"""No file is lost while files are created, updated, closed and deleted during the crawl."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec.structs import replace

from pipeline.client.protocol import ListItem
from pipeline.crawl.in_flight import InFlightFiles
from pipeline.crawl.models import CrawlStats, ListedWindow
from pipeline.crawl.windows import ALL_TIME
from pipeline.emulator import make_quirks
from schemas.file_query import FileQuery
from schemas.includes import INCLUDES
from tests.crawl.crawl_harness import (
    LIST_ONLY,
    WITH_DETAILS,
    ChangingEmulator,
    FakeLake,
    crawl_exactly,
    differences,
    know_nothing,
    open_client,
    revisions,
    run_crawl,
    stored_version,
    untouched,
)
from tests.soaking import sample

if TYPE_CHECKING:
    from aiohttp import web

    from pipeline.emulator.http import Response
    from pipeline.lake.ledger.queries import FileVersionRecord

FILES: Final = 120
ORDERS: Final = ("updated-asc", "updated-desc", "shuffled", "id-asc")


def changing_emulator(seed: int, **quirks: object) -> ChangingEmulator:
    """Return an emulator for one seed."""
    precision = ("seconds", "micros", "millis")[seed % 3]
    settings = {"precision": precision, "order": ORDERS[seed % len(ORDERS)], **quirks}
    return ChangingEmulator(FILES, seed=seed, quirks=make_quirks("seen", settings))


async def crawl_twice(emulator: ChangingEmulator, *, pace: float, seconds: float, header: bool = False) -> None:
    """Crawl while files change at every request, then once without changes; no file may be missing either time."""
    lake = FakeLake()
    client_options: dict[str, Any] = {"token_location": "header"} if header else {}
    async with emulator:
        before = revisions(emulator)
        emulator.start_changing(emulator.plan.seed, pace=pace, seconds=seconds)
        await run_crawl(emulator, lake, **client_options)
        emulator.stop_changing()
        left_alone = untouched(emulator, before)
        assert left_alone, "some files should have been left alone"
        assert differences(emulator, lake, left_alone) == []
        emulator.world.clock.advance(emulator.quirks.late_commit_seconds)
        await crawl_exactly(emulator, lake, **client_options)


@pytest.mark.parametrize("seconds", [0.0, 2.0])
@pytest.mark.parametrize("seed", sample(range(23), 4))
async def test_a_world_that_changes(seed: int, seconds: float) -> None:
    """With changes at every request, within seconds or far apart, a quiet sync makes lake and service equal."""
    await crawl_twice(changing_emulator(seed), pace=0.7, seconds=seconds)


@pytest.mark.parametrize("profile", ["sparse", "contrary", "hostile", "instances"])
async def test_a_world_that_changes_and_tells_little(profile: str) -> None:
    """The same for services that answer differently wherever the interface is undefined."""
    emulator = ChangingEmulator(100, seed=3, quirks=make_quirks(profile))
    await crawl_twice(emulator, pace=0.3, seconds=0.5, header=profile == "contrary")


async def test_paging_by_number_loses_files() -> None:
    """The test can fail: a client that pages through the same changing list misses unchanged files."""
    lost = 0
    for seed in range(0, 8, 4):
        async with changing_emulator(seed) as emulator:
            before = revisions(emulator)
            emulator.start_changing(seed, pace=4.0)
            async with open_client(emulator) as client:
                seen = {item.id async for page in client.iter_pages(FileQuery(include=INCLUDES)) for item in page.items}
            emulator.stop_changing()
            lost += len(untouched(emulator, before) - seen)
    assert lost > 0


async def test_a_file_that_changes_at_every_request(lake: FakeLake) -> None:
    """A file that is updated at every request is stored by the first run, and the run ends."""
    async with changing_emulator(1) as emulator:
        changing_key = emulator.world.keys()[60]
        emulator.change = partial(emulator.world.touch, [changing_key])
        result = await run_crawl(emulator, lake)
        assert changing_key in lake.stored
        assert len(lake.stored) == FILES
        assert result.lists < 150
        second = await run_crawl(emulator, lake)
        assert second.details <= 20


class MovingAway(ChangingEmulator):
    """Updates files of older windows right after the newest window was read for the first time."""

    moved: tuple[int, ...] = ()

    async def _respond(self, request: web.BaseRequest, path: str, query: str, endpoint: str) -> tuple[Response, str]:
        answer = await super()._respond(request, path, query, endpoint)
        if not self.moved and "updated_start" in query and "updated_end" not in query:
            self.moved = tuple(self.world.update(self.world.pick_random(5)))
        return answer


async def test_files_that_move_behind_the_reader(lake: FakeLake) -> None:
    """Files that move into the newest window after it was read are stored, because that window is read again."""
    async with MovingAway(FILES, seed=1) as emulator:
        await run_crawl(emulator, lake)
        assert len(emulator.moved) == 5
        assert differences(emulator, lake) == []


@pytest.mark.parametrize("settled", [True, False])
async def test_a_list_that_waited_too_long(settled: bool) -> None:  # noqa: FBT001
    """A list item that waited while a later version was committed never replaces that version."""
    later = stored_version(7, "this", updated_at=2_000_000, fetched_at=9_000_000, digest=b"", is_stable=settled)
    stats = CrawlStats()

    async def lookup(_: object) -> dict[int, FileVersionRecord]:
        return {7: later}

    in_flight = InFlightFiles(WITH_DETAILS, stats, run_id="this", lookup=lookup)
    state = ListedWindow(ALL_TIME, 3_000_000)
    await in_flight.submit([ListItem(7, None, 1_000_000, b"{}")], state)
    assert stats.relisted == int(settled)
    if not settled:
        # List item and detail of the later version disagreed: the list is read again.
        assert (await in_flight.next_task()).must_relist


async def test_a_file_that_changes_in_flight_is_fetched_again() -> None:
    """A file that is listed again in flight, in another version, is fetched after its commit."""
    in_flight = InFlightFiles(WITH_DETAILS, CrawlStats(), run_id="this", lookup=know_nothing)
    for second in (1, 3, 2):  # the last list was read before the one that has the file's newest version
        await in_flight.submit([ListItem(7, None, second, b"{}")], ListedWindow(ALL_TIME, second))
    first = await in_flight.next_task()
    assert len(in_flight) == 1
    in_flight.on_committed([first])
    again = await in_flight.next_task()
    assert (again.item.updated_at, again.must_relist, len(again.windows)) == (3, True, 2)


@pytest.mark.parametrize("count", [3, 120])
async def test_files_from_the_future(lake: FakeLake, count: int) -> None:
    """Files of one second years ahead, be it an overflow, are stored at once, and do not move the watermark ahead."""
    async with changing_emulator(2) as emulator:
        now = emulator.world.clock.now()
        emulator.world.touch(emulator.world.pick_random(count), at=now + 5 * 365 * 86_400 * 1_000_000)
        await run_crawl(emulator, lake, LIST_ONLY)
        assert len(lake.stored) == FILES
        assert lake.watermark is not None
        assert lake.watermark <= now // 1_000_000
        emulator.world.update(emulator.world.pick_random(5))
        await crawl_exactly(emulator, lake, LIST_ONLY)


async def test_a_commit_that_shows_late(lake: FakeLake) -> None:
    """A change that is listed minutes after its timestamp is read by the lookback of a later run."""
    async with changing_emulator(4, late_commit_seconds=300.0) as emulator:
        await run_crawl(emulator, lake)
        emulator.world.update(emulator.world.pick_random(12))
        emulator.world.create(3)
        await run_crawl(emulator, lake)
        assert len(differences(emulator, lake)) == 15
        emulator.world.clock.advance(310)
        await crawl_exactly(emulator, lake)


async def test_batches_keep_the_order_of_versions(lake: FakeLake) -> None:
    """A file that is updated while in flight is committed in its last version, never an older one last."""
    options = replace(WITH_DETAILS, commit_every_files=7, commit_every_seconds=0.01)
    async with changing_emulator(6) as emulator:
        emulator.start_changing(6, pace=0.7)
        await run_crawl(emulator, lake, options, windows=[ALL_TIME])
        latest: dict[int, int] = {}
        for batch in lake.batches:
            for version in batch.versions:
                assert latest.get(version.file_id, 0) <= (version.updated_at or 0)
                latest[version.file_id] = version.updated_at or 0
