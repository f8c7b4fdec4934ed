"""Going back to an earlier snapshot, and on from there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.lake import Lake, Opening
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.repair import repair_files
from pipeline.lake.rollback import clear_pause, plan_rollback, roll_back
from pipeline.settings.settings import Settings
from pipeline.sync.sync import TimeRange
from pipeline.sync.verify import is_due
from tests import oracle
from tests.lake.corruption import checked, flip
from tests.lake.lake_builder import commit
from tests.lake.operations import Terminal, called, compact_all, told
from tests.sync.sync_harness import SEED, opened, synced, verified

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import duckdb

    from pipeline.lake.ledger.queries import SnapshotRecord
    from tests.lake.history import History

FULL = TimeRange(full=True)
AT = 1_795_000_000_000_000


def rolled_back(lake: Path, number: int) -> SnapshotRecord:
    """Roll back as the command does."""
    with Lake(lake, doing="rollback") as held:
        run_id = f"r-{held.ledger.next_snapshot():06x}"
        return roll_back(held, plan_rollback(held, number), run=RunRecord(run_id, "rollback", "0", AT, state="done"))


def asked(lake: Path, sql: str) -> list[Any]:
    """Rows of a query of the catalog."""
    with opened(lake) as db:
        return db.execute(sql).fetchall()


def undo_rollback(lake: Path) -> None:
    """Allow syncs again as the command does."""
    with Lake(lake, doing="rollback") as held:
        clear_pause(held.ledger)


def differences(db: duckdb.DuckDBPyConnection, truth: Iterable[oracle.Row]) -> list[str]:
    """Where lake and service differ; definitions stay when the last file that bore one has changed."""
    definitions = ("workflows", "workflow_steps", "workflow_definition")
    return [line for line in oracle.differences(db, truth) if not line.startswith(definitions)]


def snapshot_of(lake: Path) -> int:
    """The number of the snapshot that readers see."""
    with opened(lake) as db:
        return int(db.execute("SELECT snapshot FROM meta.freshness").fetchall()[0][0])


async def test_rollback_and_undo(history: History, tmp_path: Path) -> None:
    """A rollback shows what was, under a new number; syncs wait until it is undone, then converge.

    They fetch only the files whose version went back; the others are known as well as before.
    """
    lake, number = tmp_path / "lake", snapshot_of(history.yesterday.lake)
    with opened(history.yesterday.lake) as db:
        watermark = db.execute("SELECT watermark FROM meta.freshness").fetchall()
    async with history.today.live_on(lake) as emulator:
        with Lake(lake, doing="compaction") as held:
            before = held.ledger.next_commit_seq()
            assert compact_all(held, Settings(lake=lake))
        record = rolled_back(lake, number)
        assert record.snapshot > number
        with opened(lake) as db:
            assert differences(db, history.yesterday.truth) == []
            assert db.execute("SELECT watermark FROM meta.freshness").fetchall() == watermark
        with pytest.raises(SettingsError, match=f"rolled back to snapshot {number}") as refused:
            await synced(emulator, lake)
        assert "scanlake rollback --undo" in refused.value.hint
        with pytest.raises(SettingsError, match="rolled back"):
            await verified(emulator, lake)
        assert emulator.requests == 0
        undo_rollback(lake)
        assert (await synced(emulator, lake)).details_fetched == 8 + 2  # changed and created today
        with Lake(lake, doing="look") as held:
            assert held.ledger.next_commit_seq() > before
            assert is_due(held.ledger, Settings(lake=lake))
        assert (await verified(emulator, lake)).consistent
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []


async def test_late_commits_come_back(tmp_path: Path) -> None:
    """A file that came in late, older than the watermark, is owed after a rollback and fetched without a verify."""
    lake = tmp_path / "lake"
    async with Emulator(10, seed=SEED) as emulator:
        world = emulator.world
        lost = world.pick_random(1)
        world.delete(lost)
        world.clock.advance(86_400)
        await synced(emulator, lake)
        number = snapshot_of(lake)
        world.restore(lost, stamp=False)
        await synced(emulator, lake)
        assert (await verified(emulator, lake)).missing == 1
        rolled_back(lake, number)
        undo_rollback(lake)
        await synced(emulator, lake)
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []


async def test_definitions_go_back_too(tmp_path: Path) -> None:
    """A workflow's definition that only later parts held is written again by the next sync."""
    lake = tmp_path / "lake"
    async with Emulator(10, seed=SEED) as emulator:
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


