"""What stands in the ledger, as frozen values. Instants are microseconds UTC unless a field says seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schemas.versions import Reject, Tombstone, Version


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
    digests: Sequence[bytes] | None = None
    healed: Sequence[int] = ()
    owed: Sequence[tuple[int, int | None]] = ()
    names: Mapping[tuple[str, str], int] | None = None
