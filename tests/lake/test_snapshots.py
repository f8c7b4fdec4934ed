"""The lake's past: snapshots, changes between them, going back to one and on from there."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from pipeline.cli import main
from pipeline.emulator import Emulator
from pipeline.errors import SettingsError
from pipeline.lake.lake import Lake
from pipeline.lake.models import RunRecord
from pipeline.lake.rollback import clear_pause, plan_rollback, roll_back
from pipeline.lake.snapshots import diff_snapshots
from pipeline.progress import NullProgress
from pipeline.settings import Settings
from pipeline.sync.regular_verify import is_due
from pipeline.sync.sync import TimeRange
from pipeline.sync.verify import VerifyMode, verify
from schemas.timestamps import SECOND, now_us, to_datetime
from tests import oracle
from tests.lake.lake_builder import commit
from tests.lake.operations import compact_all, told
from tests.sync.sync_harness import SEED, opened, synced

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pipeline.lake.models import SnapshotRecord

FULL = TimeRange(full=True)
AT = 1_795_000_000_000_000
SHOWN = "SELECT (SELECT list(f ORDER BY f.file_id) FROM files f), (SELECT list(u ORDER BY u) FROM uploads u)"


def rolled_back(lake: Path, number: int) -> SnapshotRecord:
    """Roll back as the command does."""
    with Lake(lake, doing="rollback") as held:
        run_id = f"r-{held.ledger.next_snapshot():06x}"
        return roll_back(held, plan_rollback(held, number), run=RunRecord(run_id, "rollback", "0", AT, state="done"))


def undo_rollback(lake: Path) -> None:
    """Allow syncs again as the command does."""
    with Lake(lake, doing="rollback") as held:
        clear_pause(held.ledger)


async def verified(emulator: Emulator, lake: Path) -> None:
    """Verify as the command does, when it is due."""
    made = Settings(base_url=emulator.base_url, lake=lake)
    with Lake(lake, doing="verify") as held:
        assert is_due(held.ledger, made)
        assert (await verify(held, made, emulator.token, VerifyMode(accept_deletions=True), NullProgress())).consistent


def differences(db: duckdb.DuckDBPyConnection, truth: Iterable[oracle.Row]) -> list[str]:
    """Where lake and service differ; definitions stay when the last file that bore one has changed."""
    definitions = ("workflows", "workflow_steps", "workflow_definition")
    return [line for line in oracle.differences(db, truth) if not line.startswith(definitions)]


def snapshot_of(lake: Path) -> int:
    """The number of the snapshot that readers see."""
    with opened(lake) as db:
        return int(db.execute("SELECT snapshot FROM meta.freshness").fetchall()[0][0])


async def test_time_travel(tmp_path: Path) -> None:
    """A kept snapshot opens as any catalog does, and shows the service as it was then, compactions or not."""
    lake = tmp_path / "lake"
    async with Emulator(50, seed=SEED) as emulator:
        await synced(emulator, lake)
        then, number = list(emulator.truth()), snapshot_of(lake)
        for _ in range(3):
            emulator.world.update(emulator.world.pick_random(20))
            emulator.world.create(2)
            await synced(emulator, lake, keep_snapshots=4)
        with Lake(lake, doing="compaction") as held:
            assert compact_all(held, Settings(lake=lake, keep_snapshots=4))
        with duckdb.connect(str(lake / "snapshots" / f"{number:06d}.duckdb"), read_only=True) as db:
            assert differences(db, then) == []
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []


async def test_rollback_and_undo(tmp_path: Path) -> None:
    """A rollback shows what was, under a new number; syncs wait until it is undone, then converge."""
    lake = tmp_path / "lake"
    async with Emulator(80, seed=SEED) as emulator:
        await synced(emulator, lake)
        then, number = list(emulator.truth()), snapshot_of(lake)
        with opened(lake) as db:
            watermark = db.execute("SELECT watermark FROM meta.freshness").fetchall()
        emulator.world.clock.advance(86_400)
        for _ in range(2):
            emulator.world.update(emulator.world.pick_random(20))
            emulator.world.create(5)
            emulator.world.delete(emulator.world.pick_random(3))
            emulator.world.clock.advance(900)
            await synced(emulator, lake)
        with Lake(lake, doing="compaction") as held:
            before = held.ledger.next_commit_seq()
            assert compact_all(held, Settings(lake=lake))
        record = rolled_back(lake, number)
        assert record.snapshot > number
        with opened(lake) as db:
            assert differences(db, then) == []
            assert db.execute("SELECT watermark FROM meta.freshness").fetchall() == watermark
        requests = emulator.requests
        with pytest.raises(SettingsError, match=f"rolled back to snapshot {number}") as refused:
            await synced(emulator, lake)
        assert "scanlake rollback --undo" in refused.value.hint
        with pytest.raises(SettingsError, match="rolled back"):
            await verified(emulator, lake)
        assert emulator.requests == requests
        undo_rollback(lake)
        await synced(emulator, lake)
        await verified(emulator, lake)
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
            assert db.execute(
                "SELECT min(first_commit_seq) FROM physical.parts WHERE first_commit_seq > ?", [record.snapshot]
            ).fetchall()
        with Lake(lake, doing="look") as held:
            assert held.ledger.next_commit_seq() > before


async def test_what_a_rollback_keeps_is_not_fetched_again(tmp_path: Path) -> None:
    """Only files whose version went back are fetched again; the others are known as well as before."""
    lake = tmp_path / "lake"
    async with Emulator(80, seed=SEED) as emulator:
        await synced(emulator, lake)
        number = snapshot_of(lake)
        emulator.world.clock.advance(86_400)
        emulator.world.update(emulator.world.pick_random(7))
        await synced(emulator, lake)
        rolled_back(lake, number)
        undo_rollback(lake)
        emulator.reset()
        await synced(emulator, lake)
        assert emulator.counts["detail"] == 7
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []


async def test_late_commits_come_back(tmp_path: Path) -> None:
    """A file that came in late, older than the watermark, is owed after a rollback and fetched without a verify."""
    lake = tmp_path / "lake"
    async with Emulator(60, seed=SEED) as emulator:
        world = emulator.world
        lost = world.pick_random(1)
        world.delete(lost)
        world.clock.advance(86_400)
        await synced(emulator, lake)
        number = snapshot_of(lake)
        world.restore(lost, stamp=False)
        await synced(emulator, lake)
        made = Settings(base_url=emulator.base_url, lake=lake)
        with Lake(lake, doing="verify") as held:
            proof = await verify(held, made, emulator.token, VerifyMode(), NullProgress())
        assert proof.missing == 1
        rolled_back(lake, number)
        undo_rollback(lake)
        await synced(emulator, lake)
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []


async def test_a_rollback_can_be_rolled_back(tmp_path: Path) -> None:
    """Going back, forward and back again shows each time exactly what that snapshot shows."""
    lake = tmp_path / "lake"
    async with Emulator(40, seed=SEED) as emulator:
        for _ in range(3):
            await synced(emulator, lake)
            emulator.world.update(emulator.world.pick_random(10))
            emulator.world.clock.advance(3_600)
    numbers = [int(path.stem) for path in sorted((lake / "snapshots").glob("*.duckdb"))]
    for number in (numbers[1], numbers[-1], numbers[0], numbers[-2], numbers[-1]):
        shown = rolled_back(lake, number).snapshot
        with (
            opened(lake) as now,
            duckdb.connect(str(lake / "snapshots" / f"{number:06d}.duckdb"), read_only=True) as db,
        ):
            assert now.execute(SHOWN).fetchall() == db.execute(SHOWN).fetchall()
        assert shown == numbers[-1] + 1
        numbers.append(shown)


async def test_definitions_go_back_too(tmp_path: Path) -> None:
    """A workflow's definition that only later parts held is written again by the next sync."""
    lake = tmp_path / "lake"
    async with Emulator(40, seed=SEED) as emulator:
        await synced(emulator, lake, fetch_details="never", includes=())
        with opened(lake) as db:
            assert db.execute("SELECT count(*) FROM workflows").fetchall() == [(0,)]
        number = snapshot_of(lake)
        await synced(emulator, lake, FULL)
        rolled_back(lake, number)
        undo_rollback(lake)
        await synced(emulator, lake, FULL)
        with opened(lake) as db:
            assert oracle.differences(db, emulator.truth()) == []


