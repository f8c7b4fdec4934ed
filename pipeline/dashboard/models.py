"""The values on the page. Instants are naive UTC, sizes bytes, ages days."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import date, datetime


@dataclass(frozen=True, slots=True)
class Freshness:
    """Freshness of the snapshot; see meta.freshness."""

    watermark: datetime | None
    snapshot: int
    complete: bool
    published_at: datetime
    files: int
    deleted_files: int
    rejects: int


@dataclass(frozen=True, slots=True)
class Run:
    """A run. `calls` are list and detail calls."""

    run_id: str
    command: str
    state: str
    started_at: datetime
    seconds: float | None
    files_stored: int | None
    calls: int | None
    rejects: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class RunCount:
    """Runs of a command by state, over all runs in the catalog."""

    command: str
    state: str
    runs: int


@dataclass(frozen=True, slots=True)
class Verification:
    """A verification run; see meta.verifications."""

    verified_at: datetime
    mode: str
    consistent: bool
    files_in_service: int | None
    files_in_lake: int | None
    missing: int | None
    stale: int | None
    deleted: int | None


@dataclass(frozen=True, slots=True)
class Totals:
    """Number of files and uploads, and their first and last registration."""

    files: int
    uploads: int
    first_file: datetime | None
    last_file: datetime | None
    files_undated: int
    uploads_undated: int


@dataclass(frozen=True, slots=True)
class Day:
    """Files and uploads registered on a day (UTC)."""

    day: date
    files: int
    uploads: int


@dataclass(frozen=True, slots=True)
class DamageRate:
    """Uploads of a type in a month: those with a damage flag, and those with damage.

    `rank` is the type's rank by number, from 1; the last rank collects all other types. `kinds` counts all types.
    """

    rank: int
    kind: str | None
    kinds: int
    month: date
    with_flag: int
    damaged: int


@dataclass(frozen=True, slots=True)
class NameCount:
    """A name with its number. `names` counts all names, `total` is the sum over all."""

    name: str | None
    number: int
    total: int
    names: int


@dataclass(frozen=True, slots=True)
class FillRate:
    """Number of `asked` (files, questions) with a value. `names` counts all names."""

    name: str | None
    filled: int
    asked: int
    names: int
    sent: int = 0


@dataclass(frozen=True, slots=True)
class AgeBucket:
    """Open workflow runs by age: an index of `AGE_BUCKETS`; None for an unknown start."""

    bucket: int | None
    runs: int


@dataclass(frozen=True, slots=True)
class OpenRun:
    """An open workflow run."""

    file_id: int
    scan_code: str | None
    workflow: str | None
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class RejectReason:
    """Rejects for one reason; ids in the reason are replaced."""

    reason: str
    rejects: int
    first_seen_at: datetime | None
    last_tried_at: datetime | None
    reasons: int


@dataclass(frozen=True, slots=True)
class DriftEntry:
    """A key unknown to the schema, or with values of another type. `keys` counts all such keys."""

    table_name: str
    key: str
    kind: str
    count: int
    first_seen_at: datetime | None
    last_seen_at: datetime | None
    keys: int


@dataclass(frozen=True, slots=True)
class DeletionCount:
    """Deletions detected in a day or a month."""

    since: date
    files: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A published snapshot. `snapshots` counts all in the catalog."""

    snapshot: int
    published_at: datetime
    files: int
    snapshots: int


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size of the parts of a table."""

    table_name: str
    parts: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Job:
    """A report job; the last order of each batch counts. `jobs` counts all jobs."""

    job: str
    ordered_at: datetime | None
    batches: int
    delivered: int
    files: int
    files_delivered: int
    bytes: int
    failed: int
    jobs: int


@dataclass(frozen=True, slots=True)
class RemotePublish:
    """The last publish to object storage, from the ledger. `problem` is None if it succeeded."""

    target: str
    snapshot: int | None
    published_at: datetime | None
    problem: str | None
    failures: int


@dataclass(frozen=True, slots=True)
class DashboardData:
    """All values on the page, from one snapshot. Runs, `failing` and `paused_at` are the ledger's, if there is one.

    `source` is the address of the service, `failing` has the reason why the last runs failed, `paused_at` is the
    snapshot of a rollback that pauses syncs.
    """

    lake: str
    now: datetime
    freshness: Freshness
    totals: Totals
    runs: tuple[Run, ...]
    run_counts: tuple[RunCount, ...]
    verifications: tuple[Verification, ...]
    days: tuple[Day, ...]
    damage: tuple[DamageRate, ...]
    damage_kinds: tuple[NameCount, ...]
    open_ages: tuple[AgeBucket, ...]
    open_workflows: tuple[NameCount, ...]
    open_oldest: tuple[OpenRun, ...]
    fields: tuple[FillRate, ...]
    forms: tuple[FillRate, ...]
    questions: tuple[FillRate, ...]
    reject_reasons: tuple[RejectReason, ...]
    drift: tuple[DriftEntry, ...]
    deletions: tuple[DeletionCount, ...]
    deletions_by_month: bool
    snapshots: tuple[Snapshot, ...]
    table_sizes: tuple[TableSize, ...]
    jobs: tuple[Job, ...]
    publish: RemotePublish | None = None
    failing: str | None = None
    paused_at: int | None = None
    source: str | None = None
