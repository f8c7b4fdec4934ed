"""Rollback: the versions that files had in an earlier snapshot become current again, by an ordinary commit.

The commit has copies of their documents, so a later rollback, or a rebuild of the ledger, finds the state by its number
alone. Workflow definitions that the lake has seen since stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict

from pipeline.errors import LakePausedError, SettingsError
from pipeline.lake.documents import VERSION_COLUMNS, read_versions
from pipeline.lake.duckdb import open_worker_connection
from pipeline.lake.ledger import insert, insert_all, set_coverage, set_properties
from pipeline.lake.parts import RAW_ROW_GROUP_FILES, RAW_TABLE, check_part_intact, write_raw_rows
from pipeline.lake.sql import sql_read_parquet
from schemas.tables import ABSENT, COMMIT_SEQ_COLUMN, DELETED, RAW, RESTORED
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.ledger_queries import Part, RollbackPause, RunRecord, SnapshotRecord

_PAIRS: Final = pa.schema([("file_id", pa.int64()), (COMMIT_SEQ_COLUMN, pa.int64())])
_CHANGED: Final = "FROM file_version AS v LEFT JOIN temp.restored AS r ON r.file_id = v.file_id"
_DIFFERS: Final = "v.commit_seq IS NOT r.commit_seq"


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
    ledger.set_properties(rollback_pause=None)
    return pause


def plan_rollback(lake: Lake, number: int) -> RollbackPlan:
    """Compare the lake with a snapshot, for `roll_back`. The snapshot need not be kept: its documents must be.

    Raises `SettingsError` when there is no such snapshot, or when it cannot be restored.
    """
    ledger = lake.ledger
    if ledger.properties.purge_in_progress is not None:
        raise SettingsError(
            "A purge is not finished, and an earlier snapshot would restore the purged files.",
            hint="Run `scanlake sync` first: it finishes the purge.",
        )
    target = ledger.find_published_snapshot(number)
    if target is None:
        raise SettingsError(f"There is no snapshot {number}.", hint="Run `scanlake snapshots` for a list.")
    with ledger.transaction() as db:
        _find_versions(lake, db, target)
        disappearing = _count(db, f"{_CHANGED} WHERE NOT v.deleted AND coalesce(r.deleted, 1)")
        changing = _count(db, f"{_CHANGED} WHERE NOT v.deleted AND NOT r.deleted AND v.commit_seq <> r.commit_seq")
        files = _count(db, "FROM temp.restored WHERE NOT deleted")
        staying = _count(db, f"{_CHANGED} WHERE NOT v.deleted AND NOT r.deleted")
    if files != target.files:
        raise SettingsError(
            f"Snapshot {number} cannot be restored: the lake has documents of {files:,} of its {target.files:,} files.",
            hint="Purged files have none, nor versions beyond keep_raw_versions. A kept snapshot can be read as it is.",
        )
    return RollbackPlan(target, disappearing, changing, files - staying)


def _count(db: sqlite3.Connection, source: str) -> int:
    return int(db.execute(f"SELECT count(*) {source}").fetchone()[0])


def _find_versions(lake: Lake, db: sqlite3.Connection, target: SnapshotRecord) -> None:
    """Fill the temporary table `restored` with the version that each file had in a snapshot, from the documents."""
    db.execute("DROP TABLE IF EXISTS temp.restored")
    db.execute(f"CREATE TEMP TABLE restored AS SELECT {', '.join(VERSION_COLUMNS)} FROM file_version LIMIT 0")
    db.execute("CREATE UNIQUE INDEX temp.restored_file ON restored (file_id)")
    by_instance = lake.ledger.properties.identity == "file_id"
    documents = [part.name for part in _list_raw_parts(lake.ledger)]
    for rows in read_versions(lake.layout, documents, up_to=target.commit_seq, by_instance=by_instance):
        insert_all(db, "temp.restored", VERSION_COLUMNS, rows)


def _list_raw_parts(ledger: Ledger) -> list[Part]:
    return [part for part in ledger.parts() if part.table_name == RAW_TABLE]


def roll_back(lake: Lake, plan: RollbackPlan, *, run: RunRecord) -> SnapshotRecord:
    """Publish the contents of an earlier snapshot as a new snapshot, and pause syncing."""
    ledger, target, seq = lake.ledger, plan.target, lake.ledger.next_commit_seq()
    written = _copy_documents(lake, run, seq)
    with ledger.transaction() as db:
        _restore_versions(db, target, seq)
        if written is not None:
            insert(db, "part", asdict(written))
        _restore_coverage(db, target)
        number = ledger.next_snapshot()
        set_properties(db, next_commit_seq=seq + 1, has_unpublished_rows=True)
        set_properties(db, rollback_pause={"to": target.snapshot, "snapshot": number})
        insert(db, "run", {**asdict(run), "snapshot": number})
    return lake.publish(run.run_id, at=run.started_at, complete=target.complete, watermark=target.watermark)


def _copy_documents(lake: Lake, run: RunRecord, seq: int) -> Part | None:
    """Write the documents of the versions that differ as those of commit `seq`, and return their part.

    Raises `LakeCorruptedError` if a part with such documents is damaged: the copy would have a hash of its own.
    """
    ledger = lake.ledger
    pairs = ledger.query(
        "SELECT r.file_id, r.commit_seq FROM temp.restored AS r LEFT JOIN file_version AS v ON v.file_id = r.file_id"
        f" WHERE {_DIFFERS}"
    )
    removed = ledger.query(f"SELECT v.file_id {_CHANGED} WHERE r.file_id IS NULL")
    seqs = {row[1] for row in pairs}
    parts = [part for part in _list_raw_parts(ledger) if any(part.span[0] <= seq <= part.span[1] for seq in seqs)]
    for part in parts:
        check_part_intact(lake.layout, part)
    paths = [lake.layout.part_path(part.name) for part in parts]
    restored = pa.table([[row[0] for row in pairs], [row[1] for row in pairs]], names=["file_id", COMMIT_SEQ_COLUMN])

    def read_rows() -> Iterator[pa.Table]:
        if pairs:
            with open_worker_connection(lake.layout.spill_dir) as db:
                db.register("incoming", restored.cast(_PAIRS))
                db.execute("CREATE TEMP TABLE restored AS FROM incoming")
                rows = db.sql(
                    f"SELECT document.* REPLACE ({seq}::BIGINT AS _seq,"
                    f" if(kind = '{DELETED}', kind, '{RESTORED}') AS kind)"
                    f" FROM {sql_read_parquet(paths)} AS document SEMI JOIN restored USING (file_id, _seq)"
                )
                for batch in rows.to_arrow_reader(RAW_ROW_GROUP_FILES):
                    yield pa.Table.from_batches([batch])
        if removed:
            file_ids = [row[0] for row in removed]
            columns: dict[str, list[object]] = {
                "file_id": file_ids,
                "kind": [ABSENT] * len(file_ids),
                "_fetched_at": [run.started_at] * len(file_ids),
                "_run_id": [run.run_id] * len(file_ids),
                COMMIT_SEQ_COLUMN: [seq] * len(file_ids),
            }
            yield pa.table(columns, schema=pa.schema([RAW.field(name) for name in columns]))

    return write_raw_rows(lake.layout, read_rows(), run_id=run.run_id, seq=seq) if pairs or removed else None


def _restore_versions(db: sqlite3.Connection, target: SnapshotRecord, seq: int) -> None:
    """Make the versions of the snapshot the current ones, under commit `seq` if they differ."""
    # Later versions older than the watermark are in no window of the next run: they are queued.
    db.execute(
        f"INSERT OR REPLACE INTO refetch_queue (file_id, updated_at) SELECT v.file_id, v.updated_at {_CHANGED}"
        f" WHERE {_DIFFERS} AND (v.updated_at IS NULL OR v.updated_at < ?)",
        (target.watermark or 0,),
    )
    db.execute("DELETE FROM file_version WHERE file_id NOT IN (SELECT file_id FROM temp.restored)")
    values = ", ".join(f"r.{name}" for name in VERSION_COLUMNS if name != "commit_seq")
    names = ", ".join(name for name in VERSION_COLUMNS if name != "commit_seq")
    db.execute(
        f"INSERT OR REPLACE INTO file_version (commit_seq, {names}) SELECT ?, {values} FROM temp.restored AS r"
        f" LEFT JOIN file_version AS v ON v.file_id = r.file_id WHERE {_DIFFERS}",
        (seq,),
    )
    db.execute("DROP TABLE temp.restored")


def _restore_coverage(db: sqlite3.Connection, target: SnapshotRecord) -> None:
    """Restore the snapshot's watermark as coverage, and make a verify due."""
    if target.watermark is None:
        set_coverage(db, [])
        set_properties(db, watermark=None, last_verify_at=None)
        return
    watermark = target.watermark // SECOND
    set_coverage(db, [(None, watermark)])
    # Later deletions are in no list: only a verify finds them again.
    set_properties(db, watermark=watermark, lookback_due=True, last_verify_at=None, unverified_since=1)
