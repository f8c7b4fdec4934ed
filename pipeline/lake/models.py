"""Rows of the ledger as frozen values. Instants are microseconds since 1970 UTC unless a field is named in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Struct

from pipeline.errors import LakeCorruptedError, SettingsError

if TYPE_CHECKING:
    from schemas.file_versions import FileVersion, Reject, Tombstone

Coverage = tuple[tuple[int | None, int | None], ...]
"""Disjoint spans of update time in whole seconds, from the first on; None is no bound."""


class Part(Struct, frozen=True):
    """A write-once Parquet file: its path below the lake's folder, its commits, its size and its hash."""

    name: str
    table_name: str
    first_commit_seq: int
    last_commit_seq: int
    row_count: int
    bytes: int
    sha256: str

    @property
    def span(self) -> tuple[int, int]:
        """First and last commit."""
        return self.first_commit_seq, self.last_commit_seq


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
    """Result of a verify: counts of files, and as JSON the ids that differed (the first of each kind)."""

    run_id: str
    verified_at: int
    mode: str
    consistent: bool
    watermark: int | None
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
    ids: str


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
    `resolved_files` need no further refetch, `refetch` lists files for the next run: (id, updated_at). `rows_pending`:
    the rows of `versions` are not in parts yet (True); `parts` has all rows that were pending (False); nothing changes
    in this respect (None). `run` and `progress` are the counts of a run that goes on.
    """

    commit_seq: int
    run_id: str
    at: int
    versions: Sequence[FileVersion] = ()
    parts: Sequence[Part] = ()
    digests: Sequence[bytes] = ()
    tombstones: Sequence[Tombstone] = ()
    rejects: Sequence[Reject] = ()
    rows_pending: bool | None = None
    resolved_files: Sequence[int] = ()
    refetch: Sequence[tuple[int, int | None]] = ()
    drift: Mapping[tuple[str, str, str], int] | None = None
    definitions: Sequence[str] = ()
    windows: Sequence[WindowRecord] = ()
    coverage: Sequence[tuple[int | None, int | None]] | None = None
    run: RunRecord | None = None
    progress: RunProgress | None = None


class RollbackPause(TypedDict):
    """Why syncing is paused: the lake shows snapshot `to` again, as the new snapshot `snapshot`."""

    to: int
    snapshot: int


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
    tried_at: int
    problem: str | None
    failures: int


class DeltaBase(TypedDict):
    """A catalog that can be updated: its last commit, the format of its tables, the hashes of its views.

    `built_rows` and `built_bytes` are its size when it was built; updates have deleted or inserted `replaced_rows`.
    `image_change` is the last change of a picture's row in it.
    """

    commit_seq: int
    format: str
    views: Mapping[str, str]
    built_rows: int
    built_bytes: int
    replaced_rows: int
    image_change: NotRequired[int]


KEPT_PROPERTIES: Final = frozenset(
    {"lake_id", "source", "lang", "remote_publish", "published_targets", "rollback_pause"}
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
    delta_base: DeltaBase | None = None  # None: the catalog must be built from the parts
    purge_in_progress: tuple[int, ...] | None = None  # file ids; committed, but the old files may still exist
    purged_pictures: Sequence[str] = ()  # paths below the lake's folder that a purge in progress deletes
    rollback_pause: RollbackPause | None = None
    lake_id: str | None = None  # in hex; a target of another lake is refused
    remote_publish: PublishRecord | None = None
    published_targets: Mapping[str, bool] = {}  # records by URL, the newest last; whether published since a purge
    run_progress: RunProgress | None = None  # of the last run that fetched
    pending_rows_from: int | None = None  # first commit whose rows are not in parts, only its documents are

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
