"""`scanlake plan`: what it says is what then happens, within a fifth."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import Emulator
from pipeline.emulator.options import Quirks
from pipeline.lake.lake import Lake
from pipeline.lake.layout import LakeLayout
from pipeline.lake.models import RunRecord
from pipeline.lake.reader import open_ledger_readonly
from pipeline.monitoring.after_run import folder_bytes
from pipeline.settings import Settings
from pipeline.sync import plan
from pipeline.sync.plan import SyncPlan, plan_sync
from tests.commands.cli_process import called, variables
from tests.lake.lake_builder import commit
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.sync.sync import SyncSummary

SEED = 5
FIFTH = 0.2


def size(lake: Path) -> int:
    """Bytes in the lake's folder; the newest snapshot is another name of the catalog."""
    files = {path.stat().st_ino: path.stat().st_size for path in lake.rglob("*") if path.is_file()}
    assert folder_bytes(lake) == sum(files.values())
    return sum(files.values())


def fetched_rows(lake: Path, run_id: str) -> int:
    """Rows that a run brought, in all tables."""
    with opened(lake) as db:
        listed = db.execute(
            "SELECT table_name FROM meta.data_dictionary WHERE column_name = '_run_id' AND NOT is_view"
        ).fetchall()
        tables = [name for (name,) in listed]
        counts = (f"(SELECT count(*) FROM {name} WHERE _run_id = '{run_id}')" for name in tables)
        found = db.execute(f"SELECT {' + '.join(counts)}").fetchone()
    assert found is not None
    return int(found[0])


def judge(told: SyncPlan, happened: SyncSummary, lake: Path, before: int) -> None:
    """Hold a plan against the run that followed."""
    assert told.files_to_fetch == pytest.approx(happened.details_fetched, rel=FIFTH)
    assert told.list_calls == pytest.approx(happened.requests["list"], rel=FIFTH, abs=3)
    assert told.detail_calls == pytest.approx(happened.requests["detail"], rel=FIFTH)
    assert told.rows == pytest.approx(fetched_rows(lake, happened.run_id), rel=FIFTH)
    assert told.disk_bytes == pytest.approx(size(lake) - before, rel=2 * FIFTH)


async def test_the_first_and_the_next_sync_cost_what_was_said(tmp_path: Path) -> None:
    """Files, calls and rows are within 20 % of what a first sync and an incremental one then take, disk within 40 %."""
    lake = tmp_path / "lake"
    async with Emulator(450, seed=SEED) as emulator:
        settings = Settings(base_url=emulator.base_url, lake=lake)
        told = await plan_sync(settings, emulator.token)
        assert not lake.exists(), "a plan changes nothing"
        assert (told.kind, told.exact, told.files_in_service) == ("first", True, 450)
        assert told.calls_made <= 60
        assert (told.basis, told.seconds is None) == ("a sample of 50 files", False)
        judge(told, await synced(emulator, lake), lake, 0)
        emulator.world.update(emulator.world.pick_random(70))
        emulator.world.create(20)
        emulator.world.clock.advance(300)  # else the window that a sync reads again at its end has all of them
        before, names = size(lake), sorted(lake.rglob("*"))
        told = await plan_sync(settings, emulator.token)
        assert sorted(lake.rglob("*")) == names, "a plan changes nothing"
        assert told.kind == "incremental"
        assert told.basis == "the 450 versions in the lake"
        assert told.seconds is not None
        judge(told, await synced(emulator, lake), lake, before)


async def test_nothing_new_costs_next_to_nothing(tmp_path: Path) -> None:
    """Where the service has nothing new the plan says three list calls, and no file."""
    async with Emulator(120, seed=SEED) as emulator:
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake", lookback_seconds=0)
        await synced(emulator, settings.lake, lookback_seconds=0)
        told = await plan_sync(settings, emulator.token)
        happened = await synced(emulator, settings.lake, lookback_seconds=0)
    assert (told.files_to_fetch, told.detail_calls) == (0, 0)
    assert told.list_calls == happened.requests["list"] == 3


async def test_a_full_page_is_one_list_call(tmp_path: Path) -> None:
    """Files that just fill a page are listed by one call after the first contact."""
    async with Emulator(50, seed=SEED) as emulator:
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake", fetch_details="never")
        told = await plan_sync(settings, emulator.token)
        happened = await synced(emulator, settings.lake, fetch_details="never")
    assert told.list_calls == happened.requests["list"] == 2


async def test_a_long_list_is_looked_at_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a list of more pages than are read for a plan only some are, and the calls are right all the same."""
    monkeypatch.setattr(plan, "_MAX_PAGES", 3)
    async with Emulator(1_100, seed=SEED) as emulator:
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake", fetch_details="never", includes=())
        told = await plan_sync(settings, emulator.token)
        happened = await synced(emulator, settings.lake, fetch_details="never", includes=())
    assert not told.exact
    assert told.files_to_fetch == 1_100
    assert told.calls_made <= 5
    assert told.list_calls == pytest.approx(happened.requests["list"], rel=FIFTH, abs=3)
    assert told.detail_calls == happened.requests["detail"] == 0


async def test_an_uncounted_list_is_read_to_its_end(tmp_path: Path) -> None:
    """A service that counts nothing is listed; the plan's files are then those that come."""
    async with Emulator(320, seed=SEED, quirks=Quirks(paging="none")) as emulator:
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake")
        told = await plan_sync(settings, emulator.token)
        happened = await synced(emulator, settings.lake)
    assert told.files_in_service is None
    assert told.files_to_fetch == happened.details_fetched == 320
    assert told.list_calls == pytest.approx(happened.requests["list"], rel=FIFTH, abs=3)


async def test_it_is_told_to_people_and_programs(tmp_path: Path) -> None:
    """The command says in words, and with --json in numbers, what it found; without a rate it does not guess."""
    async with Emulator(30, seed=SEED) as emulator:
        words = await called(tmp_path, "plan", **variables(emulator))
        numbers = await called(tmp_path, "plan", "--json", **variables(emulator))
    assert words.code == 0, words.err
    assert words.out.startswith("A first sync would fetch 30 files of 30 in the service:\n  calls    2 list and 30")
    assert "time     unknown\n" in words.out
    assert (numbers.json["list_calls"], numbers.json["detail_calls"], numbers.json["seconds"]) == (2, 30, None)


async def test_a_sample_heeds_the_rate_limit(tmp_path: Path) -> None:
    """The time is estimated by the pace that the service allows."""
    async with Emulator(450, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=30.0, rate_limit=10.0)
        settings = Settings(base_url=emulator.base_url, lake=tmp_path / "lake")
        plan = await plan_sync(settings, emulator.token)
    assert plan.seconds is not None
    assert plan.seconds > 450 / 20


def test_the_run_with_the_most_calls_shows_the_rate(tmp_path: Path) -> None:
    """Of several runs the largest counts: small ones spend their time on other things than calls."""
    with Lake(tmp_path / "lake", doing="test") as held:
        commit(held, dict.fromkeys(range(60), 0))
        for number, (calls, seconds) in enumerate([(4, 8.0), (900, 10.0), (30, 60.0)]):
            run = RunRecord(f"run {number}", "sync", "1", number, requests_list=calls, requests_detail=calls)
            held.ledger.begin_run(replace(run, retries=calls, seconds=seconds, state="done"))
    with open_ledger_readonly(LakeLayout(tmp_path / "lake")) as ledger:
        cost = plan._read_cost(ledger)
    assert cost.calls_per_second == 270
