"""A second that holds more files than a response: paged until it is proven, or said not to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from pipeline.emulator import quirks_of
from tests.crawl.crawling import LIST_ONLY, RestlessEmulator, Shelf, crawled, differences

SEED: Final = 13
STAMP: Final = 1_700_000_000 * 1_000_000


def crowd(emulator: RestlessEmulator, count: int, *, spread: int = 1) -> list[int]:
    """Give many files stamps within one second, or in `spread` seconds that follow each other."""
    keys = emulator.world.some(count)
    for place, key in enumerate(keys):
        emulator.world.touch([key], at=STAMP + place % spread * 1_000_000)
    return keys


@pytest.mark.parametrize("count", [51, 120, 251, 600])
@pytest.mark.parametrize("order", ["updated-desc", "shuffled"])
async def test_one_second(count: int, order: str) -> None:
    """All files of an overflowing second arrive, and the second is proven."""
    async with RestlessEmulator(700, seed=SEED, quirks=quirks_of("seen", {"order": order})) as emulator:
        crowd(emulator, count)
        shelf = Shelf()
        ran = await crawled(emulator, shelf, LIST_ONLY)
        # A shuffled list that does not fit in a response shows files twice and others never: it proves nothing.
        hopeless = order == "shuffled" and count > 250
        assert len(differences(emulator, shelf)) <= (5 if hopeless else 0)
        assert bool(ran.unproven) is hopeless
        assert ran.lists < 200


@pytest.mark.parametrize("settings", [{"paging": "bare"}, {"updated_in_list": "absent"}, {"page_cap": 20}])
async def test_one_second_of_few_words(settings: dict[str, object]) -> None:
    """The same where the service counts nothing, shows no stamps, or gives small pages."""
    async with RestlessEmulator(400, seed=SEED, quirks=quirks_of("seen", settings)) as emulator:
        crowd(emulator, 130)
        shelf = Shelf()
        ran = await crawled(emulator, shelf, LIST_ONLY)
        assert differences(emulator, shelf) == []
        assert not ran.unproven


async def test_seconds_in_a_row() -> None:
    """Crowded seconds that follow each other, whose widened bounds reach into each other, are each read to the end."""
    async with RestlessEmulator(500, seed=SEED) as emulator:
        crowd(emulator, 400, spread=5)
        shelf = Shelf()
        ran = await crawled(emulator, shelf, LIST_ONLY)
        assert differences(emulator, shelf) == []
        assert not ran.unproven


async def test_a_second_that_keeps_changing() -> None:
    """A crowded second in which files come and go at every look is not proven, and the horizon stays before it."""
    async with RestlessEmulator(500, seed=SEED) as emulator:
        keys = crowd(emulator, 320)
        outside = [key for key in emulator.world.keys() if key not in set(keys)]  # noqa: SIM118
        shelf = Shelf()
        at = 0

        def swap() -> None:
            nonlocal at
            emulator.world.touch([keys[at % len(keys)]], at=STAMP + 500 * 1_000_000)
            emulator.world.touch([outside[at % len(outside)]], at=STAMP)
            keys.append(outside[at % len(outside)])
            at += 1

        emulator.change = swap
        ran = await crawled(emulator, shelf, LIST_ONLY)
        emulator.calm()
        assert ran.unproven
        assert shelf.horizon is not None
        assert shelf.horizon <= STAMP // 1_000_000
        assert ran.lists < 400
        again = await crawled(emulator, shelf, LIST_ONLY)
        assert not again.unproven
        assert shelf.horizon > STAMP // 1_000_000
        assert differences(emulator, shelf) == []


async def test_a_long_window_with_a_crowd_at_its_end() -> None:
    """When files leave a long window that ends in a crowd while it is paged, only the crowd is paged again."""
    terms = replace(LIST_ONLY, commit_files=1_000)
    async with RestlessEmulator(300, seed=SEED) as emulator:
        keys = crowd(emulator, 120)
        others = iter([key for key in emulator.world.keys() if key not in set(keys)])  # noqa: SIM118
        emulator.change = lambda: emulator.world.touch([key for key in [next(others, None)] if key is not None])
        shelf = Shelf()
        ran = await crawled(emulator, shelf, terms)
        emulator.calm()
        assert not [
            window for window in ran.unproven if window.end is not None and window.end <= STAMP // 1_000_000 + 9
        ]
        await crawled(emulator, shelf, terms)
        assert differences(emulator, shelf) == []
