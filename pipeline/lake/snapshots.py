"""Kept snapshots: their contents, the differences between two, and rollback to one.

A snapshot lists its parts. They are read below the lake's folder, not at the absolute paths of its views, so a lake
that has moved keeps its snapshots.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.atomic_files import sha256_file
from pipeline.errors import LakeCorruptedError, LakePausedError, SettingsError
from pipeline.lake import ledger_writes
from pipeline.lake.catalog_sql import read_parts_sql
from pipeline.lake.column_differences import find_differing_columns
from pipeline.lake.duckdb_files import open_read_only
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.integrity import missing_or_resized_parts
from pipeline.lake.ledger_format import refuse_other_formats
from pipeline.lake.ledger_writes import insert, insert_all, set_properties
from pipeline.lake.physical_tables import PART_COLUMNS, SUPERSEDED_VERSIONS, read_parts
from pipeline.lake.sql import sql_literal
from schemas.tables import BY_NAME, COMMIT_SEQ_COLUMN, DELETED_FILES, FILES, WORKFLOW_DEFINITIONS
from schemas.timestamps import SECOND, to_datetime

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from pipeline.lake.lake import Lake
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.models import Part, RollbackPause, RunRecord, SnapshotRecord

_BATCH_ROWS: Final = 50_000


@dataclass(frozen=True, slots=True)
class SnapshotContents:
    """Contents of a catalog. `superseded` has the columns file_id and _seq; the watermark is in microseconds."""

    snapshot: int
    run_id: str
    complete: bool
    watermark: int | None
    by_instance: bool
    parts: tuple[Part, ...]
    superseded: pa.Table


def require_snapshot(layout: LakeLayout, number: int) -> Path:
    """Return the file of a kept snapshot. Raises `SettingsError` when it is not kept, or the lake of another format."""
    refuse_other_formats(layout.ledger)
    if number not in dict(list_snapshots(layout)):
        hint = "Run `scanlake snapshots` for a list of the kept ones."
        raise SettingsError(f"Snapshot {number} is not kept.", hint=hint)
    return layout.snapshot_path(number)


def read_snapshot(path: Path) -> SnapshotContents:
    """Return the contents of the catalog at `path`. Raises `LakeCorruptedError` when it cannot be read."""
    try:
        with open_read_only(path) as db:
            number, run_id, complete, watermark, switches = db.execute(
                "SELECT snapshot, s.run_id, f.complete, epoch_us(f.watermark),"
                " (SELECT count(*) FROM meta.schema_drift WHERE kind = 'identity')"
                " FROM meta._freshness AS f LEFT JOIN meta.snapshots AS s USING (snapshot)"
            ).fetchall()[0]
            parts = tuple(read_parts(db))
            superseded = db.sql(f"SELECT file_id, {COMMIT_SEQ_COLUMN} FROM {SUPERSEDED_VERSIONS}").to_arrow_table()
    except (duckdb.Error, IndexError) as error:
        raise LakeCorruptedError(f"{path.name} cannot be read.") from error
    return SnapshotContents(number, run_id or "", bool(complete), watermark, bool(switches), parts, superseded)


def missing_parts(layout: LakeLayout, contents: SnapshotContents) -> list[str]:
    """Return the names of the snapshot's parts that are missing or have another size."""
    return missing_or_resized_parts(layout, ((part.name, part.bytes) for part in contents.parts))


