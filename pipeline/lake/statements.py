"""The statements that a commit consists of. Each runs inside the ledger's transaction."""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from schemas.versions import digest

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from pipeline.lake.records import Commit, Part


_MOST_DRIFT: Final = 2_000

_LONGEST_NAME: Final = 1_000
_MOST_NAMES: Final = 2_000


def set_coverage(db: sqlite3.Connection, coverage: Sequence[tuple[int | None, int | None]]) -> None:
    """Replace the coverage."""
    db.execute("DELETE FROM coverage")
    db.executemany("INSERT INTO coverage VALUES (?, ?)", coverage)


def set_fact(db: sqlite3.Connection, name: str, value: Any) -> None:
    """Record a fact about the lake as a whole."""
    db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, json.dumps(value)))


def insert(db: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    """Insert a row given by column."""
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join(f":{name}" for name in row)
    db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row)


def write_files(db: sqlite3.Connection, commit: Commit) -> None:
    """Make a commit's versions and tombstones the ones that count."""
    digests = commit.digests
    if digests is None:
        digests = [digest(version.list_item or b"") for version in commit.versions]
    shapes = {(commit.run_id, version.shape) for version in commit.versions}
    db.executemany("INSERT OR IGNORE INTO shape VALUES (?, ?)", shapes)
    gone = [(tombstone.file_id,) for tombstone in commit.tombstones]
    touched = [(version.file_id,) for version in commit.versions] + gone
    # Whatever a file had before, in whichever table, counts no more: the child sets are replaced whole.
    db.executemany("INSERT OR IGNORE INTO dead SELECT seq, file_id FROM file_version WHERE file_id = ?", touched)
    db.executemany(
        "INSERT OR REPLACE INTO file_version (file_id, seq, deleted, updated_at, fetched_at, digest, shape, settled,"
        " instance, run_id) VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?)",
        [
            (v.file_id, commit.seq, v.updated_at, v.fetched_at, said, v.shape, v.settled, v.instance, commit.run_id)
            for v, said in zip(commit.versions, digests, strict=True)
        ],
    )
    db.executemany(
        # One that the lake never held is known from now on: else nothing would take it out of deleted_files again.
        "INSERT INTO file_version (file_id, seq, deleted, fetched_at, digest, shape, settled, run_id)"
        " VALUES (?, ?, 1, ?, x'', '', 0, ?) ON CONFLICT (file_id) DO UPDATE SET"
        " seq = excluded.seq, deleted = 1, settled = 0, run_id = excluded.run_id",
        [(each.file_id, commit.seq, each.found_gone_at, commit.run_id) for each in commit.tombstones],
    )
    db.executemany("DELETE FROM owed WHERE file_id = ?", [*touched, *((each,) for each in commit.healed)])
    db.executemany("INSERT OR REPLACE INTO owed VALUES (?, ?)", commit.owed)


def replace_parts(db: sqlite3.Connection, old: Sequence[Part], new: Sequence[Part], *, at: int) -> None:
    """Let new parts stand for old ones, which are retired."""
    shown = int(db.execute("SELECT coalesce(max(snapshot), 0) FROM snapshot").fetchone()[0])
    for part in old:
        db.execute("DELETE FROM part WHERE name = ?", (part.name,))
        db.execute("INSERT INTO retired VALUES (?, ?, ?)", (part.name, at, shown))
    for part in new:
        insert(db, "part", asdict(part))


def write_rejects(db: sqlite3.Connection, commit: Commit) -> None:
    """Record a commit's rejects, and forget those it healed."""
    healed = {version.file_id for version in commit.versions}
    healed |= set(commit.healed)
    healed |= {tombstone.file_id for tombstone in commit.tombstones}
    healed -= {reject.file_id for reject in commit.rejects if reject.file_id is not None}
    db.executemany("DELETE FROM reject WHERE file_id = ?", [(each,) for each in healed])
    for reject in commit.rejects:
        key = f"file {reject.file_id}" if reject.file_id is not None else _document_key(reject.document)
        db.execute(
            "INSERT INTO reject VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (reject_key) DO UPDATE SET"
            " reason = excluded.reason, document = excluded.document, run_id = excluded.run_id,"
            " last_tried_at = excluded.last_tried_at, tries = tries + 1",
            (
                key, reject.file_id, reject.reason, reject.document, *reject.window,
                commit.run_id, commit.at, commit.at, reject.tries,
            ),
        )  # fmt: skip


def _document_key(document: bytes) -> str:
    return f"document {blake2b(document, digest_size=16).hexdigest()}"


def write_names(db: sqlite3.Connection, commit: Commit) -> None:
    """Count the names that a commit's rows go by. A service that names every row differently is not followed."""
    for (table, name), count in (commit.names or {}).items():
        if len(name) <= _LONGEST_NAME:
            known = db.execute(
                "UPDATE wide_name SET count = count + ? WHERE table_name = ? AND name = ?", (count, table, name)
            ).rowcount
            if not known:
                db.execute(
                    "INSERT INTO wide_name SELECT ?, ?, ?"
                    " WHERE (SELECT count(*) FROM wide_name WHERE table_name = ?) < ?",
                    (table, name, count, table, _MOST_NAMES),
                )


def write_drift(db: sqlite3.Connection, commit: Commit) -> None:
    """Count what a commit met that the schema did not foresee."""
    known = {tuple(row) for row in db.execute("SELECT table_name, key, kind FROM drift")}
    for (table, key, kind), count in (commit.drift or {}).items():
        # A service that invents keys without end must not fill the ledger; `extra` holds them all.
        named = key if (table, key, kind) in known or len(known) < _MOST_DRIFT else "(other keys)"
        known.add((table, named, kind))
        count_drift(db, (table, named, kind), count, commit.run_id, commit.at)


def count_drift(db: sqlite3.Connection, key: tuple[str, str, str], count: int, run_id: str, at: int) -> None:
    """Count one kind of drift: (table, key, kind)."""
    db.execute(
        "INSERT INTO drift VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " count = count + excluded.count, last_run_id = excluded.last_run_id, last_seen_at = excluded.last_seen_at",
        (*key, count, run_id, run_id, at, at),
    )
