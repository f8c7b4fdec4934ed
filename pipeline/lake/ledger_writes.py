"""Statements that change the ledger. Each runs inside a transaction of the caller."""

from __future__ import annotations

import json
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from pipeline.lake.models import LakeProperties

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence

    from pipeline.lake.models import Commit, Part

_PROPERTIES: Final = frozenset(LakeProperties.__struct_fields__)
_MAX_VALUES: Final = 900  # of one statement; old versions of SQLite allow 999
_MAX_DRIFT_KEYS: Final = 2_000


# Rows


def insert(db: sqlite3.Connection, table: str, row: Mapping[str, Any], *, on_conflict: str = "ABORT") -> None:
    """Insert a row, given as {column: value}. `on_conflict` is ABORT, IGNORE or REPLACE."""
    insert_all(db, table, tuple(row), [tuple(row.values())], on_conflict=on_conflict)


def insert_all(
    db: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    on_conflict: str = "ABORT",
) -> None:
    """Insert rows whose values are in the order of `columns`. `on_conflict` is ABORT, IGNORE or REPLACE.

    Some rows at a time: after each statement this thread waits for the interpreter lock, which the fetch has.
    """
    start = f"INSERT OR {on_conflict} INTO {table} ({', '.join(columns)}) VALUES "
    marks = f"({', '.join('?' * len(columns))})"
    remaining = iter(rows)
    while chunk := list(islice(remaining, _MAX_VALUES // len(columns))):
        db.execute(start + ", ".join([marks] * len(chunk)), [value for row in chunk for value in row])


def update_run(db: sqlite3.Connection, run_id: str, columns: Mapping[str, Any]) -> None:
    """Change columns of a run, given as {column: value}."""
    assignments = ", ".join(f"{name} = :{name}" for name in columns)
    db.execute(f"UPDATE run SET {assignments} WHERE run_id = :run_id", {**columns, "run_id": run_id})


# Properties


def set_properties(db: sqlite3.Connection, **changes: Any) -> None:
    """Store properties of the lake, named as in `LakeProperties`. None deletes one."""
    if unknown := changes.keys() - _PROPERTIES:
        raise ValueError(f"LakeProperties has no field {sorted(unknown)}")
    for name, value in changes.items():
        if value is None:
            db.execute("DELETE FROM lake_property WHERE name = ?", (name,))
        else:
            insert(db, "lake_property", {"name": name, "value": json.dumps(value)}, on_conflict="REPLACE")


def next_commit_seq(db: sqlite3.Connection) -> int:
    """Return the number of the next commit."""
    rows = db.execute("SELECT value FROM lake_property WHERE name = 'next_commit_seq'").fetchall()
    return int(json.loads(rows[0][0])) if rows else 1


def require_publish(db: sqlite3.Connection, *, same_rows: bool = False) -> None:
    """Skip a commit number, so that the newest catalog is behind the ledger.

    Unless the current rows are the same, the catalog cannot be updated any more: it must be built again.
    """
    set_properties(db, next_commit_seq=next_commit_seq(db) + 1)
    if not same_rows:
        set_properties(db, has_unpublished_rows=True, delta_base=None)


def set_coverage(db: sqlite3.Connection, coverage: Sequence[tuple[int | None, int | None]]) -> None:
    """Replace the coverage."""
    db.execute("DELETE FROM coverage")
    insert_all(db, "coverage", ("start_second", "end_second"), coverage)


# Commits


def upsert_file_versions(db: sqlite3.Connection, commit: Commit) -> None:
    """Make the versions and tombstones of a commit the current ones."""
    deleted = [(tombstone.file_id,) for tombstone in commit.tombstones]
    file_ids = [(version.file_id,) for version in commit.versions] + deleted
    # The rows of the former version are no longer current, in any table: child rows are replaced as a set.
    supersede_file_versions(db, file_ids)
    seq, run_id = commit.commit_seq, commit.run_id
    db.executemany(
        "INSERT OR REPLACE INTO file_version (file_id, commit_seq, deleted, updated_at, fetched_at, digest,"
        " fetch_signature, is_stable, instance_id, run_id) VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?)",
        [
            (v.file_id, seq, v.updated_at, v.fetched_at, digest, v.fetch_signature, v.is_stable, v.instance, run_id)
            for v, digest in zip(commit.versions, commit.digests, strict=True)
        ],
    )
    db.executemany(
        # A file that the lake never had is inserted too: else its next version would leave it in deleted_files.
        "INSERT INTO file_version (file_id, commit_seq, deleted, fetched_at, digest, fetch_signature, is_stable,"
        " run_id) VALUES (?, ?, 1, ?, x'', '', 0, ?) ON CONFLICT (file_id) DO UPDATE SET"
        " commit_seq = excluded.commit_seq, deleted = 1, is_stable = 0, run_id = excluded.run_id",
        [(stone.file_id, seq, stone.deletion_detected_at, run_id) for stone in commit.tombstones],
    )
    resolved = [*file_ids, *((file_id,) for file_id in commit.resolved_files)]
    db.executemany("DELETE FROM refetch_queue WHERE file_id = ?", resolved)
    insert_all(db, "refetch_queue", ("file_id", "updated_at"), commit.refetch, on_conflict="REPLACE")


def set_pending_rows(db: sqlite3.Connection, commit: Commit) -> None:
    """Record whether rows of this commit, or of earlier ones, are not in parts yet."""
    if commit.rows_pending is False:
        set_properties(db, pending_rows_from=None)
    elif commit.rows_pending:
        row = {"name": "pending_rows_from", "value": json.dumps(commit.commit_seq)}
        insert(db, "lake_property", row, on_conflict="IGNORE")  # that of an earlier commit stays


def supersede_file_versions(db: sqlite3.Connection, file_ids: Sequence[tuple[int]]) -> None:
    """Record that the current versions of some files are superseded."""
    db.executemany(
        "INSERT OR IGNORE INTO superseded_version (commit_seq, file_id)"
        " SELECT commit_seq, file_id FROM file_version WHERE file_id = ?",
        file_ids,
    )


def insert_windows(db: sqlite3.Connection, commit: Commit) -> None:
    """Record the windows that a commit completes."""
    columns = ("run_id", "start_second", "end_second", "listed_at", "files", "is_consistent")
    rows = [(commit.run_id, w.start, w.end, w.listed_at, w.files, w.is_consistent) for w in commit.windows]
    insert_all(db, "read_window", columns, rows)


def replace_parts(db: sqlite3.Connection, old: Iterable[str], new: Iterable[Part], *, at: int) -> None:
    """Replace the parts named in `old`, which are retired, by new ones."""
    last_snapshot = int(db.execute("SELECT coalesce(max(snapshot), 0) FROM snapshot").fetchone()[0])
    names = list(old)
    db.executemany("DELETE FROM part WHERE name = ?", [(name,) for name in names])
    retired = [(name, at, last_snapshot) for name in names]
    insert_all(db, "retired_part", ("name", "retired_at", "last_snapshot"), retired, on_conflict="REPLACE")
    for part in new:
        insert(db, "part", asdict(part))


# Rejects, drift


def record_rejects(db: sqlite3.Connection, commit: Commit) -> None:
    """Record the rejects of a commit, and delete those that it resolves."""
    resolved = {version.file_id for version in commit.versions}.union(commit.resolved_files)
    resolved |= {tombstone.file_id for tombstone in commit.tombstones}
    resolved -= {reject.file_id for reject in commit.rejects if reject.file_id is not None}
    db.executemany("DELETE FROM reject WHERE file_id = ?", [(file_id,) for file_id in resolved])
    for reject in commit.rejects:
        digest = blake2b(reject.document, digest_size=16).hexdigest()
        key = f"document {digest}" if reject.file_id is None else f"file {reject.file_id}"
        attempt = (*reject.window, commit.run_id, commit.at, commit.at)
        db.execute(
            "INSERT INTO reject (reject_key, file_id, reason, document, start_second, end_second, run_id,"
            " first_seen_at, last_tried_at, attempts, is_list_item) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?)"
            " ON CONFLICT (reject_key) DO UPDATE SET"
            " reason = excluded.reason, document = excluded.document, run_id = excluded.run_id,"
            " last_tried_at = excluded.last_tried_at, attempts = attempts + 1, is_list_item = excluded.is_list_item",
            (key, reject.file_id, reject.reason, reject.document, *attempt, reject.is_list_item),
        )


def record_drift(db: sqlite3.Connection, commit: Commit) -> None:
    """Count the keys and values of a commit that the schema does not define."""
    known = {tuple(row) for row in db.execute("SELECT table_name, json_key, kind FROM schema_drift")}
    for (table, key, kind), count in (commit.drift or {}).items():
        # A service that invents keys without end must not fill the ledger; the column `extra` has them all.
        name = key if (table, key, kind) in known or len(known) < _MAX_DRIFT_KEYS else "(other keys)"
        known.add((table, name, kind))
        count_drift(db, (table, name, kind), count, commit.run_id, commit.at)


def count_drift(db: sqlite3.Connection, key: tuple[str, str, str], count: int, run_id: str, at: int) -> None:
    """Count one kind of drift: (table, key, kind)."""
    db.execute(
        "INSERT INTO schema_drift (table_name, json_key, kind, occurrences, first_run_id, last_run_id, first_seen_at,"
        " last_seen_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET occurrences = occurrences"
        " + excluded.occurrences, last_run_id = excluded.last_run_id, last_seen_at = excluded.last_seen_at",
        (*key, count, run_id, run_id, at, at),
    )