async def test_a_snapshot_whose_documents_are_gone(tmp_path: Path) -> None:
    """A snapshot can be restored while the lake has its documents, kept or not; otherwise nothing changes."""
    lake = tmp_path / "lake"
    async with Emulator(30, seed=SEED) as emulator:
        await synced(emulator, lake)
        number = snapshot_of(lake)
        emulator.world.update(emulator.world.pick_random(5))
        await synced(emulator, lake)
        with pytest.raises(SettingsError, match="There is no snapshot 77"):
            rolled_back(lake, 77)
        (lake / "snapshots" / f"{number:06d}.duckdb").unlink()
        shown = rolled_back(lake, number).snapshot
        rolled_back(lake, shown - 1)
        undo_rollback(lake)
        with Lake(lake, doing="compaction") as held:
            assert compact_all(held, Settings(lake=lake, keep_raw_versions=1))
        with pytest.raises(SettingsError, match=f"{number} cannot be restored: .* documents of 5 of its files"):
            rolled_back(lake, number)
        await synced(emulator, lake)
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []


async def test_changes_between_snapshots(tmp_path: Path) -> None:
    """Changes lists exactly the files that were added, changed or deleted, with reference and stamp."""
    lake = tmp_path / "lake"
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, lake)
        number = snapshot_of(lake)
        changed = set(emulator.world.pick_random(6))
        emulator.world.update(list(changed))
        gone = [key for key in emulator.world.pick_random(20) if key not in changed][:2]
        emulator.world.delete(gone)
        added = {true["key"] for true in emulator.truth()}
        emulator.world.create(3)
        added = {true["key"] for true in emulator.truth()} - added
        await synced(emulator, lake)
        with Lake(lake, doing="verify") as held:
            made = Settings(base_url=emulator.base_url, lake=lake)
            await verify(held, made, emulator.token, VerifyMode(), NullProgress())
        truth = {true["key"]: true for true in emulator.truth()}
    with Lake(lake, doing="look") as held:
        layout = held.layout
    since = layout.snapshot_path(number)
    found = list(diff_snapshots(since, layout.catalog))
    kinds = {kind: {each.file_id for each in found if each.change == kind} for kind in ("added", "changed", "deleted")}
    assert kinds == {"added": added, "changed": changed, "deleted": set(gone)}
    for each in found:
        if each.change != "deleted":
            assert each.updated_at == truth[each.file_id]["updated"]
            assert each.scan_code == truth[each.file_id]["item"]["scan_code"]
    assert list(diff_snapshots(since, since)) == []


