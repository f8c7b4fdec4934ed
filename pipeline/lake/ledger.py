"""The ledger: what is true of the lake. SQLite, known to this module alone.

Parts are on disk before the ledger names them, and one transaction names them together with the progress
they vouch for; the catalog is only the ledger's published face.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing, contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pipeline.errors import LakeDamaged, StorageError
from pipeline.lake.formats import bring_up, refuse_newer
from pipeline.lake.records import FileState, Part, RunRecord, SnapshotRecord
from pipeline.lake.statements import (
    count_drift,
    insert,
    replace_parts,
    set_coverage,
    set_fact,
    write_drift,
    write_files,
    write_names,
    write_rejects,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from pipeline.lake.records import Commit, Verification


_STATE: Final = ", ".join(field.name for field in fields(FileState))


class Ledger:
    """One writer, on any thread, one at a time."""

    def __init__(self, path: Path) -> None:
        """Open the ledger, or make it. Raises `SettingsError` for one written by a newer scanlake."""
        self._lock = threading.RLock()
        self._reading = threading.Lock()
        refuse_newer(path)
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            bring_up(self._db)
            self._reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
            self._reader.row_factory = sqlite3.Row
        except sqlite3.Error as error:
            raise _told(error) from error

    def close(self) -> None:
        """Close the ledger."""
        with self._lock, self._reading:
            self._reader.close()
            self._db.close()

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy of the ledger to a new file."""
        with self._lock:
            try:
                with closing(sqlite3.connect(path)) as copy:
                    self._db.backup(copy)
            except sqlite3.DatabaseError as error:
                raise _told(error) from error

    def overwrite_free_space(self) -> None:
        """Leave nothing on disk of rows that were deleted: neither in the ledger's file nor in its log."""
        with self._lock, self._reading:
            try:
                for statement in ("PRAGMA secure_delete = ON", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                    self._db.execute(statement).fetchall()
            except sqlite3.DatabaseError as error:
                raise _told(error) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, durable when it returns. Raises `StorageError` when the disk will not have it."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                except BaseException:
                    if self._db.in_transaction:  # a full disk has ended it already
                        self._db.execute("ROLLBACK")
                    raise
                try:
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:  # or else every later one would fail
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.DatabaseError as error:
                raise _told(error) from error

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Rows of a question to the ledger."""
        with self._lock:
            try:
                return self._db.execute(sql, parameters).fetchall()
            except sqlite3.DatabaseError as error:
                raise _told(error) from error

    # Single facts

    def fact(self, name: str, default: Any = None) -> Any:
        """A fact about the lake as a whole, as JSON holds it."""
        rows = self.query("SELECT value FROM fact WHERE name = ?", (name,))
        return json.loads(rows[0]["value"]) if rows else default

    def set_fact(self, name: str, value: Any) -> None:
        """Record a fact about the lake as a whole."""
        with self.transaction() as db:
            set_fact(db, name, value)

    # Files

    def states(self, file_ids: Sequence[int]) -> dict[int, FileState]:
        """The latest versions of some files."""
        if not file_ids:
            return {}
        marks = ",".join("?" * len(file_ids))
        # On a connection of its own: a commit that waits for the disk does not hold up the crawl.
        with self._reading:
            question = f"SELECT {_STATE} FROM file_version WHERE file_id IN ({marks})"
            try:
                rows = self._reader.execute(question, list(file_ids)).fetchall()
            except sqlite3.DatabaseError as error:
                raise _told(error) from error
        return {row["file_id"]: FileState(**{**dict(row), **_booleans(row)}) for row in rows}

    def count_files(self) -> int:
        """How many files it has ever held, those found deleted included."""
        return int(self.query("SELECT count(*) AS n FROM file_version")[0]["n"])

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
            insert(db, "run", asdict(run))

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
            set_fact(db, "next_seq", max(commit.seq + 1, self.next_seq()))
            for part in commit.parts:
                insert(db, "part", asdict(part))
            write_files(db, commit)
            db.executemany(
                "INSERT OR IGNORE INTO definition VALUES (?, ?)",
                [(each, commit.seq) for each in commit.definitions],
            )
            write_rejects(db, commit)
            write_drift(db, commit)
            write_names(db, commit)
            db.executemany(
                "INSERT INTO window VALUES (?, ?, ?, ?, ?, ?)",
                [(commit.run_id, w.start, w.end, w.listed_at, w.files, w.proven) for w in commit.windows],
            )
            if commit.coverage is not None:
                set_coverage(db, commit.coverage)

    def begin_snapshot(self, run_id: str, at: int, *, complete: bool, horizon: int | None) -> SnapshotRecord:
        """Take the next snapshot's number. Until `end_snapshot` the catalog is behind the ledger."""
        with self.transaction() as db:
            number = int(db.execute("SELECT coalesce(max(snapshot), 0) + 1 FROM snapshot").fetchone()[0])
            files = int(db.execute("SELECT count(*) FROM file_version").fetchone()[0])
            files -= int(db.execute("SELECT count(*) FROM file_version WHERE deleted").fetchone()[0])  # by an index
            record = SnapshotRecord(number, at, run_id, complete, self.next_seq() - 1, files, horizon)
            db.execute("UPDATE snapshot SET state = 'abandoned' WHERE state = 'building'")
            insert(db, "snapshot", {**asdict(record), "state": "building"})
        return record

    def end_snapshot(self, number: int, sha256: str | None = None) -> None:
        """Record that the snapshot is what readers see, and the hash of its file."""
        with self.transaction() as db:
            db.execute("UPDATE snapshot SET state = 'published', sha256 = ? WHERE snapshot = ?", (sha256, number))

    def last_snapshot(self) -> SnapshotRecord | None:
        """The snapshot that readers see, or None before the first."""
        names = ", ".join(field.name for field in fields(SnapshotRecord))
        rows = self.query(f"SELECT {names} FROM snapshot WHERE state = 'published' ORDER BY snapshot DESC LIMIT 1")
        return SnapshotRecord(**{**dict(rows[0]), "complete": bool(rows[0]["complete"])}) if rows else None

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

    def dead(self, seqs: Collection[int]) -> set[tuple[int, int]]:
        """The versions of some commits that count no more while parts hold their rows: (file, seq)."""
        marks = ",".join("?" * len(seqs))
        rows = self.query(f"SELECT file_id, seq FROM dead WHERE seq IN ({marks})", list(seqs))
        return {(row["file_id"], row["seq"]) for row in rows}

    def record_verification(self, found: Verification) -> None:
        """Record what a verify found, and when."""
        with self.transaction() as db:
            insert(db, "verification", asdict(found))
            set_fact(db, "last_verify_at", found.verified_at)

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

    def live_seqs(self) -> list[tuple[int, int]]:
        """Every file that the lake holds and has not found deleted, by commit: (id, seq)."""
        found = self.query("SELECT file_id, seq FROM file_version WHERE NOT deleted ORDER BY seq, file_id")
        return [(row["file_id"], row["seq"]) for row in found]

    def next_snapshot(self) -> int:
        """The number that the next snapshot will have."""
        return int(self.query("SELECT coalesce(max(snapshot), 0) + 1 AS n FROM snapshot")[0]["n"])

    def set_coverage(self, coverage: Sequence[tuple[int | None, int | None]]) -> None:
        """Record which spans of update time the lake holds whole."""
        with self.transaction() as db:
            set_coverage(db, coverage)

    def replace_parts(self, old: Sequence[Part], new: Sequence[Part], *, dead_span: tuple[int, int], at: int) -> int:
        """Let folded parts stand for others, which are retired. Returns how many dead versions are forgotten."""
        with self.transaction() as db:
            replace_parts(db, old, new, at=at)
            forgotten = db.execute("DELETE FROM dead WHERE seq BETWEEN ? AND ?", dead_span).rowcount
            set_fact(db, "next_seq", self.next_seq() + 1)  # the catalog must follow
        return int(forgotten)

    def retired(self) -> list[tuple[str, int, int]]:
        """Parts that no longer count: name, since when readers open no catalog that shows it, the last that does.

        A part is retired before the next catalog is there, by a whole compaction or a killed run: until then
        readers still begin with it, so its time of grace begins with that catalog.
        """
        rows = self.query(
            "SELECT name, last_snapshot, max(retired_at, coalesce((SELECT min(published_at) FROM snapshot"
            " WHERE state = 'published' AND snapshot > last_snapshot), retired_at)) AS since"
            " FROM retired ORDER BY since, name"
        )
        return [(row["name"], row["since"], row["last_snapshot"]) for row in rows]

    def forget_retired(self, names: Sequence[str]) -> None:
        """The files of these parts are removed."""
        with self.transaction() as db:
            db.executemany("DELETE FROM retired WHERE name = ?", [(name,) for name in names])

    def is_ahead(self) -> bool:
        """Whether something was committed that the catalog does not show yet."""
        rows = self.query("SELECT seq FROM snapshot WHERE state = 'published' ORDER BY snapshot DESC LIMIT 1")
        if not rows:
            return True
        return int(rows[0]["seq"]) < self.next_seq() - 1

    def has_versions_since(self, seq: int) -> bool:
        """Whether files came, changed or went after a commit."""
        return bool(self.query("SELECT 1 FROM file_version WHERE seq > ? LIMIT 1", (seq,)))

    def switch_identity(self, run_id: str, at: int) -> None:
        """Make the instance the key of a file: every row keyed by the shared id goes, the crawl begins anew."""
        with self.transaction() as db:
            set_fact(db, "identity", "file_id")
            db.execute("INSERT OR IGNORE INTO dead SELECT seq, file_id FROM file_version")
            db.execute("DELETE FROM file_version")
            db.execute("DELETE FROM coverage")
            # Everything is read again: no horizon holds, and what was owed or rejected under a shared id is no file.
            db.execute("DELETE FROM fact WHERE name = 'horizon'")
            db.execute("DELETE FROM owed")
            db.execute("DELETE FROM reject WHERE file_id IS NOT NULL")
            count_drift(db, ("files", "file_id", "identity"), 1, run_id, at)
            # The parts are the same but what counts in them is not: the catalog must follow.
            set_fact(db, "next_seq", self.next_seq() + 1)


def _told(error: sqlite3.Error) -> StorageError | LakeDamaged:
    """What SQLite says, sorted by what to do: a disk that will not, or a file that is not what was written."""
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.IntegrityError | sqlite3.InterfaceError):
        raise error  # a bug of ours
    if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
        return StorageError(f"ledger.sqlite: {error}")
    return LakeDamaged(f"ledger.sqlite: {error}", remedy="Run `scanlake check`: it rebuilds the ledger.")


def flaw(path: Path) -> str | None:
    """What is wrong with a ledger's file; None when it is whole. It is opened, so recovery from a kill comes first."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=30)) as db:
            found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
            tables = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'file_version'").fetchone()[0]
    except sqlite3.Error as error:
        return str(error)
    if found != "ok":
        return str(found).replace("\n", " ")
    return None if tables else "not a ledger"


def _booleans(row: sqlite3.Row) -> dict[str, bool]:
    return {"deleted": bool(row["deleted"]), "settled": bool(row["settled"])}