def test_a_snapshot_is_published_again_while_it_is_kept(tmp_path: Path) -> None:
    """A kept snapshot can be published again, also without its documents; one that is not kept changes nothing.

    While the lake is rolled back, publishes of records show no later row, also from a damaged catalog.
    """
    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as made:
        for at, files in enumerate((dict.fromkeys(range(1, 7), 0), {1: 1, 2: 1})):
            commit(made, files, stamp=at)
            made.publish("", at=AT + at, complete=True, watermark=AT)
        assert compact_all(made, Settings(lake=lake, keep_raw_versions=1))
    with pytest.raises(SettingsError, match="There is no snapshot 77"):
        rolled_back(lake, 77)
    counts = "SELECT list(snap_count ORDER BY file_id) FROM files"
    assert (rolled_back(lake, 1).snapshot, asked(lake, counts)) == (3, [([0] * 6,)])
    for damage in (lambda: None, (lake / "catalog.duckdb").unlink, lambda: flip(lake / "catalog.duckdb", 0.3)):
        damage()
        with Lake(lake, doing="repair", opening=Opening.REPAIR) as held:
            repair_files(held)
            assert held.republish(at=AT + 5).snapshot == 3
            assert not held.needs_publish
        assert asked(lake, f"{counts} UNION ALL SELECT [files] FROM meta.freshness") == [([0] * 6,), ([6],)]
        assert checked(lake, mend=False).damage == []
    assert told(lake, "purge", "6", "--yes")
    assert asked(lake, counts) == [([0] * 5,)]
    undo_rollback(lake)
    with Lake(lake, doing="test") as held:
        held.republish(at=AT + 9)
    assert asked(lake, counts) == [([1, 1, 0, 0, 0],)]
    with pytest.raises(SettingsError, match="Snapshot 1 is not kept"):
        rolled_back(lake, 1)
    assert checked(lake, read_data=True, mend=False).damage == []


def test_a_rollback_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    for answer, code, files in (("n\n", 2, 3), ("y\n", 0, 0)):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        asked = called(lake, "rollback", "1")
        assert (asked.code, loss in asked.err) == (code, True), asked
        with opened(lake) as db:
            assert db.execute("SELECT count(*) FROM files").fetchall() == [(files,)]


def test_versions_under_another_key_stay_away(tmp_path: Path) -> None:
    """A snapshot from before the instance became the key shows its files; after the undo there is none of them."""
    new = {1: 101, 2: 102}
    files = "SELECT file_id, snap_count FROM files ORDER BY 1"
    with Lake(tmp_path / "lake", doing="test") as lake:
        for number, counts in ((1, {1: 1, 2: 1}), (2, {101: 1, 102: 1}), (3, {102: 2, 103: 1})):
            if number == 2:
                lake.ledger.switch_key_to_instance("run", AT + number)
            commit(lake, counts, change=lambda made: made._replace(instance=new.get(made.file_id, made.file_id)))
            lake.publish("", at=AT + number, complete=True, watermark=AT)
        plan = plan_rollback(lake, 2)
        assert (plan.disappearing, plan.changing, plan.returning) == (1, 1, 0)
        for number, shown in ((1, [(1, 1), (2, 1)]), (2, [(101, 1), (102, 1)])):
            plan = plan_rollback(lake, number)
            roll_back(lake, plan, run=RunRecord(f"r-00000{number}", "rollback", "0", AT, state="done"))
            assert asked(tmp_path / "lake", files) == shown
            clear_pause(lake.ledger)
            lake.republish(at=AT + 9)
            assert asked(tmp_path / "lake", files) == [(101, 1), (102, 2), (103, 1)]


def test_a_damaged_snapshot_is_not_published_again(tmp_path: Path) -> None:
    """A rollback reads the snapshot whole before anything changes: damage is named, and the lake stays as it is."""
    with Lake(tmp_path, doing="test") as lake:
        for count in (1, 2):
            commit(lake, dict.fromkeys(range(1, 2_000), count))
            lake.publish("", at=AT + count, complete=True, watermark=AT)
        flip(lake.layout.snapshot_path(1), 0.3)
        with pytest.raises(LakeCorruptedError, match=r"snapshots/000001.duckdb: "):
            plan_rollback(lake, 1)
        assert lake.ledger.properties.rollback_pause is None
    assert asked(tmp_path, "SELECT DISTINCT snap_count FROM files") == [(2,)]