def test_the_verbs(tmp_path: Path) -> None:
    """snapshots, changes and rollback tell people and programs what there is and what they did."""
    lake = tmp_path / "lake"

    async def grow() -> None:
        async with Emulator(30, seed=SEED) as emulator:
            for _ in range(4):
                await synced(emulator, lake, keep_snapshots=2, retention_hours=0)
                emulator.world.create(1)

    asyncio.run(grow())
    listed = json.loads(told(lake, "snapshots", "--json"))["snapshots"]
    assert [row["state"] for row in listed] == ["deleted"] * (len(listed) - 2) + ["kept"] * 2
    shown = told(lake, "snapshots").splitlines()
    assert len(shown) == 4, "years of a watch are many deleted snapshots"
    assert shown[-1] == f"{len(listed) - 2} snapshots deleted; --json lists them"
    assert listed[-1]["bytes"] > 1_000
    number = str(listed[-2]["snapshot"])
    found = json.loads(told(lake, "changes", "--since", number, "--json"))
    assert found["counts"] == {"added": 1, "changed": 0, "deleted": 0}
    lines = told(lake, "changes", "--since", number, "--format", "csv").splitlines()
    assert lines[0] == "change,file_id,scan_code,updated_at,columns"
    assert lines[1].startswith(f"added,{found['files'][0]['file_id']},")
    assert "1 added, 0 changed, 0 deleted" in told(lake, "changes", "--since", number)
    assert json.loads(told(lake, "rollback", number, "--yes", "--json"))["files"] == 32
    refused = told(lake, "sync", "--set", "base_url=http://127.0.0.1:1", code=2, SCANLAKE_TOKEN="t")
    assert "scanlake rollback --undo" in refused
    assert f"from snapshot {number}" in told(lake, "rollback", "--undo")
    assert told(lake, "rollback", "--undo") == "nothing to undo\n"


def test_a_rollback_asks(tmp_path: Path) -> None:
    """A rollback says what would be lost and asks: no changes nothing. Without a terminal it needs --yes."""
    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as made:
        made.publish("", at=AT, complete=False, watermark=None)
        commit(made, {1: 0, 2: 0, 3: 0})
        made.publish("", at=AT + 1, complete=True, watermark=AT)
    refused = told(lake, "rollback", "1", code=2)
    loss = "It is incomplete: it was published during a run.\n3 files that came in later"
    assert "Nothing was changed. Add --yes" in refused
    assert loss in refused
    for wrong in ((), ("1", "--undo")):
        assert "needs the number of a snapshot, or --undo" in told(lake, "rollback", *wrong, code=2)
    assert "exclude each other" in told(lake, "rollback", "--undo", "--yes", code=2)
    for answer, code, files in ((b"n\n", 2, 3), (b"y\n", 0, 0)):
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        arguments = (sys.executable, "-m", "pipeline", "rollback", "1", "--lake", str(lake))
        done = subprocess.run(arguments, stdin=theirs, capture_output=True, text=True, check=False)
        os.close(ours)
        os.close(theirs)
        assert done.returncode == code, done.stderr
        assert loss in done.stderr
        with opened(lake) as db:
            assert db.execute("SELECT count(*) FROM files").fetchall() == [(files,)]


