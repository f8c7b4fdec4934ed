"""Rollback: the file of a kept snapshot is published under a new number, and a mark pauses syncs.

Ledger and documents stay as they are. While the mark stands, a publish writes records alone; without it the catalog is
made from the documents again, and the next sync fetches what is later than the snapshot.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict

from pipeline.errors import LakePausedError, SettingsError
from pipeline.lake.catalog.snapshots import diff_snapshots, read_snapshot, require_snapshot
from pipeline.lake.integrity import require_intact_snapshot
from pipeline.lake.ledger.ledger import insert, set_coverage, set_properties
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import RollbackPause, RunRecord, SnapshotRecord


class RollbackPlan(Struct, frozen=True):
    """What a rollback to a snapshot would do: files that would disappear, have an earlier version, or return."""

    target: SnapshotRecord
    disappearing: int
    changing: int
    returning: int


def check_not_paused(ledger: Ledger) -> None:
    """Raise `LakePausedError` while the lake is rolled back."""
    if (pause := ledger.properties.rollback_pause) is not None:
        raise LakePausedError(
            f"The lake was rolled back to snapshot {pause['to']}, and syncing is paused.",
            hint="Correct the cause of the rollback, then run `scanlake rollback --undo`.",
        )


def clear_pause(ledger: Ledger) -> RollbackPause | None:
    """Allow syncs again. Return the pause that ended; None when there was none."""
    pause = ledger.properties.rollback_pause
    if pause is not None:  # the next publish makes the catalog from the documents
        ledger.set_properties(rollback_pause=None, has_unpublished_rows=True, delta_base=None)
    return pause


def plan_rollback(lake: Lake, number: int) -> RollbackPlan:
    """Compare the lake with a snapshot, for `roll_back`. Raises `SettingsError` if it cannot be published again."""
    if lake.ledger.properties.purge_in_progress is not None:
        raise SettingsError(
            "A purge is not finished, and an earlier snapshot would restore the purged files.",
            hint="Run `scanlake sync` first: it finishes the purge.",
        )
    if lake.ledger.find_published_snapshot(number) is None:
        raise SettingsError(f"There is no snapshot {number}.", hint="Run `scanlake snapshots` for a list.")
    path = require_snapshot(lake.layout, number)
    require_intact_snapshot(lake.layout, number)
    changes = Counter(change.change for change in diff_snapshots(lake.layout.catalog, path))
    return RollbackPlan(read_snapshot(path), changes["deleted"], changes["changed"], changes["added"])


def roll_back(lake: Lake, plan: RollbackPlan, *, run: RunRecord) -> SnapshotRecord:
    """Publish the contents of an earlier snapshot as a new snapshot, and pause syncing."""
    ledger, target = lake.ledger, plan.target
    with ledger.transaction() as db:
        number = ledger.next_snapshot()
        pause = {"to": target.snapshot, "snapshot": number, "commit_seq": target.commit_seq}
        set_properties(db, rollback_pause=pause, has_unpublished_rows=True, delta_base=None)
        # What is later is read and fetched again. Later deletions are in no list: only a verify finds them.
        db.execute("UPDATE file_version SET is_stable = 0 WHERE commit_seq > ?", (target.commit_seq,))
        watermark = None if target.watermark is None else target.watermark // SECOND
        set_coverage(db, [] if watermark is None else [(None, watermark)])
        set_properties(db, watermark=watermark, last_verify_at=None)
        if watermark is not None:
            set_properties(db, lookback_due=True, unverified_since=1)
        insert(db, "run", {**asdict(run), "snapshot": number})
    return lake.publish(run.run_id, at=run.started_at, complete=target.complete, watermark=target.watermark)
