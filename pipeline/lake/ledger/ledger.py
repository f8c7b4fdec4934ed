"""The ledger: the SQLite database that records which parts, file versions and progress are current.

Parts are on disk before a transaction names them, together with the progress that they complete. The catalog is
derived from the ledger.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from contextlib import closing, contextmanager
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from msgspec.structs import asdict, replace

from pipeline.errors import LakeCorruptedError, SettingsError, StorageError
from pipeline.lake.ledger.format import (
    REBUILD_HINT,
    LedgerIdentity,
    create_tables,
    describe_error,
    identify_ledger,
    translate_sqlite_errors,
)
from pipeline.lake.ledger.queries import KEPT_PROPERTIES, LakeProperties, LedgerQueries, RunRecord, SnapshotRecord
from pipeline.lake.storage.layout import translate_os_errors
from schemas.timestamps import from_datetime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pipeline.lake.ledger.queries import CatalogRecord, Commit, DeltaBase, FileVersionRecord, VerificationRecord
    from pipeline.lake.storage.layout import Part

_TIMEOUT_SECONDS: Final = 30.0  # for which SQLite waits for another process
_PROPERTIES: Final = frozenset(LakeProperties.__struct_fields__)
_MAX_VALUES: Final = 900  # of one statement; old versions of SQLite allow 999
_MAX_DRIFT_KEYS: Final = 2_000


class Ledger(LedgerQueries):
    """Read and write access to the ledger. Thread-safe; one transaction at a time."""

    def __init__(self, path: Path) -> None:
        """Open the ledger, or create it.

        Raises `SettingsError` for a ledger of another format, or with a second name: SQLite writes in place, and keeps
        its log by the name. Raises `LakeCorruptedError` for any other database.
        """
        if identify_ledger(path) is LedgerIdentity.OTHER_DATABASE:
            raise LakeCorruptedError(f"{path}: {LedgerIdentity.OTHER_DATABASE.value}.", hint=REBUILD_HINT)
        if path.exists() and path.stat().st_nlink > 1:
            raise SettingsError(
                f"{path} is also in another folder, by a hard link: what one lake writes would damage the other.",
                hint="Copy lakes by `cp -a` or `scanlake backup`; delete the linked copy.",
            )
        make_log_writable(path)
        with translate_sqlite_errors(path):
            super().__init__(_connect(path), path)
            self.db.execute("PRAGMA synchronous = FULL")
            create_tables(self.db)
            self.db.execute("PRAGMA journal_mode = WAL")
            self._reader = LedgerQueries(_connect(path), path)

    def close(self) -> None:
        """Close the ledger."""
        with self.lock, self._reader.lock:
            self._reader.db.close()
            self.db.close()

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy of the ledger to a new file."""
        with self.lock, translate_sqlite_errors(self._path), closing(sqlite3.connect(path)) as copy:
            self.db.backup(copy)

    def vacuum_securely(self) -> None:
        """Overwrite deleted rows on disk, in the ledger's file and in its log.

        Raises `StorageError` while another process reads them: SQLite waits half a minute for it.
        """
        with self.lock, self._reader.lock, translate_sqlite_errors(self._path):
            for statement in ("PRAGMA secure_delete = ON", "VACUUM"):
                self.db.execute(statement).fetchall()
            (is_busy, *_) = self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise StorageError(
                f"{self._path}: Another process reads rows that were deleted.",
                hint="Close it (a shell of SQLite, a backup tool), then run the command again.",
            )

    def empty_log(self) -> None:
        """Move the log's content into the ledger's file: on a full disk this makes room for one more transaction."""
        with self.lock, self._reader.lock, translate_sqlite_errors(self._path):
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction that is durable after the block; an exception rolls it back.

        Raises `StorageError` when the disk is full or fails.
        """
        with self.lock, translate_sqlite_errors(self._path):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:  # a full disk has ended it already; an open one would block the next
                    self.db.execute("ROLLBACK")
                raise

    def file_versions(self, file_ids: Sequence[int]) -> dict[int, FileVersionRecord]:
        """Return the latest versions of some files, by id."""
        # On a connection of its own: a commit that waits for the disk does not delay the crawl.
        return self._reader.file_versions(file_ids)

    def set_properties(self, **changes: Any) -> None:
        """Store properties of the lake, named as in `LakeProperties`. None deletes one."""
        with self.transaction() as db:
            set_properties(db, **changes)

    def get_lake_id(self) -> str:
        """Return the id of the lake, which its copies share; the first call creates it."""
        with self.transaction() as db:
            lake_id = self.properties.lake_id or uuid4().hex
            set_properties(db, lake_id=lake_id)
        return lake_id

    def kept_properties(self) -> dict[str, str]:
        """Return the JSON of the properties that the catalog has, too, for a ledger that is rebuilt."""
        self.get_lake_id()
        stored = self.query("SELECT name, value FROM lake_property")
        return {name: value for name, value in stored if name in KEPT_PROPERTIES}

    # Runs

    def begin_run(self, run: RunRecord) -> None:
        """Record the start of a run. One that is still recorded as running was killed."""
        with self.transaction() as db:
            db.execute("UPDATE run SET state = 'interrupted', error = 'killed' WHERE state = 'running'")
            insert(db, "run", asdict(run))

    def update_run(self, run_id: str, **columns: Any) -> None:
        """Change columns of a run."""
        with self.transaction() as db:
            update_run(db, run_id, columns)

    def record_verification(self, record: VerificationRecord, *, repairs: bool = True) -> None:
        """Record the result of a verify. One that found differences and `repairs` none makes no later one needless."""
        at, watermark = from_datetime(record.verified_at), record.watermark and from_datetime(record.watermark)
        values = {"verified_at": at, "watermark": watermark, "ids": json.dumps(record.ids)}
        with self.transaction() as db:
            insert(db, "verification", asdict(record) | values)
            if repairs or record.consistent:
                set_properties(db, last_verify_at=at)

    # Commits

    def commit(self, commit: Commit) -> None:
        """Make a commit current."""
        with self.transaction() as db:
            set_properties(db, next_commit_seq=max(commit.commit_seq + 1, next_commit_seq(db)))
            if commit.parts:
                set_properties(db, has_unpublished_rows=True)
            for part in commit.parts:
                insert(db, "part", asdict(part))
            _upsert_file_versions(db, commit)
            definitions = [(name, commit.commit_seq) for name in commit.definitions]
            insert_all(db, "definition", ("hash", "commit_seq"), definitions, on_conflict="IGNORE")
            _record_rejects(db, commit)
            record_drift(db, commit)
            columns = ("run_id", "start_second", "end_second", "listed_at", "files", "is_consistent")
            windows = [(commit.run_id, w.start, w.end, w.listed_at, w.files, w.is_consistent) for w in commit.windows]
            insert_all(db, "read_window", columns, windows)
            if commit.coverage is not None:
                set_coverage(db, commit.coverage)
            if commit.run is not None:
                update_run(db, commit.run_id, asdict(commit.run))
                set_properties(db, run_progress=commit.progress)

    def store_coverage(self, coverage: Sequence[tuple[int | None, int | None]], **properties: Any) -> None:
        """Replace the coverage, and store properties that go with it: nothing else counts as read."""
        with self.transaction() as db:
            set_coverage(db, coverage)
            set_properties(db, **properties)

    def switch_key_to_instance(self, run_id: str, at: int) -> None:
        """Make the instance the key of a file. No row under a shared id counts any more; the crawl starts again."""
        with self.transaction() as db:
            # Everything is read again: no watermark holds, and a queued or rejected shared id is no file.
            set_properties(db, identity="file_id", watermark=None)
            for table in ("file_version", "coverage", "refetch_queue"):
                db.execute(f"DELETE FROM {table}")
            db.execute("DELETE FROM reject WHERE file_id IS NOT NULL")
            _count_drift(db, ("files", "file_id", "identity"), 1, run_id, at)
            make_publish_due(db)

    # Parts

    def replace_parts(self, old: Sequence[Part], new: Sequence[Part]) -> None:
        """Replace parts of documents. The rows that they make are the same."""
        with self.transaction() as db:
            replace_parts(db, old, new)
            make_publish_due(db, same_rows=True)

    def record_catalog(
        self, catalog: CatalogRecord, base: DeltaBase, *, old: Sequence[Part], new: Sequence[Part]
    ) -> None:
        """Record the catalog that was published, what an update must know of it, and its outputs: all together."""
        with self.transaction() as db:
            set_properties(db, catalog=catalog, delta_base=base)
            replace_parts(db, old, new)

    def delete_definitions(self, hashes: Sequence[str]) -> None:
        """Delete workflow definitions. The next file with one of them brings it again."""
        with self.transaction() as db:
            db.executemany("DELETE FROM definition WHERE hash = ?", [(name,) for name in hashes])

    def queue_refetch(
        self, documents: Mapping[int, bytes], *, incomplete: set[int], reason: str, run_id: str, at: int
    ) -> None:
        """Queue files whose documents are lost, given as {file id: document of the reject}.

        `incomplete` files have lost their rows, too: they leave the lake until then.
        """
        removed = [(file_id,) for file_id in sorted(incomplete & documents.keys())]
        file_ids = [(file_id,) for file_id in documents]
        rejects = [(f"file {key}", key, reason, text, run_id, at, at, 1) for key, text in documents.items()]
        with self.transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO refetch_queue (file_id, updated_at)"
                " SELECT file_id, updated_at FROM file_version WHERE file_id = ?",
                file_ids,
            )
            db.executemany("DELETE FROM file_version WHERE file_id = ?", removed)
            db.executemany("UPDATE file_version SET is_stable = 0 WHERE file_id = ?", file_ids)
            db.executemany(
                "INSERT OR REPLACE INTO reject (reject_key, file_id, reason, document, run_id, first_seen_at,"
                " last_tried_at, attempts) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                rejects,
            )
            make_publish_due(db, same_rows=not removed)

    def delete_rejects_without_id(self, run_id: str, is_listed: Callable[[bytes], bool]) -> None:
        """Delete the rejects without an id that a complete list does not have, unless this run has recorded them."""
        with self.transaction() as db:
            rows = db.execute("SELECT * FROM reject WHERE file_id IS NULL AND run_id <> ?", (run_id,)).fetchall()
            unlisted = [(row["reject_key"],) for row in rows if not is_listed(row["document"])]
            db.executemany("DELETE FROM reject WHERE reject_key = ?", unlisted)

    def mark_unstable(self, file_ids: Iterable[int]) -> None:
        """Have the next crawl that lists these files fetch them, also if it lists them as they are."""
        with self.transaction() as db:
            db.executemany("UPDATE file_version SET is_stable = 0 WHERE file_id = ?", [(id_,) for id_ in file_ids])

    # Snapshots

    def begin_snapshot(
        self, run_id: str, at: int, *, complete: bool, watermark: int | None, renewed: SnapshotRecord | None = None
    ) -> SnapshotRecord:
        """Reserve the next snapshot, or give `renewed`, which has every row, a later watermark.

        Until `end_snapshot` a new one is not published.
        """
        with self.transaction() as db:
            if renewed is not None:
                record = replace(renewed, complete=renewed.complete or complete, watermark=watermark)
            else:
                number, seq, files = self.next_snapshot(), self.next_commit_seq() - 1, self.count_files()
                record = SnapshotRecord(number, at, run_id, complete, seq, files, watermark)
                db.execute("UPDATE snapshot SET state = 'abandoned' WHERE state = 'building'")
            state = "building" if renewed is None else "published"
            insert(db, "snapshot", {**asdict(record), "state": state}, on_conflict="REPLACE")
        return record

    def end_snapshot(self, record: SnapshotRecord) -> None:
        """Record that readers see the snapshot, with all commits that count."""
        with self.transaction() as db:
            insert(db, "snapshot", {**asdict(record), "state": "published"}, on_conflict="REPLACE")
            set_properties(db, has_unpublished_rows=False)


def integrity_problem(path: Path) -> str | None:
    """Return what is wrong with a ledger's file, or None. Opens it, so SQLite recovers from a kill first.

    Raises `StorageError` on a full disk and without permission: a ledger is not replaced because of them.
    """
    make_log_writable(path)
    uri = f"{path.absolute().as_uri()}?mode=rw"
    try:
        with translate_sqlite_errors(path), closing(sqlite3.connect(uri, uri=True, timeout=_TIMEOUT_SECONDS)) as db:
            result = str(db.execute("PRAGMA integrity_check(1)").fetchone()[0])
            tables = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'file_version'").fetchone()[0]
            if tables:
                db.execute("DELETE FROM file_version WHERE FALSE")  # fails if SQLite reads the format, but writes none
    except LakeCorruptedError as error:
        cause = error.__cause__
        return describe_error(cause) if isinstance(cause, sqlite3.Error | UnicodeDecodeError) else error.message
    if result != "ok":
        return result.replace("\n", " ")
    return None if tables else "not a ledger"


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_TIMEOUT_SECONDS)
    db.row_factory = sqlite3.Row
    return db


def make_log_writable(path: Path) -> None:
    """Make the log of a writable ledger writable; raise `StorageError` for a ledger that is not.

    SQLite opens a ledger without write permission read-only, creates its log with the same mode, and could not write
    to this log even after the ledger has its permission back.
    """
    if not path.exists():
        return
    if not os.access(path, os.W_OK):
        raise StorageError(f"{path}: No permission to write.")
    for suffix in ("-wal", "-shm"):
        log = path.with_name(path.name + suffix)
        if log.exists() and not os.access(log, os.W_OK):
            with translate_os_errors(log):
                log.chmod(stat.S_IMODE(path.stat().st_mode))


# Statements inside a transaction of the caller


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


def make_publish_due(db: sqlite3.Connection, *, same_rows: bool = False) -> None:
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


# Statements of a commit


def _upsert_file_versions(db: sqlite3.Connection, commit: Commit) -> None:
    """Make the versions and tombstones of a commit the current ones."""
    deleted = [(tombstone.file_id,) for tombstone in commit.tombstones]
    file_ids = [(version.file_id,) for version in commit.versions] + deleted
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


def replace_parts(db: sqlite3.Connection, old: Iterable[Part], new: Iterable[Part]) -> None:
    """Replace parts by new ones. The next command deletes the files of the old ones: a reader may use them now."""
    db.executemany("DELETE FROM part WHERE name = ?", [(part.name,) for part in old])
    for part in new:
        insert(db, "part", asdict(part))


def _record_rejects(db: sqlite3.Connection, commit: Commit) -> None:
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
        _count_drift(db, (table, name, kind), count, commit.run_id, commit.at)


def _count_drift(db: sqlite3.Connection, key: tuple[str, str, str], count: int, run_id: str, at: int) -> None:
    """Count one kind of drift: (table, key, kind)."""
    db.execute(
        "INSERT INTO schema_drift (table_name, json_key, kind, occurrences, first_run_id, last_run_id, first_seen_at,"
        " last_seen_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET occurrences = occurrences"
        " + excluded.occurrences, last_run_id = excluded.last_run_id, last_seen_at = excluded.last_seen_at",
        (*key, count, run_id, run_id, at, at),
    )
