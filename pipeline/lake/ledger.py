"""The ledger: what is true of the lake. SQLite, known to this module alone.

Parts are on disk before the ledger names them, and one transaction names them together with the progress
they vouch for; the catalog is only the ledger's published face.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import SettingsError, StorageError
from schemas.versions import digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from schemas.versions import Reject, Tombstone, Version

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Part:
    """A write-once Parquet file: its path below the lake's folder, what it holds, and the proof of it."""

    name: str
    table_name: str
    seq_low: int
    seq_high: int
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as it stands in `runs` and in meta.runs. Instants in microseconds UTC, None when not yet known."""

    run_id: str
    command: str
    version: str
    started_at: int
    state: str = "running"
    ended_at: int | None = None
    horizon: int | None = None
    files_listed: int = 0
    files_expanded: int = 0
    files_skipped: int = 0
    files_gone: int = 0
    rejects: int = 0
    requests_list: int = 0
    requests_detail: int = 0
    retries: int = 0
    seconds: float = 0.0
    snapshot: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FileState:
    """The latest version of a file."""

    file_id: int
    seq: int
    deleted: bool
    updated_at: int | None
    fetched_at: int
    digest: bytes
    shape: str
    settled: bool
    instance: int | None
    run_id: str
    detail_digest: bytes | None


@dataclass(frozen=True, slots=True)
class Verification:
    """What a verify found: counts of files, and the ids that differed (the first of each kind)."""

    run_id: str
    verified_at: int
    mode: str
    equal: bool
    horizon: int | None
    files_there: int
    files_here: int
    missing: int
    stale: int
    gone: int
    unlisted: int
    moving: int
    deep_checked: int
    deep_different: int
    unproven: int
    ids: str


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A published state of the lake. Instants in microseconds; `seq` is the last commit it shows."""

    snapshot: int
    published_at: int
    run_id: str
    complete: bool
    seq: int
    files: int
    horizon: int | None


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """A window that was read to its end; seconds since 1970, None for no bound."""

    start: int | None
    end: int | None
    listed_at: int
    files: int
    proven: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything that one transaction makes true together."""

    seq: int
    run_id: str
    at: int
    parts: Sequence[Part] = ()
    versions: Sequence[Version] = ()
    tombstones: Sequence[Tombstone] = ()
    rejects: Sequence[Reject] = ()
    drift: Mapping[tuple[str, str, str], int] | None = None
    definitions: Sequence[str] = ()
    windows: Sequence[WindowRecord] = ()
    coverage: Sequence[tuple[int | None, int | None]] | None = None
    settled_rejects: Sequence[int] = ()


class Ledger:
    """One writer, on any thread, one at a time."""

    def __init__(self, path: Path) -> None:
        """Open the ledger, or make it. Raises `SettingsError` for one written by a newer scanlake."""
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found == 0:
                self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise StorageError(f"ledger.sqlite: {error}") from error
        self._reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._reader.row_factory = sqlite3.Row
        if found > FORMAT:
            self.close()
            raise SettingsError(
                f"the lake was written by a newer scanlake (ledger format {found}, this one knows {FORMAT})",
                remedy="Use the newer scanlake; nothing was touched.",
            )

    def close(self) -> None:
        """Close the ledger."""
        with self._lock, self._reading:
            self._reader.close()
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, durable when it returns. Raises `StorageError` when the disk will not have it."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            except sqlite3.OperationalError as error:
                raise StorageError(f"ledger.sqlite: {error}") from error

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Rows of a question to the ledger."""
        with self._lock:
            return self._db.execute(sql, parameters).fetchall()

    # Single facts

    def fact(self, name: str, default: Any = None) -> Any:
        """A fact about the lake as a whole, as JSON holds it."""
        rows = self.query("SELECT value FROM fact WHERE name = ?", (name,))
        return json.loads(rows[0]["value"]) if rows else default

    def set_fact(self, name: str, value: Any) -> None:
        """Record a fact about the lake as a whole."""
        with self.transaction() as db:
            _set_fact(db, name, value)

    # Files

    def states(self, file_ids: Sequence[int]) -> dict[int, FileState]:
        """The latest versions of some files."""
        if not file_ids:
            return {}
        marks = ",".join("?" * len(file_ids))
        # On a connection of its own: a commit that waits for the disk does not hold up the crawl.
        with self._reading:
            found = self._reader.execute(f"SELECT * FROM file_version WHERE file_id IN ({marks})", list(file_ids))
            rows = found.fetchall()
        return {row["file_id"]: FileState(**{**dict(row), **_booleans(row)}) for row in rows}

    def known_definitions(self) -> frozenset[str]:
        """Content hashes of the workflow definitions that the lake holds."""
        return frozenset(row["hash"] for row in self.query("SELECT hash FROM definition"))

    def coverage(self) -> tuple[tuple[int | None, int | None], ...]:
        """Spans of update time, in seconds, that the lake holds whole."""
        rows = self.query("SELECT low, high FROM coverage ORDER BY low IS NOT NULL, low")
        return tuple((row["low"], row["high"]) for row in rows)

    # Writing

    def next_seq(self) -> int:
        """The number of the next commit. A number is never used twice."""
        return int(self.fact("next_seq", 1))

    def begin_run(self, run: RunRecord) -> None:
        """Record that a run has begun; one that was still running was killed."""
        with self.transaction() as db:
            db.execute("UPDATE run SET state = 'interrupted', error = 'killed' WHERE state = 'running'")
            _insert(db, "run", asdict(run))

    def update_run(self, run_id: str, **facts: Any) -> None:
        """Record how a run stands."""
        unknown = facts.keys() - {field.name for field in fields(RunRecord)}
        if unknown:
            raise ValueError(f"not facts of a run: {sorted(unknown)}")
        assignments = ", ".join(f"{name} = :{name}" for name in facts)
        with self.transaction() as db:
            db.execute(f"UPDATE run SET {assignments} WHERE run_id = :run_id", {**facts, "run_id": run_id})

    def commit(self, commit: Commit) -> None:
        """Make a commit true."""
        with self.transaction() as db:
            _set_fact(db, "next_seq", max(commit.seq + 1, self.next_seq()))
            for part in commit.parts:
                _insert(db, "part", asdict(part))
            _write_files(db, commit)
            db.executemany(
                "INSERT OR IGNORE INTO definition VALUES (?, ?)",
                [(each, commit.seq) for each in commit.definitions],
            )
            _write_rejects(db, commit)
            _write_drift(db, commit)
            db.executemany(
                "INSERT INTO window VALUES (?, ?, ?, ?, ?, ?)",
                [(commit.run_id, w.start, w.end, w.listed_at, w.files, w.proven) for w in commit.windows],
            )
            if commit.coverage is not None:
                _set_coverage(db, commit.coverage)

    def begin_snapshot(self, run_id: str, at: int, *, complete: bool, horizon: int | None) -> SnapshotRecord:
        """Take the next snapshot's number. Until `end_snapshot` the catalog is behind the ledger."""
        with self.transaction() as db:
            number = int(db.execute("SELECT coalesce(max(snapshot), 0) + 1 FROM snapshot").fetchone()[0])
            files = int(db.execute("SELECT count(*) FROM file_version WHERE NOT deleted").fetchone()[0])
            record = SnapshotRecord(number, at, run_id, complete, self.next_seq() - 1, files, horizon)
            db.execute("UPDATE snapshot SET state = 'abandoned' WHERE state = 'building'")
            _insert(db, "snapshot", {**asdict(record), "state": "building"})
        return record

    def end_snapshot(self, number: int) -> None:
        """Record that the snapshot is what readers see."""
        with self.transaction() as db:
            db.execute("UPDATE snapshot SET state = 'published' WHERE snapshot = ?", (number,))

    def parts(self) -> list[Part]:
        """The parts that hold rows, oldest first."""
        names = ", ".join(field.name for field in fields(Part))
        return [Part(**dict(row)) for row in self.query(f"SELECT {names} FROM part ORDER BY seq_low, name")]

    def dirty_parts(self) -> frozenset[str]:
        """Names of the parts that hold rows of versions that count no more."""
        rows = self.query(
            "SELECT name FROM part WHERE EXISTS"
            " (SELECT 1 FROM dead WHERE dead.seq BETWEEN part.seq_low AND part.seq_high)"
        )
        return frozenset(row["name"] for row in rows)

    def record_verification(self, found: Verification) -> None:
        """Record what a verify found, and when."""
        with self.transaction() as db:
            _insert(db, "verification", asdict(found))
            _set_fact(db, "last_verify_at", found.verified_at)

    def live_files(self) -> Iterator[tuple[int, int | None]]:
        """Every file that the lake holds and has not found deleted, by id: (id, updated_at in microseconds)."""
        last = -(2**63)
        while True:
            rows = self.query(
                "SELECT file_id, updated_at FROM file_version WHERE file_id > ? AND NOT deleted"
                " ORDER BY file_id LIMIT 50000",
                (last,),
            )
            yield from ((row["file_id"], row["updated_at"]) for row in rows)
            if not rows:
                return
            last = rows[-1]["file_id"]

    def next_snapshot(self) -> int:
        """The number that the next snapshot will have."""
        return int(self.query("SELECT coalesce(max(snapshot), 0) + 1 AS n FROM snapshot")[0]["n"])

    def set_coverage(self, coverage: Sequence[tuple[int | None, int | None]]) -> None:
        """Record which spans of update time the lake holds whole."""
        with self.transaction() as db:
            _set_coverage(db, coverage)

    def is_ahead(self) -> bool:
        """Whether something was committed that the catalog does not show yet."""
        rows = self.query("SELECT seq FROM snapshot WHERE state = 'published' ORDER BY snapshot DESC LIMIT 1")
        if not rows:
            return True
        return int(rows[0]["seq"]) < self.next_seq() - 1

    def switch_identity(self, run_id: str, at: int) -> None:
        """Make the instance the key of a file: every row keyed by the shared id goes, the crawl begins anew."""
        with self.transaction() as db:
            _set_fact(db, "identity", "file_id")
            db.execute("INSERT OR IGNORE INTO dead SELECT seq, file_id FROM file_version")
            db.execute("DELETE FROM file_version")
            db.execute("DELETE FROM coverage")
            _count_drift(db, ("files", "file_id", "identity"), 1, run_id, at)
            # The parts are the same but what counts in them is not: the catalog must follow.
            _set_fact(db, "next_seq", self.next_seq() + 1)


