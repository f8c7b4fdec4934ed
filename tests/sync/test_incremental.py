"""From the second run on only what changed is fetched, and the lake stays equal to the service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import duckdb
import pytest

from pipeline.client import clock
from pipeline.emulator import Emulator, make_quirks
from pipeline.errors import AuthenticationError, LakeLockedError, ServiceUnavailableError, SettingsError
from pipeline.lake.lake import Lake
from pipeline.sync import run
from pipeline.sync.sync import TimeRange
from schemas.timestamps import SECOND
from tests.oracle import differences
from tests.sync.sync_harness import SEED, opened, synced

if TYPE_CHECKING:
    from pathlib import Path

FILES = 300


async def test_nothing_changed(tmp_path: Path) -> None:
    """A second sync with nothing changed makes a handful of list calls and no detail call."""
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        summary = await synced(emulator, tmp_path / "lake")
    assert summary.requests["detail"] == 0
    assert summary.requests["list"] <= 3
    assert summary.details_fetched == 0


async def test_ten_changed_files(tmp_path: Path) -> None:
    """With ten changed files the second sync makes ten detail calls, and the lake equals the service again."""
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.world.update(emulator.world.pick_random(10))
        summary = await synced(emulator, tmp_path / "lake")
        truth = list(emulator.truth())
    assert summary.requests["detail"] == 10
    with opened(tmp_path / "lake") as db:
        assert differences(db, truth) == []


async def test_shrinking_children(tmp_path: Path) -> None:
    """Uploads, fields and forms that a file no longer has leave every table, with no ghosts in any."""
    async with Emulator(120, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        for key in emulator.world.pick_random(40):
            for kind in ("remove-upload", "remove-upload", "add-field", "remove-form"):
                emulator.world.edit(key, kind)
        await synced(emulator, tmp_path / "lake")
        truth = list(emulator.truth())
    with opened(tmp_path / "lake") as db:
        assert differences(db, truth) == []


async def test_many_rounds_of_every_change(tmp_path: Path) -> None:
    """After each of many rounds of creates, updates, closings and reopenings the lake equals the service."""
    async with Emulator(100, seed=SEED, quirks=make_quirks("seen", {"precision": "micros"})) as emulator:
        world = emulator.world
        for _ in range(6):
            world.create(5)
            world.update(world.pick_random(8))
            world.close(world.pick_random(3))
            world.reopen(world.pick_random(2))
            await synced(emulator, tmp_path / "lake")
            with opened(tmp_path / "lake") as db:
                assert differences(db, emulator.truth()) == []


async def test_a_file_that_left_the_list_stays_until_verified(tmp_path: Path) -> None:
    """Absence from a window removes nothing: an incremental list never shows a deletion."""
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.world.delete(emulator.world.pick_random(5))
        await synced(emulator, tmp_path / "lake")
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT count(*) FROM files").fetchone() == (60,)


async def test_since_and_until_read_a_part(tmp_path: Path) -> None:
    """With --since and --until only that span of update time is read, and the watermark does not jump over a gap."""
    async with Emulator(FILES, seed=SEED) as emulator:
        stamps = sorted(true["updated"] // SECOND for true in emulator.truth())
        low, high = stamps[100], stamps[200]
        summary = await synced(emulator, tmp_path / "lake", TimeRange(since=low, until=high))
        assert summary.watermark is None
        with opened(tmp_path / "lake") as db:
            held = db.execute("SELECT count(*) FROM files").fetchone()
            assert held is not None
            assert 100 <= held[0] <= 110
        whole = await synced(emulator, tmp_path / "lake")
        truth = list(emulator.truth())
    assert whole.watermark is not None
    assert whole.details_fetched <= FILES - 100
    with opened(tmp_path / "lake") as db:
        assert differences(db, truth) == []


async def test_full_lists_everything_and_fetches_nothing_twice(tmp_path: Path) -> None:
    """--full lists every file again, and fetches only those that the lake does not hold as they are."""
    async with Emulator(FILES, seed=SEED) as emulator:
        first = await synced(emulator, tmp_path / "lake")
        summary = await synced(emulator, tmp_path / "lake", TimeRange(full=True))
    assert first.files_listed > FILES, "split windows list files twice, which is no unchanged file"
    assert (first.files_stored, first.files_skipped) == (FILES, 0)
    assert (summary.files_stored, summary.files_skipped) == (0, FILES)
    assert summary.requests["detail"] == 0


@pytest.mark.parametrize(("fetch_details", "details"), [("never", 0), ("always", 80)])
async def test_fetch_details(tmp_path: Path, fetch_details: str, details: int) -> None:
    """With fetch_details = "never" no detail call is made, with "always" one for every listed file."""
    async with Emulator(80, seed=SEED) as emulator:
        summary = await synced(emulator, tmp_path / "lake", fetch_details=fetch_details)
        assert summary.requests["detail"] == details
        again = await synced(emulator, tmp_path / "lake", TimeRange(full=True), fetch_details=fetch_details)
    assert again.requests["detail"] == details
    with opened(tmp_path / "lake") as db:
        shown = db.execute("SELECT count(*), count(*) FILTER (_has_detail) FROM files").fetchone()
    assert shown == (80, details)


async def test_fewer_includes_change_the_shape(tmp_path: Path) -> None:
    """A file fetched with fewer includes is not what a run with more of them holds, so it is fetched again."""
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake", includes=())
        summary = await synced(emulator, tmp_path / "lake", TimeRange(full=True))
        truth = list(emulator.truth())
    assert summary.details_fetched == 60
    with opened(tmp_path / "lake") as db:
        assert differences(db, truth) == []


async def test_wrong_token_stops_at_once(tmp_path: Path) -> None:
    """A refused token ends the run after one request, and the lake keeps what it had."""
    async with Emulator(40, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.reset()
        emulator.set_faults(revoked=True)
        with pytest.raises(AuthenticationError):
            await synced(emulator, tmp_path / "lake")
        assert emulator.requests == 1
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT count(*) FROM files").fetchone() == (40,)


async def test_token_revoked_in_the_middle(tmp_path: Path) -> None:
    """A token revoked during a run stops it after a handful of requests; what was whole is kept."""
    async with Emulator(FILES, seed=SEED) as emulator:
        emulator.script("401", times=10_000, path="/api/v2/files/", skip=100)
        with pytest.raises(AuthenticationError):
            await synced(emulator, tmp_path / "lake", max_concurrency=8)
        assert emulator.statuses[401] <= 8
        emulator.faults.clear()
        await synced(emulator, tmp_path / "lake")
        truth = list(emulator.truth())
    with opened(tmp_path / "lake") as db:
        assert differences(db, truth) == []


async def test_unreachable_service(tmp_path: Path) -> None:
    """A service that cannot be reached fails the run with the lake as it was."""
    async with Emulator(40, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        address = emulator.base_url
    emulator.port = int(address.rpartition(":")[2])
    with pytest.raises(ServiceUnavailableError):
        await synced(emulator, tmp_path / "lake", max_attempts=2)
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT count(*) FROM files").fetchone() == (40,)


async def test_another_service_is_refused(tmp_path: Path) -> None:
    """A lake that holds one service's files refuses another's, until told that the service has moved."""
    async with Emulator(20, seed=SEED) as first:
        await synced(first, tmp_path / "lake")
    async with Emulator(20, seed=SEED + 1) as second:
        with pytest.raises(SettingsError, match="contains the files of"):
            await synced(second, tmp_path / "lake")
        assert second.requests == 0


async def test_another_lang_is_refused(tmp_path: Path) -> None:
    """A lake keeps the language of its texts: another one would mix them."""
    async with Emulator(20, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake", lang="de")
        with pytest.raises(SettingsError, match="lang"):
            await synced(emulator, tmp_path / "lake", lang="en")


async def test_two_runs_at_once(tmp_path: Path) -> None:
    """While one run holds the lake another is refused at once, and names the holder."""
    async with Emulator(20, seed=SEED) as emulator:
        with Lake(tmp_path / "lake", doing="sync"), pytest.raises(LakeLockedError, match=r"sync, pid \d+ on"):
            await synced(emulator, tmp_path / "lake")


async def test_readers_keep_their_snapshot(tmp_path: Path) -> None:
    """A reader that holds the catalog open sees one whole snapshot across later publishes, a new one the latest."""
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
        with duckdb.connect(str(tmp_path / "lake" / "snapshots" / "000001.duckdb"), read_only=True) as old:
            count = "SELECT (SELECT count(*) FROM files), (SELECT count(*) FROM uploads)"
            before = old.execute(count).fetchone()
            emulator.world.create(10)
            await synced(emulator, tmp_path / "lake")
            assert old.execute(count).fetchone() == before
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT count(*) FROM files").fetchone() == (70,)


async def test_definitions_once(tmp_path: Path) -> None:
    """A workflow's definition is kept once, however many runs embed it."""
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, tmp_path / "lake")
    with opened(tmp_path / "lake") as db:
        repeated = "SELECT id FROM workflows GROUP BY id HAVING count(*) > 1"
        assert db.execute(repeated).fetchall() == []
        runs = db.execute("SELECT count(*) FROM workflow_runs").fetchone()
        assert runs is not None
        assert runs[0] > 100


