"""What the list has, the lake has: files that no window shows, details behind their list items, repeated files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.cli.summaries import format_verification
from pipeline.emulator import Emulator, WorldPlan, make_quirks
from pipeline.sync.sync import TimeRange
from pipeline.sync.verify import VerifyMode
from tests.sync.sync_harness import SEED, asked, check_equal, count_files, synced, tampered, verified

if TYPE_CHECKING:
    from pathlib import Path

FILES: Final = 320
_QUARTER_HOUR: Final = 900.0
HIDING: Final = ("lose_times", "lose_index")
PAGING: Final[tuple[dict[str, Any], ...]] = ({}, {"paging": "pages"}, {"paging": "none"}, {"paging": "bare"})


def make_emulator(files: int = FILES, **quirks: Any) -> Emulator:
    """Return an emulator whose clock stands still, before this machine's."""
    return Emulator(
        plan=WorldPlan(files=files, seed=SEED, now="2026-02-01T12:00:00Z"), quirks=make_quirks("seen", quirks)
    )


@pytest.mark.parametrize("paging", PAGING, ids=str)
@pytest.mark.parametrize("hide", HIDING)
async def test_files_that_no_window_shows_are_fetched(lake: Path, hide: str, paging: dict[str, Any]) -> None:
    """A first sync has files without an update time, and those that the index misses, however lists are counted."""
    async with make_emulator(**paging) as emulator:
        getattr(emulator.world, hide)(emulator.world.keys()[4:7])
        await synced(emulator, lake)
        check_equal(lake, emulator)
        assert count_files(lake) == FILES
        assert (await verified(emulator, lake)).consistent


@pytest.mark.parametrize("hide", HIDING)
async def test_a_later_sync_sees_what_no_window_shows(lake: Path, hide: str) -> None:
    """Files that appear or change after the first sync are in the lake after the next, whatever was deleted."""
    async with make_emulator() as emulator:
        world = emulator.world
        await synced(emulator, lake)
        getattr(world, hide)(new := world.create(2))
        world.delete(world.keys()[:2])  # now both have as many files as before
        world.clock.advance(_QUARTER_HOUR)
        await synced(emulator, lake)
        assert set(new) <= {key for (key,) in asked(lake, "SELECT file_id FROM file_version")}
        world.update(new)
        world.clock.advance(_QUARTER_HOUR)
        await synced(emulator, lake)
        assert (await verified(emulator, lake)).consistent
        check_equal(lake, emulator)


async def test_a_list_without_times_hides_nothing(lake: Path) -> None:
    """Where no list shows update times, a file that is fetched again by its reference is none that windows miss."""
    async with make_emulator(120, updated_in_list="absent") as emulator:
        emulator.set_faults(poison=tuple(emulator.world.keys()[:1]))
        assert (await synced(emulator, lake, max_attempts=1)).rejects == 1
        emulator.set_faults(poison=())
        emulator.world.lose_index(emulator.world.create(1))
        emulator.world.clock.advance(_QUARTER_HOUR)
        await synced(emulator, lake)
        check_equal(lake, emulator)


async def test_a_quiet_sync_pays_little_for_files_without_times(lake: Path) -> None:
    """Files without update times cost a list call and a detail call each; the whole list is not read again."""
    async with make_emulator(FILES) as emulator:
        emulator.world.lose_times(emulator.world.keys()[4:7])
        await synced(emulator, lake)
        emulator.world.clock.advance(_QUARTER_HOUR)
        quiet = await synced(emulator, lake)
        assert (quiet.requests["list"], quiet.requests["detail"]) == (6 + 3, 3)


@pytest.mark.parametrize("hide", HIDING)
async def test_repaired_is_what_is_stored(lake: Path, hide: str) -> None:
    """A verify fetches what a list shows and no window gives; what it could not store it does not call repaired."""
    async with make_emulator() as emulator:
        await synced(emulator, lake)
        world = emulator.world
        getattr(world, hide)(new := world.create(3))
        world.touch(new, at=world.clock.now() - 86_400_000_000)
        emulator.set_faults(poison=tuple(new[:1]))
        found = await verified(emulator, lake, max_attempts=2)
        assert (found.missing, found.consistent, found.unrepaired) == (3, False, 1)
        assert "(repaired)" not in format_verification(found)
        assert f"1 of 3 not repaired: {new[0]}" in format_verification(found)
        emulator.set_faults(poison=())
        world.lose_index(world.create(1))
        world.clock.advance(_QUARTER_HOUR)
        dry = await verified(emulator, lake, VerifyMode(check_only=True))
        assert not dry.consistent
        found = await verified(emulator, lake)
        assert found.consistent
        check_equal(lake, emulator)


