"""Queries on the ledger, for the writer (`Ledger`) and for read-only access."""

from __future__ import annotations

import threading
from enum import EnumType
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from pipeline.lake.ledger_format import translate_sqlite_errors
from pipeline.lake.models import (
    FileVersionRecord,
    LakeProperties,
    Part,
    RefetchRecord,
    RunRecord,
    SnapshotRecord,
    VerificationRecord,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from pipeline.lake.models import Coverage

_MAX_IDS: Final = 10_000  # ids in one statement; SQLite allows 32,766 parameters
_PAGE_ROWS: Final = 50_000
_ALL_COMMITS: Final = (0, 2**63 - 1)


class LedgerQueries:
    """Named queries on one connection, by one thread at a time."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        """Take a connection to the ledger at `path`."""
        self.db, self._path, self.lock = db, path, threading.RLock()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a query. Raises `LakeCorruptedError` or `StorageError` if SQLite cannot read them.

        Waits for a transaction of another thread.
        """
        with self.lock, translate_sqlite_errors(self._path):
            return self.db.execute(sql, parameters).fetchall()

    def count(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Return the only number of a query; 0 for NULL."""
        return int(self.query(sql, parameters)[0][0] or 0)

    def select(self, record: type[Any], source: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Return records from the columns with the names of their fields; flags and states get their types."""
        types = get_type_hints(record)
        typed = {name: kind for name, kind in types.items() if kind is bool or isinstance(kind, EnumType)}
        rows = self.query(f"SELECT {', '.join(types)} FROM {source}", parameters)
        return [record(**{**dict(row), **{name: kind(row[name]) for name, kind in typed.items()}}) for row in rows]

    def _mapping(self, sql: str, parameters: Sequence[Any] = ()) -> dict[Any, Any]:
        """Return {first column: second column}."""
        return {row[0]: row[1] for row in self.query(sql, parameters)}

    def quick_check(self) -> str:
        """Return "ok", or what SQLite reports as the first damage."""
        return str(self.query("PRAGMA quick_check(1)")[0][0])

    def format(self) -> int:
        """Return the format of the lake."""
        return self.count("PRAGMA user_version")

    @property
    def properties(self) -> LakeProperties:
        """The properties of the lake, as stored now."""
        return LakeProperties.from_rows(self._mapping("SELECT name, value FROM lake_property"))

    # Files

    def file_versions(self, file_ids: Sequence[int]) -> dict[int, FileVersionRecord]:
        """Return the latest versions of some files, by id."""
        versions: dict[int, FileVersionRecord] = {}
        for start in range(0, len(file_ids), _MAX_IDS):
            chunk = list(file_ids[start : start + _MAX_IDS])
            source = f"file_version WHERE file_id IN ({_marks(chunk)})"
            versions |= {record.file_id: record for record in self.select(FileVersionRecord, source, chunk)}
        return versions

    def sample_files(self, count: int) -> list[FileVersionRecord]:
        """Return the versions of at most `count` files, evenly spread by their ids."""
        files, total = "file_version WHERE deleted = 0", self.count_files()
        positions = sorted({total * (2 * step + 1) // (2 * count) for step in range(count)})
        source = f"{files} ORDER BY file_id LIMIT 1 OFFSET ?"
        return [record for position in positions for record in self.select(FileVersionRecord, source, (position,))]

    def count_file_versions(self) -> int:
        """Return the number of files that the lake has ever had, with deleted ones."""
        return self.count("SELECT count(*) FROM file_version")

    def count_files(self) -> int:
        """Return the number of files that are not deleted."""
        return self.count_file_versions() - self.count_deleted_files()  # both by an index

    def count_deleted_files(self) -> int:
        """Return the number of files that are deleted in the service."""
        return self.count("SELECT count(*) FROM file_version WHERE deleted")

    def iter_files(self) -> Iterator[tuple[int, int | None]]:
        """Yield every file that is not deleted, by id: (id, updated_at)."""
        last = -(2**63)
        while True:
            rows = self.query(
                "SELECT file_id, updated_at FROM file_version WHERE file_id > ? AND NOT deleted"
                f" ORDER BY file_id LIMIT {_PAGE_ROWS}",
                (last,),
            )
            yield from ((row["file_id"], row["updated_at"]) for row in rows)
            if not rows:
                return
            last = rows[-1]["file_id"]

    def file_commit_seqs(self, span: tuple[int, int] | None = None) -> list[tuple[int, int]]:
        """Return (file id, commit) of the files that are not deleted, by commit; of all commits or of a span."""
        sql = "SELECT file_id, commit_seq FROM file_version WHERE NOT deleted AND commit_seq BETWEEN ? AND ?"
        rows = self.query(f"{sql} ORDER BY commit_seq, file_id", span or _ALL_COMMITS)
        return [(row["file_id"], row["commit_seq"]) for row in rows]

    def newest_update(self) -> int | None:
        """Return the newest update time of a file."""
        newest: int | None = self.query("SELECT max(updated_at) FROM file_version")[0][0]
        return newest

    def superseded_versions(self, seqs: Collection[int]) -> set[tuple[int, int]]:
        """Return the superseded versions of some commits whose rows parts still have: (file id, commit)."""
        sql = f"SELECT file_id, commit_seq FROM superseded_version WHERE commit_seq IN ({_marks(seqs)})"
        return {(row["file_id"], row["commit_seq"]) for row in self.query(sql, list(seqs))}

    def superseded_columns(self, span: tuple[int, int] | None = None) -> tuple[list[int], list[int]]:
        """Return the superseded versions whose rows parts still have: their file ids and their commits."""
        sql = "SELECT file_id, commit_seq FROM superseded_version WHERE commit_seq BETWEEN ? AND ?"
        rows = self.query(f"{sql} ORDER BY commit_seq, file_id", span or _ALL_COMMITS)
        return [row[0] for row in rows], [row[1] for row in rows]  # by index: there may be many

    def refetch_requests(self) -> list[RefetchRecord]:
        """Return the files that the next run fetches again: rejected ones, then queued ones."""
        rejected = (
            "(SELECT reject.file_id AS file_id, updated_at, document, is_list_item FROM reject"
            " LEFT JOIN refetch_queue USING (file_id) WHERE reject.file_id IS NOT NULL) ORDER BY file_id"
        )
        queued = (
            "(SELECT file_id, updated_at, NULL AS document, 0 AS is_list_item FROM refetch_queue"
            " WHERE file_id NOT IN (SELECT file_id FROM reject WHERE file_id IS NOT NULL))"
        )
        return [*self.select(RefetchRecord, rejected), *self.select(RefetchRecord, queued)]

    def count_refetch_requests(self) -> int:
        """Return the number of files that are rejected or queued; a file may be both."""
        return self.count_rejected_files() + self.count("SELECT count(*) FROM refetch_queue")

    def count_rejected_files(self) -> int:
        """Return the number of files that the lake has without their details."""
        return self.count("SELECT count(*) FROM reject WHERE file_id IS NOT NULL")

    def count_rejects(self, run_id: str | None = None) -> dict[str, int]:
        """Return the number of rejects by reason, most frequent first; of all runs or of one."""
        sql = "SELECT reason, count(*) AS n FROM reject WHERE run_id = ?1 OR ?1 IS NULL GROUP BY reason"
        return self._mapping(f"{sql} ORDER BY n DESC, reason", (run_id,))

    def definitions(self) -> dict[str, int]:
        """Return the workflow definitions of the lake: {content hash: commit}."""
        return self._mapping("SELECT hash, commit_seq FROM definition")

    def coverage(self) -> Coverage:
        """Return the spans of update time, in seconds, that the lake has completely."""
        rows = self.query("SELECT start_second, end_second FROM coverage ORDER BY start_second NULLS FIRST")
        return tuple((row["start_second"], row["end_second"]) for row in rows)

    def mean_report_seconds(self) -> float | None:
        """Return the mean time from order to delivery of the last 100 reports; None if there is none."""
        rows = self.query(
            "SELECT avg(saved_at - ordered_at) / 1e6 FROM (SELECT saved_at, ordered_at"
            " FROM report_order WHERE state = 'delivered' ORDER BY saved_at DESC LIMIT 100)"
        )
        mean: float | None = rows[0][0]
        return mean

    # Parts

    def parts(self) -> list[Part]:
        """Return the parts with current rows, oldest first."""
        return self.select(Part, "part ORDER BY first_commit_seq, name")

    def row_counts(self, *, since_seq: int) -> dict[str, int]:
        """Return the number of rows by table in the parts that begin at a commit or later."""
        sql = "SELECT table_name, sum(row_count) FROM part WHERE first_commit_seq >= ?"
        return self._mapping(f"{sql} GROUP BY table_name ORDER BY table_name", (since_seq,))

    def retired_parts(self, before: int = _ALL_COMMITS[1]) -> list[str]:
        """Return the names of the parts without current rows that were replaced before an instant, oldest first."""
        sql = "SELECT name FROM retired_part WHERE retired_at < ? ORDER BY retired_at, name"
        return [row[0] for row in self.query(sql, (before,))]

    def measure_parts(self, table: str) -> tuple[int, int]:
        """Return the rows and bytes of a table's parts."""
        sql = "SELECT coalesce(sum(row_count), 0), coalesce(sum(bytes), 0) FROM part WHERE table_name = ?"
        rows, size = self.query(sql, (table,))[0]
        return rows, size

    def part_names(self) -> set[str]:
        """Return the names of all parts, with retired ones."""
        return {row[0] for row in self.query("SELECT name FROM part UNION ALL SELECT name FROM retired_part")}

    # Runs and snapshots

    def recent_runs(self, limit: int) -> list[RunRecord]:
        """Return the latest runs, newest first."""
        return self.select(RunRecord, "run ORDER BY started_at DESC, rowid DESC LIMIT ?", (limit,))

    def last_run(self) -> RunRecord | None:
        """Return the latest run; None before the first."""
        return next(iter(self.recent_runs(1)), None)

    def first_run_with_watermark(self, watermark_us: int) -> RunRecord | None:
        """Return the run that reached a watermark (microseconds); None if its record has expired."""
        return next(
            iter(self.select(RunRecord, "run WHERE watermark = ? ORDER BY started_at LIMIT 1", (watermark_us,))), None
        )

    def last_verification(self) -> VerificationRecord | None:
        """Return the result of the latest verify; None before the first."""
        return next(iter(self.select(VerificationRecord, "verification ORDER BY verified_at DESC LIMIT 1")), None)

    def last_snapshot(self) -> SnapshotRecord | None:
        """Return the snapshot that readers see; None before the first."""
        source = "snapshot WHERE state = 'published' ORDER BY snapshot DESC LIMIT 1"
        return next(iter(self.select(SnapshotRecord, source)), None)

    def snapshots(self) -> list[SnapshotRecord]:
        """Return the published snapshots, with those that are no longer kept."""
        return self.select(SnapshotRecord, "snapshot WHERE state = 'published'")

    def find_published_snapshot(self, number: int) -> SnapshotRecord | None:
        """Return a published snapshot, also one that is no longer kept; None if there is none of this number."""
        source = "snapshot WHERE state = 'published' AND snapshot = ?"
        return next(iter(self.select(SnapshotRecord, source, (number,))), None)

    def next_snapshot(self) -> int:
        """Return the number of the next snapshot."""
        return self.count("SELECT coalesce(max(snapshot), 0) + 1 FROM snapshot")

    def next_commit_seq(self) -> int:
        """Return the number of the next commit. A number is never used twice."""
        return self.properties.next_commit_seq

    def has_unpublished_commits(self) -> bool:
        """Return whether the newest catalog lacks a commit."""
        last = self.last_snapshot()
        return last is None or last.commit_seq < self.next_commit_seq() - 1

    def last_purge_at(self) -> int | None:
        """Return when files were last purged, in microseconds; None before a purge."""
        at: int | None = self.query("SELECT max(purged_at) FROM purge")[0][0]
        return at


def _marks(values: Collection[object]) -> str:
    return ",".join("?" * len(values))
