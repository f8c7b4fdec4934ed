"""The lake's past: what a kept snapshot shows, what changed between two, and going back to one.

A snapshot's own tables say what it consists of. Its parts are looked up below the lake's folder, not at the
absolute paths of its views, so that a lake that was moved keeps its past.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import duckdb

from pipeline.errors import LakeDamaged, SettingsError
from pipeline.lake.catalog import quoted
from pipeline.lake.erasure import BEGUN
from pipeline.lake.parts import empty_part
from pipeline.lake.records import Part, RunRecord
from pipeline.lake.statements import insert, set_coverage, set_fact
from pipeline.lake.upkeep import snapshots
from schemas.instants import SECOND
from schemas.tables import DELETED_FILES, FILES, SEQ, WORKFLOWS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from pipeline.lake.files import Layout
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.records import SnapshotRecord

PAUSED: Final = "rolled_back"
"""The ledger's fact that pauses syncing: the snapshot that was gone back to, and the one that shows it now."""

_AT_ONCE: Final = 50_000
_PART_FIELDS: Final = ("name", "table_name", "seq_low", "seq_high", "rows", "bytes", "sha256")


@dataclass(frozen=True, slots=True)
class Past:
    """What a catalog consists of. `dead` has the columns file_id and _seq; the horizon is in microseconds."""

    snapshot: int
    run_id: str
    complete: bool
    horizon: int | None
    by_instance: bool
    parts: tuple[Part, ...]
    dead: pa.Table

    @property
    def bytes(self) -> int:
        """The size of its parts."""
        return sum(part.bytes for part in self.parts)


def kept(layout: Layout, number: int) -> Path:
    """The file of a kept snapshot. Raises `SettingsError` when it is not kept, or not any more."""
    numbers = [found for found, _ in snapshots(layout)]
    if number not in numbers:
        raise SettingsError(f"snapshot {number} is not kept", remedy="`scanlake snapshots` lists those that are.")
    return layout.snapshot(number)


def read_past(path: Path) -> Past:
    """What the catalog at `path` consists of. Raises `LakeDamaged` when it cannot be read."""
    try:
        with duckdb.connect(str(path), read_only=True) as db:
            facts = db.execute(
                "SELECT snapshot, s.run_id, f.complete, epoch_us(f.horizon),"
                " (SELECT count(*) FROM meta.schema_drift WHERE kind = 'identity')"
                " FROM meta._freshness AS f LEFT JOIN meta.snapshots AS s USING (snapshot)"
            ).fetchall()[0]
            parts = db.execute(f"SELECT {', '.join(_PART_FIELDS)} FROM main._parts").fetchall()
            dead = db.sql(f"SELECT file_id, {SEQ} FROM main._dead").to_arrow_table()
    except (duckdb.Error, IndexError) as error:
        raise LakeDamaged(f"{path.name} cannot be read") from error
    number, run_id, complete, horizon, switched = facts
    return Past(number, run_id or "", bool(complete), horizon, bool(switched), tuple(Part(*row) for row in parts), dead)


def missing(layout: Layout, past: Past) -> list[str]:
    """Names of its parts whose files are gone, or not what they were."""

    def size(part: Part) -> int:
        try:
            return layout.part(part.name).stat().st_size
        except FileNotFoundError:
            return -1

    return [part.name for part in past.parts if size(part) != part.bytes]


# What changed


@dataclass(frozen=True, slots=True)
class Change:
    """A file that two snapshots show differently; `updated_at` as the later one that has it says, microseconds."""

    change: str
    file_id: int
    scan_code: str | None
    updated_at: int | None


def changes(layout: Layout, since: Past, until: Past) -> Iterator[Change]:
    """Files that were added, changed or deleted from one snapshot to another, by id.

    Raises `LakeDamaged` when parts of either are gone.
    """
    for past in (since, until):
        if gone := missing(layout, past):
            raise LakeDamaged(f"snapshot {past.snapshot} is not whole: {gone[0]} is gone or not what it was")
    with _opened() as db:
        _show_versions(db, layout, since, "before")
        _show_versions(db, layout, until, "later")
        found = db.execute(
            "SELECT CASE WHEN b.file_id IS NULL OR b.deleted THEN 'added' WHEN l.file_id IS NULL OR l.deleted"
            " THEN 'deleted' ELSE 'changed' END, coalesce(l.file_id, b.file_id),"
            " CASE WHEN l.file_id IS NULL THEN b.scan_code ELSE l.scan_code END,"
            " CASE WHEN l.file_id IS NULL THEN b.updated_at ELSE l.updated_at END"
            " FROM before AS b FULL JOIN later AS l ON b.file_id = l.file_id"
            " WHERE (b.seq IS DISTINCT FROM l.seq) AND NOT (coalesce(b.deleted, true) AND coalesce(l.deleted, true))"
            " ORDER BY 2"
        )
        while rows := found.fetchmany(_AT_ONCE):
            yield from (Change(*row) for row in rows)


