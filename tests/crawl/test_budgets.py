"""What a sync costs, counted in requests: lists are cut to fit, and nothing is asked for twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

import pytest

from pipeline.emulator import Emulator, WorldPlan, quirks_of
from tests.crawl.crawling import LIST_ONLY, WITH_DETAILS, Shelf, crawled, differences

SEED: Final = 5
FILES: Final = 20_000
PAGE: Final = 50
_FAST: Final = replace(LIST_ONLY, commit_files=1_000, includes=("locations",))


@pytest.mark.parametrize(("spread", "factor"), [("even", 1.8), ("natural", 1.8), ("burst", 3.0), ("same-second", 3.0)])
async def test_a_first_sync_of_many(spread: Literal["natural", "even", "burst", "same-second"], factor: float) -> None:
    """A first sync takes no more list calls than a small multiple of the full pages there are."""
    plan = WorldPlan(files=FILES, seed=SEED, spread=spread)
    async with Emulator(plan=plan, cache_bytes=0) as emulator:
        shelf = Shelf()
        ran = await crawled(emulator, shelf, _FAST)
        print(f"{spread}: {ran.lists} list calls, {ran.lists * PAGE / FILES:.2f} x files/{PAGE}, {ran.seconds:.1f} s")
        assert len(shelf.known) == FILES
        assert ran.lists <= factor * FILES / PAGE
        assert not ran.unproven


@pytest.mark.parametrize("profile", ["seen", "plain", "sparse", "contrary", "hostile"])
async def test_a_first_sync_whatever_the_answers(profile: str) -> None:
    """Answers that tell little cost more list calls, yet not many more."""
    quirks = quirks_of(profile)
    async with Emulator(2_000, seed=SEED, quirks=quirks, cache_bytes=0) as emulator:
        shelf = Shelf()
        ran = await crawled(emulator, shelf, _FAST, token_in="header" if profile == "contrary" else "query")
        page = quirks.page_cap or PAGE
        print(f"{profile}: {ran.lists} list calls, {ran.lists * page / 2_000:.2f} x files/{page}")
        assert len(shelf.known) == 2_000
        assert ran.lists <= 6 * 2_000 / page


@pytest.mark.parametrize("paging", ["none", "bare"])
async def test_a_first_sync_without_counts(paging: str) -> None:
    """Where nothing is counted a full page may not be all, so windows are cut to leave one place free."""
    async with Emulator(2_000, seed=SEED, quirks=quirks_of("seen", {"paging": paging}), cache_bytes=0) as emulator:
        shelf = Shelf()
        ran = await crawled(emulator, shelf, _FAST)
        print(f"{paging}: {ran.lists} list calls, {ran.lists * PAGE / 2_000:.2f} x files/{PAGE}")
        assert len(shelf.known) == 2_000
        assert ran.lists <= 1.8 * 2_000 / PAGE


async def test_nothing_changed() -> None:
    """A second sync with nothing changed makes a handful of list calls and no detail call."""
    async with Emulator(400, seed=SEED) as emulator:
        shelf = Shelf()
        first = await crawled(emulator, shelf)
        assert first.details == 400
        second = await crawled(emulator, shelf)
    assert second.details == 0
    assert second.lists <= 4
    assert not second.tally.expanded


async def test_ten_changed() -> None:
    """With ten changed files a sync makes ten detail calls, and the next one none."""
    async with Emulator(400, seed=SEED) as emulator:
        shelf = Shelf()
        await crawled(emulator, shelf)
        emulator.world.update(emulator.world.some(10))
        second = await crawled(emulator, shelf)
        third = await crawled(emulator, shelf)
        assert second.details == 10
        assert third.details == 0
        assert differences(emulator, shelf) == []


async def test_a_change_within_the_stamp_second() -> None:
    """A second change in the very second of the first is seen, though the stamp is the same."""
    async with Emulator(60, seed=SEED) as emulator:
        shelf = Shelf()
        emulator.world.clock.set(emulator.world.clock.now())
        key = emulator.world.keys()[7]
        emulator.world.edit(key, "add-upload")
        await crawled(emulator, shelf)
        emulator.world.edit(key, "add-form")
        second = await crawled(emulator, shelf)
        assert second.details == 1
        assert differences(emulator, shelf) == []


@pytest.mark.parametrize("includes", [(), ("fields",)])
async def test_lists_that_tell_little(includes: tuple[Literal["fields"], ...]) -> None:
    """Where the list does not show all, a file that was fetched close to its stamp is fetched once more."""
    terms = replace(WITH_DETAILS, includes=includes)
    async with Emulator(60, seed=SEED) as emulator:
        shelf = Shelf()
        key = emulator.world.keys()[7]
        emulator.world.edit(key, "add-upload")
        await crawled(emulator, shelf, terms)
        emulator.world.edit(key, "add-upload", at=emulator.world.records[key].updated)
        second = await crawled(emulator, shelf, terms)
        assert second.details == 1
        emulator.world.clock.advance(60)
        assert (await crawled(emulator, shelf, terms)).details == 1
        assert (await crawled(emulator, shelf, terms)).details == 0


async def test_always() -> None:
    """With expand = "always" every listed file is fetched in every run, and once a run."""
    terms = replace(WITH_DETAILS, expand="always")
    async with Emulator(120, seed=SEED) as emulator:
        shelf = Shelf()
        emulator.world.touch(emulator.world.some(20))
        assert (await crawled(emulator, shelf, terms)).details == 120
        assert (await crawled(emulator, shelf, terms)).details == 20
