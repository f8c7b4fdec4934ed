"""What the page shows, as values. Moments are UTC without saying so, sizes bytes, ages days."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import date, datetime


@dataclass(frozen=True, slots=True)
class Freshness:
    """How current the snapshot is; see meta.freshness."""

    horizon: datetime | None
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
    files_expanded: int | None
    calls: int | None
    rejects: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class RunCount:
    """How many runs of a command ended in a state, of all that the catalog tells."""

    command: str
    state: str
    runs: int


@dataclass(frozen=True, slots=True)
class Verification:
    """A verify; see meta.verifications."""

    verified_at: datetime
    mode: str
    equal: bool
    files_there: int | None
    files_here: int | None
    missing: int | None
    stale: int | None
    gone: int | None


@dataclass(frozen=True, slots=True)
class Totals:
    """Files and uploads altogether, and the moments between which they were registered."""

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
class Damage:
    """Uploads of a type in a month: those that say whether they show damage, and those that do.

    `place` is the type's rank by number, from 1; the one behind the last shown gathers all others. `kinds` counts
    all types.
    """

    place: int
    kind: str | None
    kinds: int
    month: date
    told: int
    damaged: int


@dataclass(frozen=True, slots=True)
class Counted:
    """A name with its number. Of `names` names only the first ones are read; `total` is the sum over all."""

    name: str | None
    number: int
    total: int
    names: int


@dataclass(frozen=True, slots=True)
class Filled:
    """How many of `asked` (files, questions) hold a value. Of `names` names only the first ones are read."""

    name: str | None
    filled: int
    asked: int
    names: int
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Ages:
    """Open workflow runs by age class, as a place in `AGES`; None: it is not known when it began."""

    place: int | None
    runs: int


@dataclass(frozen=True, slots=True)
class OpenRun:
    """An open workflow run."""

    file_id: int
    scan_code: str | None
    workflow: str | None
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class Reason:
    """Rejects for one reason, ids left out of it."""

    reason: str
    rejects: int
    first_seen_at: datetime | None
    last_tried_at: datetime | None
    reasons: int


@dataclass(frozen=True, slots=True)
class Drift:
    """A key that the schema does not know, or whose values did not fit. `keys` counts all such keys."""

    table_name: str
    key: str
    kind: str
    count: int
    first_seen_at: datetime | None
    last_seen_at: datetime | None
    keys: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Files found gone in a span of time: a day or a month."""

    since: date
    files: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A published state. `snapshots` counts all that the catalog tells of."""

    snapshot: int
    published_at: datetime
    files: int
    snapshots: int


@dataclass(frozen=True, slots=True)
class Stored:
    """What a table's parts take."""

    table_name: str
    parts: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Job:
    """A report job: the last order of each batch counts. `jobs` counts all jobs."""

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
class Facts:
    """Everything the page shows, of one snapshot."""

    lake: str
    now: datetime
    fresh: Freshness
    totals: Totals
    runs: tuple[Run, ...]
    run_counts: tuple[RunCount, ...]
    verifications: tuple[Verification, ...]
    days: tuple[Day, ...]
    damage: tuple[Damage, ...]
    damage_kinds: tuple[Counted, ...]
    open_ages: tuple[Ages, ...]
    open_workflows: tuple[Counted, ...]
    open_oldest: tuple[OpenRun, ...]
    fields: tuple[Filled, ...]
    forms: tuple[Filled, ...]
    questions: tuple[Filled, ...]
    reasons: tuple[Reason, ...]
    drift: tuple[Drift, ...]
    gone: tuple[Gone, ...]
    gone_by_month: bool
    snapshots: tuple[Snapshot, ...]
    stored: tuple[Stored, ...]
    jobs: tuple[Job, ...]