async def test_a_check_compares_what_only_the_list_has(lake: Path) -> None:
    """Of a file without an update time a check compares list item and detail, not the detail alone."""
    async with make_emulator(20) as emulator:
        world = emulator.world
        world.lose_times([key := world.keys()[2]])
        await synced(emulator, lake)
        assert (await verified(emulator, lake, VerifyMode(check_only=True))).consistent
        world.edit(key, "add-form")
        dry = await verified(emulator, lake, VerifyMode(check_only=True))
        assert (dry.consistent, dry.ids["details_differing"]) == (False, [key])
        assert (await verified(emulator, lake)).consistent
        check_equal(lake, emulator)


@pytest.mark.parametrize("seconds", [2_000.0, 200_000.0])
async def test_a_detail_behind_its_list_item_is_due(lake: Path, seconds: float) -> None:
    """A detail from a cache is named as a reject, fetched by each run, and no verify calls the lake consistent."""
    async with make_emulator(40, detail_cache_seconds=seconds) as emulator:
        world = emulator.world
        world.clock.advance(86_400)
        await synced(emulator, lake)
        world.clock.advance(60)
        world.edit(key := world.keys()[3], "add-upload")
        for _ in range(2):
            world.clock.advance(_QUARTER_HOUR)
            assert (await synced(emulator, lake)).rejects == 1
            assert [key] == [row for (row,) in asked(lake, "SELECT file_id FROM reject")]
        assert not (await verified(emulator, lake)).consistent
        world.clock.advance(seconds)
        assert (await synced(emulator, lake)).rejects == 0
        check_equal(lake, emulator)
        assert (await verified(emulator, lake)).consistent


@pytest.mark.parametrize("repeats", ["same", "older-first", "older-last"])
@pytest.mark.parametrize("includes", [(), None])
async def test_the_newest_of_repeated_files_is_stored(
    lake: Path, repeats: str, includes: tuple[Any, ...] | None
) -> None:
    """A file that a page shows twice is stored once, in its newest version, in every run."""
    async with make_emulator(120, repeats=repeats) as emulator:
        settings: dict[str, Any] = {} if includes is None else {"includes": includes}
        world = emulator.world
        world.update(world.keys()[:60])
        world.clock.advance(_QUARTER_HOUR)
        for chosen in (TimeRange(), TimeRange(), TimeRange(full=True)):
            await synced(emulator, lake, chosen, **settings)
            stored = asked(lake, "SELECT file_id, updated_at FROM file_version ORDER BY 1")
            assert stored == sorted((key, record.updated) for key, record in world.records.items())
            world.update(world.keys()[60:90])
            world.clock.advance(_QUARTER_HOUR)
        await synced(emulator, lake, **settings)
        assert (await verified(emulator, lake, **settings)).consistent


async def test_a_file_that_two_pages_repeat_is_proven(lake: Path) -> None:
    """Counts that have repeated files twice make nothing unproven, also where a page ends between both."""
    async with make_emulator(120, repeats="same", page_cap=49) as emulator:
        emulator.world.lose_index(emulator.world.keys()[:1])
        for _ in range(4):
            assert (await synced(emulator, lake)).unproven == 0
            emulator.world.create(1)
            emulator.world.clock.advance(_QUARTER_HOUR)
        assert (await verified(emulator, lake)).consistent


async def test_an_unstable_file_without_a_reference_is_found_by_its_second(lake: Path) -> None:
    """A version that may be out of date is fetched again by the next run, however old it is by then."""
    async with make_emulator(20) as emulator:
        world = emulator.world
        world.records[key := world.keys()[2]].scan_code = ""
        await synced(emulator, lake)
        with tampered(lake) as ledger:
            ledger.execute("UPDATE file_version SET is_stable = 0 WHERE file_id = ?", (key,))
        world.edit(key, "add-form", at=world.records[key].updated)
        world.clock.advance(8 * _QUARTER_HOUR)
        assert (await synced(emulator, lake)).details_fetched == 1
        assert asked(lake, "SELECT file_id FROM file_version WHERE NOT is_stable OR updated_at IS NULL") == []
        check_equal(lake, emulator)
