"""Rows of the ledger as frozen values, and queries for them, for the writer (`Ledger`) and for read-only access.

Instants are microseconds since 1970 UTC unless a field is named in seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence  # noqa: TC003 - msgspec reads the annotations
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations
from enum import EnumType
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, TypedDict, TypeVar, get_type_hints

import msgspec
from msgspec import Struct

from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.ledger.format import translate_sqlite_errors
from pipeline.lake.storage.layout import Part

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from schemas.file_versions import FileVersion, Reject, Tombstone

_Value = TypeVar("_Value")
Coverage = tuple[tuple[int | None, int | None], ...]
"""Disjoint spans of update time in whole seconds, from the first on; None is no bound."""


class RunRecord(Struct, frozen=True):
    """A run, as in meta.runs. None means not known yet."""

    run_id: str
    command: str
    version: str
    started_at: int
    state: str = "running"
    ended_at: int | None = None
    watermark: int | None = None
    files_listed: int = 0
    files_stored: int = 0
    details_fetched: int = 0
    files_skipped: int = 0
    files_deleted: int = 0
    rejects: int = 0
    requests_list: int = 0
    requests_detail: int = 0
    retries: int = 0
    seconds: float = 0.0
    snapshot: int | None = None
    error: str | None = None


class FileVersionRecord(Struct, frozen=True):
    """The latest version of a file."""

    file_id: int
    commit_seq: int
    deleted: bool
    updated_at: int | None
    fetched_at: int
    digest: bytes
    fetch_signature: str
    is_stable: bool
    instance_id: int | None
    run_id: str


class VerificationRecord(Struct, frozen=True):
    """Result of a verify: counts of files, and the ids that differed (the first of each kind)."""

    run_id: str
    verified_at: datetime
    mode: str
    consistent: bool
    watermark: datetime | None
    files_in_service: int
    files_in_lake: int
    missing: int
    stale: int
    deleted: int
    unlisted: int
    changed_meanwhile: int
    details_checked: int
    details_differing: int
    unproven_windows: int
    ids: Mapping[str, Sequence[int]]


class LastVerification(Struct, frozen=True):
    """When the latest verify was, and whether lake and service agreed."""

    verified_at: int
    consistent: bool


class SnapshotRecord(Struct, frozen=True):
    """A published state of the lake. `commit_seq` is its last commit."""

    snapshot: int
    published_at: int
    run_id: str
    complete: bool
    commit_seq: int
    files: int
    watermark: int | None


class WindowRecord(Struct, frozen=True):
    """A window that was read completely. Seconds since 1970; None is no bound."""

    start: int | None
    end: int | None
    listed_at: int
    files: int
    is_consistent: bool


class RefetchRecord(Struct, frozen=True):
    """A file that the next run fetches again; with its document if it was rejected."""

    file_id: int
    updated_at: int | None
    document: bytes | None
    is_list_item: bool


class Commit(Struct, frozen=True):
    """Everything that one transaction makes current together.

    `parts` are on disk. `digests` of the list items go with `versions`, in order.
    `resolved_files` need no further refetch, `refetch` lists files for the next run: (id, updated_at). `run` and
    `progress` are the counts of a run that goes on.
    """

    commit_seq: int
    run_id: str
    at: int
    versions: Sequence[FileVersion] = ()
    parts: Sequence[Part] = ()
    digests: Sequence[bytes] = ()
    tombstones: Sequence[Tombstone] = ()
    rejects: Sequence[Reject] = ()
    resolved_files: Sequence[int] = ()
    refetch: Sequence[tuple[int, int | None]] = ()
    drift: Mapping[tuple[str, str, str], int] | None = None
    definitions: Sequence[str] = ()
    windows: Sequence[WindowRecord] = ()
    coverage: Sequence[tuple[int | None, int | None]] | None = None
    run: RunRecord | None = None
    progress: RunProgress | None = None


class RollbackPause(TypedDict):
    """Why syncing is paused: the lake shows snapshot `to` again, as `snapshot`. Its last commit is `commit_seq`."""

    to: int
    snapshot: int
    commit_seq: int


class RunProgress(TypedDict):
    """Progress of a run at its last commit: files done and to do (None: unknown), seconds left (None: unknown)."""

    run_id: str
    at: int
    done: int
    total: int | None
    eta_seconds: float | None


class CatalogRecord(TypedDict):
    """The published catalog: its file as inode, size and time of change (nanoseconds), and when it was written.

    `written_at` is in microseconds.
    """

    file: Sequence[int]
    written_at: int


class PublishRecord(TypedDict):
    """The last publish to object storage: its target, the snapshot there, and when (microseconds).

    `problem` is of the last attempt, None if it succeeded. `failures` are consecutive.
    """

    target: str
    snapshot: int | None
    published_at: int | None
    problem: str | None
    failures: int


class DeltaBase(TypedDict):
    """A catalog that can be updated: its last commit, the format of its tables, the hashes of its views.

    `rows` are those of each table. `built_rows` and `built_bytes` are its size when it was built; updates have deleted
    or inserted `replaced_rows`. `image_change` is the last change of an image's row in it. `has_expired`: its history
    has versions whose documents have expired.
    """

    commit_seq: int
    format: str
    views: Mapping[str, str]
    built_rows: int
    built_bytes: int
    replaced_rows: int
    rows: NotRequired[Mapping[str, int]]
    image_change: NotRequired[int]
    has_expired: NotRequired[bool]


KEPT_PROPERTIES: Final = frozenset(
    {"lake_id", "schema", "source", "lang", "remote_publish", "published_targets", "rollback_pause"}
)
"""Properties that the catalog has, too: what binds the lake to its service and its copies outlives the ledger."""


class LakeProperties(Struct, frozen=True):
    """Facts about the lake as a whole. `watermark` is in seconds; other instants are in microseconds."""

    next_commit_seq: int = 1  # a number is never used twice
    source: str | None = None  # base URL of the service
    lang: str | None = None
    texts_from: Literal["list", "detail"] | None = None  # the call whose texts are in `lang`, as the last run found
    tenants: tuple[int, ...] = ()  # of the uploads in the lake
    identity: Literal["id", "file_id"] = "id"  # key of a file: "id", or "file_id" once several instances share an id
    watermark: int | None = None
    lookback_due: bool = False  # the next sync reads the lookback window again
    unverified_since: int | None = None  # the first sync; a rollback makes a verify due at once
    last_verify_at: int | None = None
    deep_position: int = 0  # hash of the file after which the next deep verify begins
    learned_limits: dict[str, Any] | None = None  # rate and concurrency, for the next run's rate limiter
    catalog: CatalogRecord | None = None
    has_unpublished_rows: bool = True  # the newest snapshot lacks rows, or has rows that do not count any more
    delta_base: DeltaBase | None = None  # None: the catalog must be built from the documents
    purge_in_progress: tuple[int, ...] | None = None  # file ids; committed, but the old files may still exist
    purged_pictures: Sequence[str] = ()  # paths below the lake's folder that a purge in progress deletes
    rollback_pause: RollbackPause | None = None
    schema: int = 0  # the highest `SCHEMA_VERSION` of a program that wrote to the lake
    lake_id: str | None = None  # in hex; a target of another lake is refused
    remote_publish: PublishRecord | None = None
    published_targets: Mapping[str, bool | None] = {}
    """States of targets, the newest last; see `TargetState`."""
    backups: Mapping[str, int] = {}  # URL: the last purge that the backup there has followed; it is not reached
    unproven_files: int = 0  # that the list has, and the last sync could not see; the watermark waits for them
    run_progress: RunProgress | None = None  # of the last run that fetched

    def require_service(self, base_url: str) -> None:
        """Raise `SettingsError` if the lake has data of another service. A first attempt without data binds nothing."""
        if self.source is not None and self.has_data and self.source != base_url:
            raise SettingsError(
                f"The lake contains the files of {self.source}, not of {base_url}.",
                hint="Use another --lake, or run `scanlake sync --accept-new-base-url` once if the service has moved.",
            )

    @property
    def has_data(self) -> bool:
        """Whether a run has committed anything."""
        return self.next_commit_seq > 1

    @property
    def verified_or_synced_at(self) -> int | None:
        """When the lake last equalled the service's whole list: the last verify, else the first sync."""
        return self.last_verify_at or self.unverified_since

    @classmethod
    def from_rows(cls, rows: Mapping[str, str]) -> LakeProperties:
        """Return the properties from their JSON texts. Names of other versions are ignored.

        Raises `LakeCorruptedError` for a text that scanlake has not written.
        """
        try:
            decoded = {name: msgspec.json.decode(rows[name]) for name in cls.__struct_fields__ if name in rows}
            return msgspec.convert(decoded, cls)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            problem = "The ledger has a property that scanlake has not written."
            raise LakeCorruptedError(problem, hint="Restore a backup.") from error


