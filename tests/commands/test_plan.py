"""`scanlake plan`: what it says is what then happens, within a fifth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import Emulator
from pipeline.emulator.options import Quirks, WorldPlan
from pipeline.settings import Settings
from pipeline.sync.plan import SyncEstimate, estimate_sync
from tests.commands.cli_process import called, variables
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.sync.sync import SyncSummary

SEED = 5
FIFTH = 0.2


def size(lake: Path) -> int:
    """Bytes in the lake's folder."""
    return sum(path.stat().st_size for path in lake.rglob("*") if path.is_file())


def fetched_rows(lake: Path, run_id: str) -> int:
    """Rows that a run brought, in all tables."""
    with opened(lake) as db:
        listed = db.execute("SELECT DISTINCT table_name FROM meta.data_dictionary WHERE NOT is_view").fetchall()
        tables = [name for (name,) in listed]
        counts = (f"(SELECT count(*) FROM {name} WHERE _run_id = '{run_id}')" for name in tables)
        found = db.execute(f"SELECT {' + '.join(counts)}").fetchone()
    assert found is not None
    return int(found[0])


def judge(told: SyncEstimate, happened: SyncSummary, lake: Path, before: int) -> None:
    """Hold a plan against the run that followed."""
    assert told.files_to_fetch == pytest.approx(happened.details_fetched, rel=FIFTH)
    assert told.list_calls == pytest.approx(happened.requests["list"], rel=FIFTH / 2)
    assert told.detail_calls == pytest.approx(happened.requests["detail"], rel=FIFTH)
    assert told.rows == pytest.approx(fetched_rows(lake, happened.run_id), rel=FIFTH)
    assert told.disk.total == pytest.approx(size(lake) - before, rel=FIFTH)


@pytest.mark.parametrize("spread", ["natural", "same-second"])
async def test_the_first_and_the_next_sync_cost_what_was_said(spread: str, tmp_path: Path) -> None:
    """Files, calls, rows and disk are within 20 % of what a first sync and an incremental one then take."""
    lake = tmp_path / "lake"
    async with Emulator(plan=WorldPlan(files=450, seed=SEED, spread=spread)) as emulator:  # type: ignore[arg-type]
        settings = Settings(base_url=emulator.base_url, lake=lake)
        told = await estimate_sync(settings, emulator.token)
        assert not lake.exists(), "a plan changes nothing"
        assert (told.kind, told.exact, told.files_in_service) == ("first", True, 450)
        assert told.calls_made <= 130
        assert "sample" in told.call_rate.basis
        judge(told, await synced(emulator, lake), lake, 0)
        emulator.world.update(emulator.world.pick_random(70))
        emulator.world.create(20)
        before, names = size(lake), sorted(lake.rglob("*"))
        told = await estimate_sync(settings, emulator.token)
        assert sorted(lake.rglob("*")) == names, "a plan changes nothing"
        assert told.kind == "incremental"
        assert told.call_rate.basis.startswith("measured in run ")
        assert told.seconds is not None
        judge(told, await synced(emulator, lake), lake, before)


async def test_nothing_new_costs_next_to_nothing(tmp_path: Path) -> None:
    """Where the service has nothing new the plan says three list calls, and no file."""
    async with Emulator(120, seed=SEED) as emulator:
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake", lookback_seconds=0)
        await synced(emulator, settings.lake, lookback_seconds=0)
        told = await estimate_sync(settings, emulator.token)
        happened = await synced(emulator, settings.lake, lookback_seconds=0)
    assert (told.files_to_fetch, told.detail_calls) == (0, 0)
    assert told.list_calls == happened.requests["list"] == 3


async def test_a_long_list_is_looked_at_in_part(tmp_path: Path) -> None:
    """Of more than 5,000 files only some pages are read, and the calls are right all the same."""
    async with Emulator(5_100, seed=SEED) as emulator:
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake", fetch_details="never", includes=())
        told = await estimate_sync(settings, emulator.token)
        happened = await synced(emulator, settings.lake, fetch_details="never", includes=())
    assert not told.exact
    assert told.files_to_fetch == 5_100
    assert told.calls_made <= 30
    assert told.list_calls == pytest.approx(happened.requests["list"], rel=FIFTH)
    assert told.detail_calls == happened.requests["detail"] == 0


async def test_an_uncounted_list_is_read_to_its_end(tmp_path: Path) -> None:
    """A service that counts nothing is listed; the plan's files are then those that come."""
    async with Emulator(320, seed=SEED, quirks=Quirks(paging="none")) as emulator:
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake")
        told = await estimate_sync(settings, emulator.token)
        happened = await synced(emulator, settings.lake)
    assert told.files_in_service is None
    assert told.files_to_fetch == happened.details_fetched == 320
    assert told.list_calls == pytest.approx(happened.requests["list"], rel=FIFTH)


async def test_it_is_told_to_people_and_programs(tmp_path: Path) -> None:
    """The command says in words, and with --json in numbers, what it found; without a pace it does not guess."""
    async with Emulator(30, seed=SEED) as emulator:
        words = await called(tmp_path, "plan", **variables(emulator))
        numbers = (await estimate_sync(Settings(base_url=emulator.base_url), emulator.token)).as_json()
    assert words.code == 0, words.err
    assert words.out.startswith("A first sync would fetch 30 files of 30 in the service:\n  calls    2 list and 30")
    assert "time     unknown: no run has measured a rate yet" in words.out
    assert numbers["calls"] == {"list": 2, "detail": 30, "total": 32}
    assert numbers["seconds"] is None


async def test_the_sample_begins_slowly(tmp_path: Path) -> None:
    """Details are asked for a few at a time, then more; a service that refuses some is asked for few again."""
    async with Emulator(450, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=30.0)
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake")
        assert (await estimate_sync(settings, emulator.token)).seconds is not None
        assert emulator.counts["detail"] == 100
        assert 4 < emulator.max_in_flight <= 40
    async with Emulator(450, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=30.0, rate_limit=10.0)
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake")
        limited = await estimate_sync(settings, emulator.token)
        assert emulator.max_in_flight <= 16
        assert limited.call_rate.basis == "the rate limit"
        assert limited.call_rate.calls_per_second == pytest.approx(10, rel=0.5)