@contextmanager
def _opened() -> Iterator[duckdb.DuckDBPyConnection]:
    try:
        with duckdb.connect(":memory:") as db:
            db.execute("SET enable_progress_bar = false")
            yield db
    except duckdb.IOException as error:
        raise LakeDamaged("a part of the snapshot cannot be read") from error


def _show_versions(db: duckdb.DuckDBPyConnection, layout: Layout, past: Past, name: str) -> None:
    """Make the table `name`: the versions that counted, one row a file; instants in microseconds."""
    db.register("was_dead", past.dead)
    common = f"part.file_id AS file_id, part.{SEQ} AS seq, epoch_us(part.updated_at) AS updated_at,"
    common += " epoch_us(part._fetched_at) AS fetched_at, part._run_id AS run_id, part.scan_code AS scan_code"
    sides = [
        f"SELECT {common}, {instance} AS instance, {deleted} AS deleted"
        f" FROM read_parquet([{_paths(layout, past, table)}], union_by_name = true) AS part"
        f" ANTI JOIN was_dead AS dead ON part.file_id = dead.file_id AND part.{SEQ} = dead.{SEQ}"
        for table, instance, deleted in (
            (FILES.name, "part.instance_file_id", "false"),
            (DELETED_FILES.name, "NULL::BIGINT", "true"),
        )
    ]
    db.execute(f"CREATE TABLE {name} AS {' UNION ALL BY NAME '.join(sides)}")
    db.unregister("was_dead")


def _paths(layout: Layout, past: Past, table: str) -> str:
    names = [part.name for part in past.parts if part.table_name == table]
    return ", ".join(quoted(str(path)) for path in (empty_part(layout, table), *map(layout.part, names)))


# Going back


def pause_of(ledger: Ledger) -> dict[str, int] | None:
    """Which snapshot the lake was rolled back to, and which one shows it; None while syncing is not paused."""
    found: dict[str, int] | None = ledger.fact(PAUSED)
    return found


def refuse_while_paused(ledger: Ledger) -> None:
    """Raise `SettingsError` while the lake is rolled back."""
    if (pause := pause_of(ledger)) is not None:
        raise SettingsError(
            f"the lake was rolled back to snapshot {pause['to']}, and syncing is paused",
            remedy="Once what went wrong is mended: `scanlake resume`.",
        )


def resume(ledger: Ledger) -> dict[str, int] | None:
    """Let syncs run again. Returns what the lake was rolled back to, None when it was not."""
    pause = pause_of(ledger)
    if pause is not None:
        with ledger.transaction() as db:
            db.execute("DELETE FROM fact WHERE name = ?", (PAUSED,))
    return pause


def roll_back(lake: Lake, number: int, *, run: RunRecord) -> SnapshotRecord:
    """Publish what snapshot `number` shows as a new snapshot, and pause syncing.

    Raises `SettingsError` when that snapshot, or a part of it, is not kept any more; then nothing has changed.
    """
    layout, ledger = lake.layout, lake.ledger
    if ledger.fact(BEGUN) is not None:
        raise SettingsError(
            "a purge was killed before it was finished, and an earlier snapshot would bring back what it erased",
            remedy="Run `scanlake publish`, which finishes it, first.",
        )
    past = read_past(kept(layout, number))
    if gone := missing(layout, past):
        raise SettingsError(
            f"snapshot {number} cannot be brought back: {gone[0]} is past its time of grace, or damaged",
            remedy="`scanlake snapshots` lists what is kept; grace_hours says how long.",
        )
    if (ledger.fact("identity", "id") == "file_id") is not past.by_instance:
        raise SettingsError(
            f"snapshot {number} knows files by another key (see meta.schema_drift)",
            remedy="Open it for reading, or take a later one.",
        )
    with _opened() as past_db:
        _show_versions(past_db, layout, past, "past")
        definitions = past_db.execute(
            f"SELECT _content_hash, min({SEQ})"
            f" FROM read_parquet([{_paths(layout, past, WORKFLOWS.name)}], union_by_name = true) GROUP BY ALL"
        ).fetchall()
        with ledger.transaction() as db:
            _restore_versions(db, past_db, past)
            _restore_parts(db, past, at=run.started_at)
            db.execute("DELETE FROM definition")
            db.executemany("INSERT INTO definition VALUES (?, ?)", definitions)
            _restore_promises(db, past)
            set_fact(db, "next_seq", ledger.next_seq() + 1)  # the catalog must follow; no number is used twice
            set_fact(db, PAUSED, {"to": number, "snapshot": ledger.next_snapshot()})
            insert(db, "run", {name: getattr(run, name) for name in run.__slots__})
    record = lake.publish(run.run_id, at=run.started_at, complete=past.complete, horizon=past.horizon)
    ledger.update_run(run.run_id, snapshot=record.snapshot)
    return record


