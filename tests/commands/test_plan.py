"""`scanlake plan`: what it says is what then happens, within a fifth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from pipeline.emulator import Emulator
from pipeline.emulator.options import Quirks
from pipeline.settings.settings import Settings
from pipeline.sync import plan
from pipeline.sync.plan import SyncPlan, plan_sync
from tests.sync.sync_harness import synced

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.sync.sync import SyncSummary

SEED = 5
FIFTH = 0.2


def folder_bytes(folder: Path) -> int:
    """The bytes of all files of a folder, each once."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({(file.st_dev, file.st_ino): file.st_size for file in files}.values())


def judge(told: SyncPlan, happened: SyncSummary, lake: Path, before: int) -> None:
    """Hold a plan against the run that followed; the newest snapshot is another name of the catalog."""
    assert told.files_to_fetch == pytest.approx(happened.details_fetched, rel=FIFTH)
    assert told.list_calls == pytest.approx(happened.requests["list"], rel=FIFTH, abs=3)
    assert told.detail_calls == pytest.approx(happened.requests["detail"], rel=FIFTH)
    assert told.disk_bytes == pytest.approx(folder_bytes(lake) - before, rel=2 * FIFTH)


async def test_the_first_and_the_next_sync_cost_what_was_said(tmp_path: Path) -> None:
    """Files and calls are within 20 % of what a first, a next and an idle sync take, disk within 40 %."""
    lake = tmp_path / "lake"
    async with Emulator(450, seed=SEED) as emulator:
        settings = Settings(base_url=emulator.base_url, lake=lake)
        told = await plan_sync(settings, emulator.token)
        assert not lake.exists(), "a plan changes nothing"
        assert (told.kind, told.exact, told.files_in_service) == ("first", True, 450)
        assert told.calls_made <= 60
        assert (told.sampled_files, told.seconds is None) == (50, False)
        judge(told, await synced(emulator, lake), lake, 0)
        emulator.world.update(emulator.world.pick_random(70))
        emulator.world.create(20)
        emulator.world.clock.advance(300)  # else the window that a sync reads again at its end has all of them
        before, names = folder_bytes(lake), sorted(lake.rglob("*"))
        told = await plan_sync(settings, emulator.token)
        assert sorted(lake.rglob("*")) == names, "a plan changes nothing"
        assert (told.kind, told.sampled_files) == ("incremental", 50)
        assert told.seconds is not None
        judge(told, await synced(emulator, lake), lake, before)
        told = await plan_sync(replace(settings, lookback_seconds=0), emulator.token)
        happened = await synced(emulator, lake, lookback_seconds=0)
    assert (told.files_to_fetch, told.detail_calls) == (0, 0)
    assert told.list_calls == happened.requests["list"] == 4


@pytest.mark.parametrize(
    ("files", "quirks", "settings"),
    [
        (0, Quirks(), {}),
        (50, Quirks(), {}),  # they just fill a page
        (1_100, Quirks(), {"includes": ()}),  # of more pages than are read for a plan
        (320, Quirks(paging="none"), {}),  # a list without counts is read to its end
    ],
    ids=["empty", "page", "long", "uncounted"],
)
async def test_lists_of_any_length_are_counted(
    files: int, quirks: Quirks, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list calls are right for no file, a full page, a list that is looked at in part, and one without counts."""
    if settings:
        monkeypatch.setattr(plan, "_MAX_PAGES", 3)
    settings = settings | {"fetch_details": "never"}
    async with Emulator(files, seed=SEED, quirks=quirks) as emulator:
        made = Settings(base_url=emulator.base_url, lake=tmp_path / "lake", **settings)
        told = await plan_sync(made, emulator.token)
        happened = await synced(emulator, made.lake, **settings)
    assert (told.exact, told.files_to_fetch, told.detail_calls) == (files != 1_100, files, 0)
    assert told.files_in_service == (None if quirks.paging == "none" else files)
    assert told.list_calls == pytest.approx(happened.requests["list"], rel=FIFTH, abs=0 if files == 50 else 3)
    assert told.calls_made <= (20 if files == 320 else 5)
    assert (told.disk_bytes is None) == (files == 0)
    assert told.seconds is None, "without a rate it does not guess"


async def test_a_file_without_a_detail_is_no_end(tmp_path: Path) -> None:
    """A file whose detail always fails is a reject of the sync, and costs a plan its detail alone."""
    async with Emulator(60, seed=SEED) as emulator:
        emulator.set_faults(poison=(emulator.world.keys()[20],))
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake")
        assert (await plan_sync(settings, emulator.token)).files_to_fetch == 60


async def test_a_sample_heeds_the_rate_limit(tmp_path: Path) -> None:
    """The time is estimated by the pace that the service allows."""
    async with Emulator(450, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=30.0, rate_limit=10.0)
        told = await plan_sync(Settings(base_url=emulator.base_url, lake=tmp_path / "lake"), emulator.token)
    assert told.seconds is not None
    assert told.seconds > 450 / 20