def find_snapshot_at(layout: LakeLayout, at: int, *, or_other: bool = False) -> tuple[int, str]:
    """Return the number of the snapshot that readers saw at an instant (microseconds), and a note if it is another.

    `or_other`: if that is not kept, return the newest kept one before it; before the first snapshot, the one that the
    first sync has completed. Otherwise raises `SettingsError`. Raises `LakeCorruptedError` if the catalog cannot be
    read.
    """
    sql = "SELECT snapshot, epoch_us(published_at), complete FROM meta.snapshots ORDER BY snapshot"
    try:
        with open_read_only(layout.catalog) as db:
            rows: list[tuple[int, int, bool]] = db.execute(sql).fetchall()
    except duckdb.Error as error:
        raise LakeCorruptedError(f"{layout.catalog.name} cannot be read.") from error
    published = {number: since for number, since, _ in rows}
    numbers = [number for number, _ in list_snapshots(layout) if number in published]
    number = max((number for number, since in published.items() if since <= at), default=0)
    if number in numbers:
        return number, ""
    if not numbers:
        raise SettingsError("No snapshot is kept.", hint="Run `scanlake sync` first.")
    if or_other:
        first = next((number for number, _, complete in rows if complete), rows[0][0])
        earlier = [older for older in numbers if older < number] or [first] * (not number and first in numbers)
        if earlier:
            why = "the snapshot of that time is not kept" if number else "the lake is younger than that"
            since = f"snapshot {earlier[-1]} of {_format_instant(published[earlier[-1]])}"
            return earlier[-1], f"{why}: changes since {since}"
    raise SettingsError(
        f"The snapshot of {_format_instant(at)} is not kept: the oldest is {numbers[0]}, published"
        f" {_format_instant(published[numbers[0]])}.",
        hint=f"Use --since {numbers[0]}. keep_snapshots and keep_daily set which are kept.",
    )


def _format_instant(at: int) -> str:
    return f"{to_datetime(at):%Y-%m-%dT%H:%M:%SZ}"


def _damaged_parts(layout: LakeLayout, contents: SnapshotContents, *, current: Sequence[Part]) -> list[str]:
    """Return the names of the snapshot's parts that are not current and have another hash: `check` left them out."""
    restored = set(contents.parts).difference(current)
    return sorted(part.name for part in restored if sha256_file(layout.part_path(part.name)) != part.sha256)


# Differences


@dataclass(frozen=True, slots=True)
class Change:
    """A file that differs between two snapshots; `updated_at` of the later one that has it, in microseconds.

    `columns` has those that differ in a changed file, as table.column; a table alone if it has more or fewer rows.
    """

    change: str
    file_id: int
    scan_code: str | None
    updated_at: int | None
    columns: tuple[str, ...] = ()


def diff_snapshots(before: Path, later: Path, *, with_columns: bool = False) -> Iterator[Change]:
    """Yield the files that were added, changed or deleted from one catalog to another, by id.

    Raises `LakeCorruptedError` when one cannot be read. `with_columns`: compare the rows of changed files.
    """
    with _open_memory_db() as db:
        for name, path in (("before", before), ("later", later)):
            db.execute(f"ATTACH {sql_literal(str(path))} AS {name} (READ_ONLY)")
            db.execute(f"CREATE VIEW {name}_version AS {_VERSIONS_SQL.format(name)}")
        result = db.execute(
            "SELECT CASE WHEN b.file_id IS NULL OR b.deleted THEN 'added' WHEN l.file_id IS NULL OR l.deleted"
            " THEN 'deleted' ELSE 'changed' END, file_id, if(l.file_id IS NULL, b.scan_code, l.scan_code),"
            " epoch_us(if(l.file_id IS NULL, b.updated_at, l.updated_at))"
            " FROM before_version AS b FULL JOIN later_version AS l USING (file_id)"
            " WHERE (b.deleted, b._fetched_at, b._run_id) IS DISTINCT FROM (l.deleted, l._fetched_at, l._run_id)"
            " AND NOT (coalesce(b.deleted, true) AND coalesce(l.deleted, true)) ORDER BY 2"
        )
        while rows := result.fetchmany(_BATCH_ROWS):
            changes = [Change(*row) for row in rows]
            file_ids = [change.file_id for change in changes if with_columns and change.change == "changed"]
            columns = find_differing_columns(db.cursor(), file_ids) if file_ids else {}
            yield from (replace(change, columns=tuple(columns.get(change.file_id, ()))) for change in changes)


_VERSIONS_SQL: Final = (
    "SELECT file_id, scan_code, updated_at, _fetched_at, _run_id, false AS deleted FROM {0}.files UNION ALL"
    " SELECT file_id, scan_code, updated_at, _fetched_at, _run_id, true FROM {0}.deleted_files"
)


