"""A second with more files than fit in a response: read by pages until consistent, or marked inconsistent."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from pipeline.client.client import Client
from pipeline.crawl.listing import WindowReader
from pipeline.crawl.windows import Window
from pipeline.emulator import make_quirks
from schemas.timestamps import SECOND, now_us
from tests.crawl.crawl_harness import LIST_ONLY, ChangingEmulator, FakeLake, crawl_exactly, differences, run_crawl

SEED: Final = 13
STAMP: Final = 1_700_000_000 * 1_000_000


def fill_second(emulator: ChangingEmulator, count: int, *, spread: int = 1) -> list[int]:
    """Give many files timestamps within one second, or in `spread` consecutive seconds."""
    keys = emulator.world.pick_random(count)
    for index, key in enumerate(keys):
        emulator.world.touch([key], at=STAMP + index % spread * 1_000_000)
    return keys


@pytest.mark.parametrize(
    ("count", "spread", "settings"),
    [
        *((count, 1, {"order": "shuffled"}) for count in (51, 251)),
        *((count, 1, {"order": "updated-desc"}) for count in (120, 300)),
        *((130, 1, settings) for settings in ({"paging": "bare"}, {"updated_in_list": "absent"}, {"page_cap": 20})),
        (400, 5, {}),  # the widened bounds of seconds in a row overlap
    ],
    ids=str,
)
async def test_one_second(lake: FakeLake, count: int, spread: int, settings: dict[str, object]) -> None:
    """All files of an overflowing second are stored, also without hints or timestamps; its list is consistent."""
    async with ChangingEmulator(count + 60, seed=SEED, quirks=make_quirks("seen", settings)) as emulator:
        fill_second(emulator, count, spread=spread)
        result = await run_crawl(emulator, lake, LIST_ONLY)
        # A shuffled list that does not fit in a response contains files twice and others never: it is inconsistent.
        is_inconsistent = "order" in settings and count == 251
        assert len(differences(emulator, lake)) <= (5 if is_inconsistent else 0)
        assert bool(result.inconsistent) is is_inconsistent
        assert result.lists < 200


async def test_a_second_that_keeps_changing(lake: FakeLake) -> None:
    """An overflowing second that changes at every request is inconsistent, and the watermark stays before it."""
    async with ChangingEmulator(500, seed=SEED) as emulator:
        keys = fill_second(emulator, 320)
        outside = [key for key in emulator.world.keys() if key not in set(keys)]  # noqa: SIM118
        at = 0

        def swap() -> None:
            nonlocal at
            emulator.world.touch([keys[at % len(keys)]], at=STAMP + 500 * 1_000_000)
            emulator.world.touch([outside[at % len(outside)]], at=STAMP)
            keys.append(outside[at % len(outside)])
            at += 1

        emulator.change = swap
        result = await run_crawl(emulator, lake, LIST_ONLY)
        emulator.stop_changing()
        assert result.inconsistent
        assert lake.watermark is not None
        assert lake.watermark <= STAMP // 1_000_000
        assert result.lists < 400
        again = await run_crawl(emulator, lake, LIST_ONLY)
        assert not again.inconsistent
        assert lake.watermark > STAMP // 1_000_000
        assert differences(emulator, lake) == []


async def test_a_long_window_with_an_overflow_at_its_end(lake: FakeLake) -> None:
    """If files leave a long window with an overflow at its end, only the overflow is read by pages again."""
    options = replace(LIST_ONLY, commit_every_files=1_000)
    async with ChangingEmulator(300, seed=SEED) as emulator:
        keys = fill_second(emulator, 120)
        others = iter([key for key in emulator.world.keys() if key not in set(keys)])  # noqa: SIM118
        emulator.change = lambda: emulator.world.touch([key for key in [next(others, None)] if key is not None])
        result = await run_crawl(emulator, lake, options)
        emulator.stop_changing()
        assert not [
            window for window in result.inconsistent if window.end is not None and window.end <= STAMP // 1_000_000 + 9
        ]
        await crawl_exactly(emulator, lake, options)


@pytest.mark.parametrize(("paging", "calls"), [("top", 4), ("bare", 6)])
async def test_pages_are_read_to_the_last_and_no_further(paging: str, calls: int) -> None:
    """A second of 120 files is three pages and one without includes; without hints each list ends with an empty one."""
    options = replace(LIST_ONLY, includes=("locations",))
    async with ChangingEmulator(150, seed=SEED, quirks=make_quirks("seen", {"paging": paging})) as emulator:
        keys = fill_second(emulator, 120)
        second = Window(STAMP // SECOND, STAMP // SECOND + 1, overflows=True)
        async with Client(emulator.base_url, emulator.token) as client:
            reader = WindowReader(client, options, lambda: now_us() // SECOND)
            result = await reader.read(second)
            assert sorted(item.id or 0 for item in result.items) == sorted(keys)
            assert emulator.counts["list"] == calls
            window = Window(STAMP // SECOND - 9, STAMP // SECOND + 2)
            assert (await reader.read(window)).sub_windows == (replace(window, overflows=True),), "halves help nothing"