async def test_a_fast_local_clock_promises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Date header the watermark stays within the stamps seen, however fast this machine's clock is."""
    tomorrow = time.time_ns() // 1_000 + 86_400 * SECOND
    monkeypatch.setattr(run, "now_us", lambda: tomorrow)
    monkeypatch.setattr(clock, "now_us", lambda: tomorrow)
    async with Emulator(60, seed=SEED, quirks=make_quirks("seen", {"date_header": "off"})) as emulator:
        await synced(emulator, tmp_path / "lake")
        emulator.world.update(emulator.world.pick_random(5))
        await synced(emulator, tmp_path / "lake")
        truth = list(emulator.truth())
    with opened(tmp_path / "lake") as db:
        assert db.execute("SELECT watermark <= (SELECT max(updated_at) FROM files) FROM meta.freshness").fetchall() == [
            (True,)
        ]
        assert differences(db, truth) == []


async def test_a_poisoned_file_heals_or_goes(tmp_path: Path) -> None:
    """A file whose detail fails is a named reject that holds nothing up; it heals later, or is found to be gone."""
    lake = tmp_path / "lake"
    async with Emulator(60, seed=SEED) as emulator:
        first, second = emulator.world.pick_random(2)
        emulator.set_faults(poison=(first, second))
        summary = await synced(emulator, lake, max_attempts=2)
        assert (summary.rejects, summary.watermark is not None) == (2, True)
        with opened(lake) as db:
            assert db.execute("SELECT count(*) FROM files WHERE NOT _has_detail").fetchall() == [(2,)]
            named = db.execute("SELECT file_id FROM meta.rejects ORDER BY 1").fetchall()
            assert [row[0] for row in named] == sorted((first, second))
        emulator.set_faults(poison=(second,))
        assert (await synced(emulator, lake, max_attempts=2)).rejects == 1
        emulator.set_faults(poison=())
        emulator.world.delete([second])
        assert (await synced(emulator, lake)).rejects == 0
        await synced(emulator, lake)
    with opened(lake) as db:
        assert db.execute("SELECT count(*) FROM meta.rejects").fetchall() == [(0,)]
        assert db.execute("SELECT _has_detail FROM files WHERE file_id = ?", [first]).fetchall() == [(True,)]