def _set_coverage(db: sqlite3.Connection, coverage: Sequence[tuple[int | None, int | None]]) -> None:
    db.execute("DELETE FROM coverage")
    db.executemany("INSERT INTO coverage VALUES (?, ?)", coverage)


def _set_fact(db: sqlite3.Connection, name: str, value: Any) -> None:
    db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, json.dumps(value)))


def _insert(db: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join(f":{name}" for name in row)
    db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row)


def _booleans(row: sqlite3.Row) -> dict[str, bool]:
    return {"deleted": bool(row["deleted"]), "settled": bool(row["settled"])}


def _write_files(db: sqlite3.Connection, commit: Commit) -> None:
    gone = [(tombstone.file_id,) for tombstone in commit.tombstones]
    touched = [(version.file_id,) for version in commit.versions] + gone
    # Whatever a file had before, in whichever table, counts no more: the child sets are replaced whole.
    db.executemany("INSERT OR IGNORE INTO dead SELECT seq, file_id FROM file_version WHERE file_id = ?", touched)
    db.executemany(
        "INSERT OR REPLACE INTO file_version (file_id, seq, deleted, updated_at, fetched_at, digest, shape, settled,"
        " instance, run_id, detail_digest) VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                v.file_id,
                commit.seq,
                v.updated_at,
                v.fetched_at,
                v.digest,
                v.shape,
                v.settled,
                v.instance,
                commit.run_id,
                None if v.detail is None else digest(v.detail),
            )
            for v in commit.versions
        ],
    )
    db.executemany(
        "UPDATE file_version SET seq = ?, deleted = 1, settled = 0, run_id = ? WHERE file_id = ?",
        [(commit.seq, commit.run_id, *each) for each in gone],
    )


def _write_rejects(db: sqlite3.Connection, commit: Commit) -> None:
    healed = {version.file_id for version in commit.versions if version.detail is not None}
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


def _write_drift(db: sqlite3.Connection, commit: Commit) -> None:
    for key, count in (commit.drift or {}).items():
        _count_drift(db, key, count, commit.run_id, commit.at)


def _count_drift(db: sqlite3.Connection, key: tuple[str, str, str], count: int, run_id: str, at: int) -> None:
    db.execute(
        "INSERT INTO drift VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " count = count + excluded.count, last_run_id = excluded.last_run_id, last_seen_at = excluded.last_seen_at",
        (*key, count, run_id, run_id, at, at),
    )


_SCHEMA: Final = resources.files(__package__).joinpath("ledger.sql").read_text("utf-8")