def _change_of(lake: Path, *options: str) -> list[dict[str, Any]]:
    """Return the changes that the command prints."""
    listed: list[dict[str, Any]] = json.loads(told(lake, "changes", *options, "--json"))["files"]
    return listed


def test_changes_name_the_columns_that_differ(tmp_path: Path) -> None:
    """A changed file comes with the columns that differ, and with the tables in which it has more or fewer rows."""
    lake, before = tmp_path / "lake", {"file_id": 1, "id": 5, "position": 0, "comment": "a", "latitude": 1.0}
    with Lake(lake, doing="test") as made:
        commit(made, {1: 1, 2: 0, 3: 0}, {"uploads": [before]})
        made.publish("", at=AT, complete=True, watermark=AT)
        shifted = before | {"comment": "b", "position": 1}
        fields = [{"file_id": 1, "field_id": 9, "position": 0, "value": "new"}]
        commit(made, {1: 1, 2: 1}, {"uploads": [shifted], "fields": fields}, gone=[3], stamp=1)
        made.publish("", at=AT + 1, complete=True, watermark=AT)
    assert {row["file_id"]: row["columns"] for row in _change_of(lake, "--since", "1")} == {
        1: ["files.updated_at", "uploads.comment", "fields"],
        2: ["files.snap_count", "files.updated_at"],
        3: [],
    }
    text = told(lake, "changes", "--since", "1")
    assert "files.updated_at uploads.comment fields\n" in text
    csv_row = told(lake, "changes", "--since", "1", "--format", "csv").splitlines()[1]
    assert csv_row.endswith(",ref 1,2026-11-18T11:06:40.000001Z,files.updated_at uploads.comment fields")


def test_changes_since_a_time(tmp_path: Path) -> None:
    """A duration, a date or an instant means the snapshot that readers saw then, or the kept one before it."""
    lake, now, hour = tmp_path / "lake", now_us(), 3_600 * SECOND
    with Lake(lake, doing="test") as made:
        for number, age in ((1, 49), (2, 25), (3, 1)):
            commit(made, {number: 0})
            made.publish("", at=now - age * hour, complete=True, watermark=AT)
    instant = f"{to_datetime(now - 26 * hour):%Y-%m-%dT%H:%M:%SZ}"
    since = {"24h": [3], "2h": [3], "30m": [], "2d": [2, 3], "1d2h": [2, 3], instant: [2, 3], "2": [3]}
    assert {when: [row["file_id"] for row in _change_of(lake, "--since", when)] for when in since} == since
    assert [row["file_id"] for row in _change_of(lake, "--since", "1", "--until", "24h")] == [2]
    second = (lake / "snapshots" / "000002.duckdb").rename(tmp_path / "not-kept")
    assert [row["file_id"] for row in _change_of(lake, "--since", "24h")] == [2, 3]
    assert "is not kept" in told(lake, "changes", "--since", "1", "--until", "24h", code=2)
    second.rename(lake / "snapshots" / "000002.duckdb")
    (lake / "snapshots" / "000001.duckdb").rename(tmp_path / "not-kept")
    for when in ("2d", "3d"):
        message = told(lake, "changes", "--since", when, code=2)
        assert "is not kept: the oldest is 2, published" in message
    assert "Use --since 2. keep_snapshots" in message
    assert "--since soon: not a time. Use 24h, 7d, 2026-01-31" in told(lake, "changes", "--since", "soon", code=2)


def test_changes_since_a_time_before_the_first_sync(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a younger lake --since means what the first sync has brought, and a line says so; --until is an error."""
    lake, now, minute = tmp_path / "lake", now_us(), 60 * SECOND
    with Lake(lake, doing="test") as made:
        for number, complete in ((1, False), (2, True), (3, True)):
            commit(made, {number: 0})
            made.publish("", at=now - (10 - number) * minute, complete=complete, watermark=AT)
    with pytest.raises(SystemExit) as ended:
        main(["changes", "--since", "24h", "--lake", str(lake)])
    out, err = capsys.readouterr()
    assert (ended.value.code, out.splitlines()[-1]) == (0, "1 added, 0 changed, 0 deleted from snapshot 2 to 3")
    assert err.startswith("note: the lake is younger than that: changes since snapshot 2 of ")
    assert "is not kept" in told(lake, "changes", "--since", "1", "--until", "24h", code=2)