def _restore_versions(db: sqlite3.Connection, past_db: duckdb.DuckDBPyConnection, past: Past) -> None:
    """Let the versions that counted then count again.

    Of one that still counts all is known. Of another only what its row says: never a reason to skip its file.
    """
    db.execute("DROP TABLE IF EXISTS temp.past")
    db.execute(
        "CREATE TEMP TABLE past (file_id INTEGER PRIMARY KEY, seq INTEGER, deleted INTEGER, updated_at INTEGER,"
        " fetched_at INTEGER, instance INTEGER, run_id TEXT)"
    )
    found = past_db.execute("SELECT file_id, seq, deleted, updated_at, fetched_at, instance, run_id FROM past")
    while rows := found.fetchmany(_AT_ONCE):
        db.executemany("INSERT INTO temp.past VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    # What came in later but is older than the horizon is in no window that the next run reads: it is owed.
    db.execute(
        "INSERT OR REPLACE INTO owed SELECT v.file_id, v.updated_at FROM file_version AS v LEFT JOIN temp.past AS p"
        " ON p.file_id = v.file_id WHERE p.seq IS NOT v.seq AND (v.updated_at IS NULL OR v.updated_at < ?)",
        (past.horizon or 0,),
    )
    db.execute("DELETE FROM file_version WHERE file_id NOT IN (SELECT file_id FROM temp.past)")
    db.execute(
        "INSERT OR REPLACE INTO file_version (file_id, seq, deleted, updated_at, fetched_at, digest, shape, settled,"
        " instance, run_id) SELECT p.file_id, p.seq, p.deleted, p.updated_at, coalesce(p.fetched_at, 0),"
        " x'', '', 0, p.instance, coalesce(p.run_id, '') FROM temp.past AS p LEFT JOIN file_version AS v"
        " ON v.file_id = p.file_id WHERE v.seq IS NOT p.seq OR v.deleted IS NOT p.deleted"
    )
    db.execute("DROP TABLE temp.past")
    db.execute("DELETE FROM dead")
    for start in range(0, past.dead.num_rows, _AT_ONCE):
        batch = past.dead.slice(start, _AT_ONCE)
        pairs = zip(batch.column(SEQ).to_pylist(), batch.column("file_id").to_pylist(), strict=True)
        db.executemany("INSERT INTO dead (seq, file_id) VALUES (?, ?)", pairs)


def _restore_parts(db: sqlite3.Connection, past: Past, *, at: int) -> None:
    """Let the parts of then hold the rows again; later ones are retired, so that one may go forward, too."""
    theirs = {part.name for part in past.parts}
    shown = db.execute("SELECT coalesce(max(snapshot), 0) FROM snapshot").fetchone()[0]
    now = {row["name"] for row in db.execute("SELECT name FROM part")}
    db.executemany("INSERT OR REPLACE INTO retired VALUES (?, ?, ?)", [(name, at, shown) for name in now - theirs])
    db.executemany("DELETE FROM retired WHERE name = ?", [(name,) for name in theirs])
    db.execute("DELETE FROM part")
    for part in past.parts:
        insert(db, "part", {name: getattr(part, name) for name in _PART_FIELDS})


def _restore_promises(db: sqlite3.Connection, past: Past) -> None:
    """Promise what was promised then, and no more; have the whole be verified once syncing goes on."""
    horizon: Any = None if past.horizon is None else past.horizon // SECOND
    set_coverage(db, [] if horizon is None else [(None, horizon)])
    db.execute("DELETE FROM fact WHERE name = 'horizon'")
    if horizon is not None:
        set_fact(db, "horizon", horizon)
        set_fact(db, "look_back_due", value=True)
        # Deletions found since are in no list: only a verify finds them again.
        set_fact(db, "last_verify_at", None)
        set_fact(db, "verify_from", 1)