# Queries

_UNSTABLE: Final = (
    "file_version WHERE NOT is_stable AND NOT deleted AND file_id NOT IN (SELECT file_id FROM refetch_queue"
    " UNION ALL SELECT file_id FROM reject WHERE file_id IS NOT NULL)"
)
_MAX_UNSTABLE: Final = 1_000
_MAX_IDS: Final = 10_000  # ids in one statement; SQLite allows 32,766 parameters
_PAGE_ROWS: Final = 50_000
_ALL_COMMITS: Final = (0, 2**63 - 1)


def read_value(kind: Callable[[Any], _Value], value: object) -> _Value:
    """Return a value of the ledger as its type. Raises `LakeCorruptedError` for one that scanlake has not written."""
    try:
        return kind(value)
    except ValueError:
        raise LakeCorruptedError(f"The ledger has an unknown value: {value!r:.100}.") from None


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
        return [
            record(**{**dict(row), **{name: read_value(kind, row[name]) for name, kind in typed.items()}})
            for row in rows
        ]

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
            source = f"file_version WHERE file_id IN ({','.join('?' * len(chunk))})"
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

    def refetch_requests(self) -> list[RefetchRecord]:
        """Return the files that the next run fetches again: rejected ones, then queued ones."""
        rejected = (
            "(SELECT r.file_id AS file_id, coalesce(q.updated_at, v.updated_at) AS updated_at, document, is_list_item"
            " FROM reject AS r LEFT JOIN refetch_queue AS q USING (file_id) LEFT JOIN file_version AS v USING (file_id)"
            " WHERE r.file_id IS NOT NULL) ORDER BY file_id"
        )
        queued = (
            "(SELECT file_id, updated_at, NULL AS document, 0 AS is_list_item FROM refetch_queue"
            " WHERE file_id NOT IN (SELECT file_id FROM reject WHERE file_id IS NOT NULL))"
        )
        return [*self.select(RefetchRecord, rejected), *self.select(RefetchRecord, queued)]

    def unstable_files(self) -> list[FileVersionRecord]:
        """Return the unstable files, fetched longest ago, at most those that one run fetches again."""
        return self.select(FileVersionRecord, f"{_UNSTABLE} ORDER BY fetched_at LIMIT {_MAX_UNSTABLE}")

    def count_unstable_files(self) -> int:
        """Return the number of unstable files."""
        return self.count(f"SELECT count(*) FROM {_UNSTABLE}")

    def count_refetch_requests(self) -> int:
        """Return the number of files that are rejected or queued; a file may be both."""
        return self.count_rejected_files() + self.count("SELECT count(*) FROM refetch_queue")

    def count_rejected_files(self) -> int:
        """Return the number of files that the lake has without their details."""
        return self.count("SELECT count(*) FROM reject WHERE file_id IS NOT NULL")

    def rejected_files(self) -> set[int]:
        """Return the files that the lake has without their details."""
        return {row[0] for row in self.query("SELECT file_id FROM reject WHERE file_id IS NOT NULL")}

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
        """Return the parts of documents and the outputs, oldest first."""
        return self.select(Part, "part ORDER BY first_commit_seq, name")

    def part_names(self) -> set[str]:
        """Return the names of all parts."""
        return {row[0] for row in self.query("SELECT name FROM part")}

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

    def last_verification(self) -> LastVerification | None:
        """Return what is known of the latest verify; None before the first."""
        return next(iter(self.select(LastVerification, "verification ORDER BY verified_at DESC LIMIT 1")), None)

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
        last, properties = self.last_snapshot(), self.properties
        if properties.rollback_pause is not None:  # the later ones are not shown
            return properties.has_unpublished_rows
        return last is None or last.commit_seq < properties.next_commit_seq - 1

    def last_purge_at(self) -> int | None:
        """Return when files were last purged, in microseconds; None before a purge."""
        at: int | None = self.query("SELECT max(purged_at) FROM purge")[0][0]
        return at