@contextmanager
def _open_memory_db() -> Iterator[duckdb.DuckDBPyConnection]:
    try:
        with duckdb.connect(":memory:") as db:
            db.execute("SET enable_progress_bar = false")
            yield db
    except duckdb.IOException as error:
        raise LakeCorruptedError("A snapshot, or a part of it, cannot be read.") from error


def _create_version_table(
    db: duckdb.DuckDBPyConnection, layout: LakeLayout, contents: SnapshotContents, name: str
) -> None:
    """Create the table `name`: the snapshot's version of each file, one row per file; instants in microseconds."""
    db.register("superseded", contents.superseded)
    selects = [
        f"SELECT file_id, {COMMIT_SEQ_COLUMN} AS commit_seq, epoch_us(updated_at) AS updated_at,"
        " epoch_us(_fetched_at) AS fetched_at, _run_id AS run_id, scan_code,"
        f" {instance} AS instance_id, {deleted} AS deleted"
        f" FROM {_read_parquet_sql(layout, contents, table)} ANTI JOIN superseded USING (file_id, {COMMIT_SEQ_COLUMN})"
        for table, instance, deleted in (
            (FILES.name, "instance_file_id", "false"),
            (DELETED_FILES.name, "NULL::BIGINT", "true"),
        )
    ]
    db.execute(f"CREATE TABLE {name} AS {' UNION ALL BY NAME '.join(selects)}")
    db.unregister("superseded")


def _read_parquet_sql(layout: LakeLayout, contents: SnapshotContents, table: str) -> str:
    paths = [layout.part_path(part.name) for part in contents.parts if part.table_name == table]
    return read_parts_sql(BY_NAME[table].arrow, paths)


# Rollback


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


def read_restorable(lake: Lake, number: int) -> SnapshotContents:
    """Return the contents of a snapshot for `roll_back`.

    Raises `SettingsError` when that snapshot, or one of its parts, is not kept.
    """
    layout, ledger = lake.layout, lake.ledger
    properties = ledger.properties
    if properties.purge_in_progress is not None:
        raise SettingsError(
            "A purge was killed before its end, and an earlier snapshot would restore the purged files.",
            hint="Run `scanlake sync` first: it finishes the purge.",
        )
    contents = read_snapshot(require_snapshot(layout, number))
    if missing := missing_parts(layout, contents) or _damaged_parts(layout, contents, current=ledger.parts()):
        raise SettingsError(
            f"Snapshot {number} cannot be restored: {missing[0]} has expired or is damaged.",
            hint="Run `scanlake snapshots` for a list of the kept ones; retention_hours sets how long parts stay.",
        )
    if (properties.identity == "file_id") is not contents.by_instance:
        raise SettingsError(
            f"Snapshot {number} has another key of files (see meta.schema_drift).",
            hint="Open its file for reading, or use a later snapshot.",
        )
    return contents


def roll_back(lake: Lake, contents: SnapshotContents, *, run: RunRecord) -> SnapshotRecord:
    """Publish the contents of an earlier snapshot as a new snapshot, and pause syncing."""
    layout, ledger = lake.layout, lake.ledger
    with _open_memory_db() as snapshot_db:
        _create_version_table(snapshot_db, layout, contents, "versions")
        definitions = snapshot_db.execute(
            f"SELECT _definition_hash, min({COMMIT_SEQ_COLUMN})"
            f" FROM {_read_parquet_sql(layout, contents, WORKFLOW_DEFINITIONS.name)} GROUP BY ALL"
        ).fetchall()
        with ledger.transaction() as db:
            _restore_versions(db, snapshot_db, contents)
            _restore_parts(db, contents, at=run.started_at)
            db.execute("DELETE FROM definition")
            insert_all(db, "definition", ("hash", "commit_seq"), definitions)
            _restore_coverage(db, contents)
            ledger_writes.require_publish(db)
            set_properties(db, rollback_pause={"to": contents.snapshot, "snapshot": ledger.next_snapshot()})
            insert(db, "run", asdict(run))
    record = lake.publish(run.run_id, at=run.started_at, complete=contents.complete, watermark=contents.watermark)
    ledger.update_run(run.run_id, snapshot=record.snapshot)
    return record


