"""The number of requests of a sync: windows are split to fit in one response, and nothing is requested twice."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final, Literal

import pytest
from msgspec.structs import replace

from pipeline.emulator import Emulator, WorldPlan, make_quirks
from tests.crawl.crawl_harness import LIST_ONLY, WITH_DETAILS, FakeLake, differences, run_crawl

SEED: Final = 5
FILES: Final = 1_000
PAGE: Final = 50
_NONE: Final = {"paging": "none"}
_BARE: Final = {"paging": "bare"}
_FAST: Final = replace(LIST_ONLY, commit_every_files=1_000, includes=("locations",))


@pytest.mark.parametrize(
    ("spread", "profile", "settings", "factor"),
    [
        *(("even", "seen", {}, 1.8), ("burst", "seen", {}, 3.0), ("same-second", "seen", {}, 3.0)),
        *(("natural", profile, {}, 6) for profile in ("plain", "sparse", "contrary", "hostile")),
        # One place of each page stays free; only an empty page ends a bare list.
        *(("natural", "seen", settings, limit) for settings, limit in (({}, 1.8), (_NONE, 1.4), (_BARE, 1.45))),
    ],
    ids=str,
)
async def test_a_first_sync_of_many(
    lake: FakeLake, spread: Any, profile: str, settings: dict[str, str], factor: float
) -> None:
    """A first sync makes a small multiple of the calls that full pages need; without hints or counts not many more."""
    quirks = make_quirks(profile, settings)
    async with Emulator(plan=WorldPlan(files=FILES, seed=SEED, spread=spread), quirks=quirks) as emulator:
        result = await run_crawl(emulator, lake, _FAST, token_location="header" if profile == "contrary" else "query")
        assert len(lake.stored) == FILES
        assert result.lists <= factor * FILES / (quirks.page_cap or PAGE)
        assert not result.inconsistent or profile != "seen"


async def test_a_change_within_the_second_of_the_timestamp(lake: FakeLake) -> None:
    """A second change within the same second is fetched, although the timestamp is the same."""
    async with Emulator(60, seed=SEED) as emulator:
        emulator.world.clock.set(emulator.world.clock.now())
        key = emulator.world.keys()[7]
        emulator.world.edit(key, "add-upload")
        assert (await run_crawl(emulator, lake)).details == 60
        emulator.world.edit(key, "add-form")
        assert (await run_crawl(emulator, lake)).details == 1
        assert differences(emulator, lake) == []


async def test_a_change_that_is_taken_back_within_the_second(lake: FakeLake) -> None:
    """A detail with a change that no list shows is fetched again, although list item and timestamp are equal."""
    async with Emulator(20, seed=SEED) as emulator:
        world = emulator.world
        key = next(key for key, record in world.records.items() if not record.closed)
        world.clock.set(world.clock.now())
        world.update([key])
        former = deepcopy(world.records[key])

        def change(endpoint: str) -> None:
            if endpoint == "detail":
                emulator.on_request = None
                world.close([key])

        emulator.on_request = change
        await run_crawl(emulator, lake)
        world.records[key] = former
        assert differences(emulator, lake) == [f"{key} has an old detail"]
        world.clock.advance(60)
        await run_crawl(emulator, lake)
        assert differences(emulator, lake) == []


async def test_a_slow_answer_is_of_when_it_was_asked_for(lake: FakeLake) -> None:
    """Details that were asked for within the second of a change and arrive later are fetched again, too."""
    async with Emulator(20, seed=SEED) as emulator:
        world = emulator.world
        keys = [key for key, record in world.records.items() if not record.closed]
        world.clock.set(world.clock.now())
        world.update(keys)
        former = deepcopy(world.records)

        def change(endpoint: str) -> None:
            if endpoint == "detail":  # all of them are asked for before the first is answered
                emulator.on_request = None
                world.close(keys)
                world.clock.resume()
                emulator.set_faults(latency_ms=5_000)

        emulator.on_request = change
        await run_crawl(emulator, lake)
        world.records = former
        assert len(differences(emulator, lake)) == len(keys)
        await run_crawl(emulator, lake)
        assert differences(emulator, lake) == []


async def test_timestamps_ahead_of_the_clock_cost_one_more_detail(lake: FakeLake) -> None:
    """If the service's timestamps are ahead of its clock, a changed file is fetched once more, and then skipped."""
    async with Emulator(20, seed=SEED, quirks=make_quirks(settings={"date_skew_seconds": -600.0})) as emulator:
        await run_crawl(emulator, lake)
        emulator.world.update(emulator.world.pick_random(5))
        details = []
        for _ in range(3):
            emulator.world.clock.advance(3)
            details.append((await run_crawl(emulator, lake)).details)
    assert details == [5, 5, 0]


@pytest.mark.parametrize("includes", [(), ("fields",)])
async def test_lists_with_few_includes(lake: FakeLake, includes: tuple[Literal["fields"], ...]) -> None:
    """If the list does not show every change, a file fetched soon after its timestamp is fetched again."""
    options = replace(WITH_DETAILS, includes=includes)
    async with Emulator(60, seed=SEED) as emulator:
        key = emulator.world.keys()[7]
        emulator.world.edit(key, "add-upload")
        await run_crawl(emulator, lake, options)
        emulator.world.edit(key, "add-upload", at=emulator.world.records[key].updated)
        for pause, details in ((0, 1), (60, 1), (0, 0)):
            emulator.world.clock.advance(pause)
            assert (await run_crawl(emulator, lake, options)).details == details