def _restore_versions(
    db: sqlite3.Connection, snapshot_db: duckdb.DuckDBPyConnection, contents: SnapshotContents
) -> None:
    """Make the versions of the snapshot the current ones.

    A version that is current now keeps its record. Of another version only its row is known, so it is not stable:
    it is never a reason to skip its file.
    """
    columns = ("file_id", "commit_seq", "deleted", "updated_at", "fetched_at", "instance_id", "run_id")
    db.execute(
        "CREATE TEMP TABLE restored (file_id INTEGER PRIMARY KEY, commit_seq INTEGER, deleted INTEGER,"
        " updated_at INTEGER, fetched_at INTEGER, instance_id INTEGER, run_id TEXT)"
    )
    result = snapshot_db.execute(f"SELECT {', '.join(columns)} FROM versions")
    while rows := result.fetchmany(_BATCH_ROWS):
        insert_all(db, "temp.restored", columns, rows)
    # Later versions older than the watermark are in no window of the next run: they are queued.
    db.execute(
        "INSERT OR REPLACE INTO refetch_queue (file_id, updated_at) SELECT v.file_id, v.updated_at"
        " FROM file_version AS v LEFT JOIN temp.restored AS r ON r.file_id = v.file_id"
        " WHERE r.commit_seq IS NOT v.commit_seq AND (v.updated_at IS NULL OR v.updated_at < ?)",
        (contents.watermark or 0,),
    )
    db.execute("DELETE FROM file_version WHERE file_id NOT IN (SELECT file_id FROM temp.restored)")
    db.execute(
        "INSERT OR REPLACE INTO file_version (file_id, commit_seq, deleted, updated_at, fetched_at, digest,"
        " fetch_signature, is_stable, instance_id, run_id) SELECT r.file_id, r.commit_seq, r.deleted, r.updated_at,"
        " coalesce(r.fetched_at, 0), x'', '', 0, r.instance_id, coalesce(r.run_id, '') FROM temp.restored AS r"
        " LEFT JOIN file_version AS v ON v.file_id = r.file_id"
        " WHERE v.commit_seq IS NOT r.commit_seq OR v.deleted IS NOT r.deleted"
    )
    db.execute("DROP TABLE temp.restored")
    db.execute("DELETE FROM superseded_version")
    for start in range(0, contents.superseded.num_rows, _BATCH_ROWS):
        batch = contents.superseded.slice(start, _BATCH_ROWS)
        pairs = zip(batch.column(COMMIT_SEQ_COLUMN).to_pylist(), batch.column("file_id").to_pylist(), strict=True)
        insert_all(db, "superseded_version", ("commit_seq", "file_id"), pairs)


def _restore_parts(db: sqlite3.Connection, contents: SnapshotContents, *, at: int) -> None:
    """Make the snapshot's parts the current ones; retire later ones, so that a roll forward finds them."""
    names = {part.name for part in contents.parts}
    later = {row["name"] for row in db.execute("SELECT name FROM part")} - names
    ledger_writes.replace_parts(db, later, (), at=at)
    db.executemany("DELETE FROM retired_part WHERE name = ?", [(name,) for name in names])
    db.execute("DELETE FROM part")
    insert_all(db, "part", PART_COLUMNS, map(astuple, contents.parts))


def _restore_coverage(db: sqlite3.Connection, contents: SnapshotContents) -> None:
    """Restore the snapshot's watermark as coverage, and make a verify due."""
    if contents.watermark is None:
        ledger_writes.set_coverage(db, [])
        set_properties(db, watermark=None, last_verify_at=None)
        return
    watermark = contents.watermark // SECOND
    ledger_writes.set_coverage(db, [(None, watermark)])
    # Later deletions are in no list: only a verify finds them again.
    set_properties(db, watermark=watermark, lookback_due=True, last_verify_at=None, unverified_since=1)
