"""`scanlake status`: freshness and runs from the ledger; counts and rejects from the published catalog."""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode, LakeCorruptedError, ScanlakeError, StorageError
from pipeline.lake.ledger.live_state import IMAGES_COMMAND, LiveState, load_live_state
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.ledger.sizes import LakeSize, read_size
from pipeline.output.formatting import (
    format_age,
    format_bytes,
    format_duration,
    format_instant,
    format_minute,
    format_path,
    pluralize,
)
from pipeline.output.redaction import to_one_line
from pipeline.output.tables import format_table
from pipeline.publish.outcome import PublishOutcome
from pipeline.query.reader import fetch_dicts, has_catalog, open_catalog
from pipeline.settings.settings import Settings
from pipeline.sync.run_result import Failures, find_failures
from schemas.timestamps import SECOND, to_datetime

if TYPE_CHECKING:
    import duckdb

_MAX_REASONS: Final = 10
_FULL_BYTES: Final = 1_000_000  # free, below which no run commits
_REJECTS: Final = """
    (SELECT reason, count(*) AS files, min(first_seen_at) AS first_seen_at, max(last_tried_at) AS last_tried_at,
            (list(file_id ORDER BY file_id))[:5] AS file_ids
    FROM meta.rejects GROUP BY reason) ORDER BY files DESC, reason
"""
_TABLES: Final = """
    SELECT DISTINCT 'main' AS schema, table_name AS name FROM meta.data_dictionary WHERE NOT is_view
    UNION ALL SELECT 'meta', 'misfits' ORDER BY ALL
"""  # from the catalog, because the declared tables take long to load
_Row = TypeVar("_Row", bound=Struct)


class Freshness(Struct, frozen=True):
    """The published snapshot, with the watermark and the last verification from the ledger.

    Before the first publish there is no snapshot, and `files` are those that the ledger has.
    """

    watermark: datetime | None = None
    age_seconds: float | None = None
    snapshot: int | None = None
    complete: bool = False
    published_at: datetime | None = None
    files: int = 0
    deleted_files: int = 0
    rejects: int = 0
    last_verify_at: datetime | None = None


class RunStatus(Struct, frozen=True):
    """A run, as in meta.runs."""

    run_id: str
    command: str
    version: str
    started_at: datetime
    state: str
    ended_at: datetime | None
    watermark: datetime | None
    files_listed: int
    files_stored: int
    details_fetched: int
    files_skipped: int
    files_deleted: int
    rejects: int
    requests_list: int
    requests_detail: int
    retries: int
    seconds: float | None
    snapshot: int | None
    error: str | None


class RunningStatus(Struct, frozen=True):
    """The run that is going on, with its progress at its last commit."""

    run_id: str
    command: str
    started_at: datetime
    files_listed: int
    files_stored: int
    files_in_lake: int
    done: int | None = None
    total: int | None = None
    eta_seconds: float | None = None


class RejectedFiles(Struct, frozen=True):
    """The rejects of one reason, with the first ids."""

    reason: str
    files: int
    first_seen_at: datetime
    last_tried_at: datetime
    file_ids: Sequence[int | None]


class LakeStatus(Struct, frozen=True):
    """The state of a lake. A copy of the catalog alone has no `base_url`; what the ledger knows is null.

    The service's list counts `unproven_files` that no page shows. Each sync fetches `unstable_files` again.
    `has_gaps`: files that were updated after the watermark are in the lake, and not all of them.
    `problem` is why the next run cannot write, or why the state of the runs is unknown.
    """

    lake: Path
    source: str | None
    base_url: str | None = None
    freshness: Freshness = Freshness()
    lacks_rows: bool | None = None
    is_catalog_changed: bool | None = None
    publish: PublishOutcome | None = None
    tables: Mapping[str, int] = field(default_factory=dict)
    running: RunningStatus | None = None
    paused_at_snapshot: int | None = None
    problem: str | None = None
    failures: Failures | None = None
    images: Failures | None = None
    interrupted: str | None = None
    size: LakeSize | None = None
    unproven_files: int = 0
    unstable_files: int = 0
    has_gaps: bool = False
    was_verified: bool = False
    is_consistent: bool | None = None
    runs: Sequence[RunStatus] = ()
    rejects: Sequence[RejectedFiles] = ()


EXAMPLES: Final = ("status", "status --all --json")
TAKES_ALL_SOURCES: Final = True
RESULT: Final = LakeStatus


def run(
    context: CommandContext,
    *,
    runs: Annotated[int, typer.Option(min=0, max=1000, help="Number of recent runs to show.")] = 5,
) -> ExitCode:
    """Show how current and how complete the lake is.

    It makes no calls to the service and does not disturb runs. For a catalog without a lake, such as a copy, it shows
    what the catalog knows.
    """
    settings = context.settings()
    state, problem = _load_state(settings.lake, runs)
    status = LakeStatus(settings.lake, context.source)
    if problem is not None:
        status = replace(status, problem=to_one_line(f"{problem.message} {problem.hint}"))
        if not has_catalog(settings):
            raise problem
    if state is not None and not state.has_snapshots:
        status = replace(status, freshness=replace(status.freshness, files=state.files))
    else:
        status = _read_catalog(status, settings, runs)
    if state is not None:
        status = replace(_update(status, state, runs), size=read_size(settings.lake))
    has_failed = status.failures or status.images or (status.publish is not None and status.publish.problem)
    code = problem.exit_code if problem is not None else ExitCode.FAILED if has_failed else ExitCode.OK
    return context.print_result(status, lambda: _format_status(status), code)


def _load_state(lake: Path, runs: int) -> tuple[LiveState | None, ScanlakeError | None]:
    """Return the state of the lake, and why it cannot be read, or why no run can write."""
    try:
        state = load_live_state(lake, runs=runs)
    except (LakeCorruptedError, StorageError) as error:
        return None, error
    free = shutil.disk_usage(lake).free if os.access(lake, os.W_OK) else _FULL_BYTES
    full = StorageError(f"{lake}: {format_bytes(free)} free.", hint="Free disk space: a sync cannot commit.")
    return state, full if free < _FULL_BYTES else None


def _read_catalog(status: LakeStatus, settings: Settings, runs: int) -> LakeStatus:
    """Return the status with what the published catalog knows."""
    with open_catalog(settings) as lake:
        [freshness] = _select(lake, Freshness, "meta.freshness")
        last = fetch_dicts(lake, "SELECT consistent FROM meta.verifications ORDER BY verified_at DESC LIMIT 1")
        return replace(
            status,
            freshness=freshness,
            tables=_count_rows(lake),
            was_verified=freshness.last_verify_at is not None,
            is_consistent=last[0]["consistent"] if last else None,
            runs=_select(lake, RunStatus, f"meta.runs ORDER BY started_at DESC LIMIT {runs}"),
            rejects=_select(lake, RejectedFiles, _REJECTS),
        )


def _count_rows(lake: "duckdb.DuckDBPyConnection") -> dict[str, int]:
    """Return the number of rows of each table, by one query: each takes half a millisecond to plan."""
    tables = fetch_dicts(lake, _TABLES)
    columns = [f"(SELECT count(*) FROM {row['schema']}.{row['name']}) AS {row['name']}" for row in tables]
    [counts] = fetch_dicts(lake, f"SELECT {', '.join(columns)}")
    return counts


def _select(lake: "duckdb.DuckDBPyConnection", kind: type[_Row], source: str) -> list[_Row]:
    """Return rows of the catalog as values of `kind`."""
    names = ", ".join(kind.__struct_fields__)
    return [kind(**row) for row in fetch_dicts(lake, f"SELECT {names} FROM {source}")]


def _update(status: LakeStatus, state: LiveState, runs: int) -> LakeStatus:
    """Return the status with what the ledger knows; it is ahead of the published catalog."""
    properties, freshness, newest = state.properties, status.freshness, next(iter(state.runs), None)
    # None while all is read again: then the watermark of the catalog is wrong.
    seconds = properties.watermark
    age, watermark = (None, None) if seconds is None else (time.time() - seconds, _to_instant(seconds * SECOND))
    freshness = replace(freshness, watermark=watermark, age_seconds=age)
    # None after a rollback: later deletions are unknown again.
    freshness = replace(freshness, last_verify_at=_to_instant(properties.last_verify_at))
    interrupted = None
    if newest is not None and newest.state == "interrupted":
        reason = to_one_line(newest.error or "interrupted").rstrip(".")
        interrupted = f"the last run ({newest.command}) did not finish: {reason}."
    return replace(
        status,
        base_url=properties.source,
        freshness=freshness,
        lacks_rows=properties.has_unpublished_rows,
        is_catalog_changed=state.is_catalog_changed,
        failures=find_failures(state),
        images=find_failures(state, frozenset({IMAGES_COMMAND})),
        publish=None if (last := properties.remote_publish) is None else PublishOutcome.from_record(last),
        running=_describe_running(state),
        paused_at_snapshot=None if (pause := properties.rollback_pause) is None else pause["to"],
        interrupted=interrupted,
        unproven_files=properties.unproven_files,
        unstable_files=state.unstable_files,
        has_gaps=properties.watermark is not None and state.has_gaps,
        was_verified=freshness.last_verify_at is not None or state.was_verified,
        runs=[_describe_run(run) for run in state.runs[:runs]],
    )


def _describe_run(run: RunRecord) -> RunStatus:
    instants = {name: _to_instant(getattr(run, name)) for name in ("started_at", "ended_at", "watermark")}
    return RunStatus(**asdict(run) | instants)


def _describe_running(state: LiveState) -> RunningStatus | None:
    if (run := state.running) is None:
        return None
    started_at, counts = to_datetime(run.started_at), (run.files_listed, run.files_stored, state.files)
    running = RunningStatus(run.run_id, run.command, started_at, *counts)
    if (progress := state.progress) is None:
        return running
    return replace(running, done=progress["done"], total=progress["total"], eta_seconds=progress["eta_seconds"])


def _to_instant(micros: int | None) -> datetime | None:
    return None if micros is None else to_datetime(micros)


# Text


def _format_status(status: LakeStatus) -> str:
    lines = [*_summary_lines(status), ""]
    if status.tables:
        counts = [(name, f"{count:,}") for name, count in status.tables.items()]
        lines.append(format_table(("table", "rows"), counts))
    if status.runs:
        lines += ["", format_table(_RUN_HEADINGS, map(_format_run, status.runs), null="")]
    if status.rejects:
        lines.append("Rejects (every run retries the files; see meta.rejects):")
        for reject in status.rejects[:_MAX_REASONS]:
            ids = ", ".join(str(file_id) for file_id in reject.file_ids if file_id is not None)
            lines.append(f"  {reject.files:,} x {to_one_line(reject.reason)}" + (f": {ids}" if ids else ""))
        if any(None in reject.file_ids for reject in status.rejects):
            lines.append("  A list item without an id is dropped by the first verify that no longer finds it.")
    return "\n".join(line.removesuffix("\n") for line in lines) + "\n"


def _summary_lines(status: LakeStatus) -> list[str]:
    fresh = status.freshness
    published = f"Snapshot {fresh.snapshot}, published {format_instant(fresh.published_at)}"
    published += "." if fresh.complete else ", during a run."
    lines = [_describe_lake(status), "Nothing is published yet." if fresh.snapshot is None else published]
    # A publish failed or was killed.
    if fresh.snapshot is not None and status.lacks_rows and status.running is None:
        lines.append("catalog.duckdb lacks the newest rows: the next sync publishes them.")
    if status.is_catalog_changed:
        lines.append("catalog.duckdb has changed since it was published: `scanlake check` compares its rows.")
    lines += _state_lines(status)
    if status.size is not None:
        lines.append(f"{format_bytes(status.size.total)}: {status.size.details}.")
    if status.publish is not None:
        lines.append(str(status.publish))
    if fresh.watermark is None or fresh.age_seconds is None:
        lines.append("Not complete, no watermark yet: the sync that lists all files has not finished.")
    else:
        age = format_age(fresh.age_seconds)
        lines.append(f"Everything updated before {format_instant(fresh.watermark)} is in the lake ({age}).")
    if status.has_gaps:
        lines.append(
            "Not complete: the lake has only part of what was updated since; `scanlake sync` fetches the rest."
        )
    if status.unproven_files:
        files = pluralize(status.unproven_files, "file")
        lines.append(f"The service's list counts {files} that are on none of its pages; the watermark waits.")
    if status.unstable_files:
        files = pluralize(status.unstable_files, "file")
        lines.append(f"{files} may have changed since the fetch: the next syncs fetch them again.")
    if status.is_consistent is False:
        lines.append("Compared with the service: not consistent. `scanlake verify` repairs it.")
    elif fresh.last_verify_at is None:
        never = "Not verified since the last rollback" if status.was_verified else "Never verified"
        lines.append(f"{never}; `scanlake verify` detects deletions.")
    else:
        lines.append(f"Verified {format_instant(fresh.last_verify_at)}.")
    return lines


def _describe_lake(status: LakeStatus) -> str:
    name = f"Source {status.source}: " if status.source else ""
    service = f" of {status.base_url}" if status.base_url else ""
    return f"{name}{pluralize(status.freshness.files, 'file')}{service} in {format_path(status.lake)}."


def _state_lines(status: LakeStatus) -> list[str]:
    """Return what a reader must know first: failures, a pause, and the run that is going on."""
    lines = [] if status.problem is None else [f"Failing: {status.problem}"]
    if status.images is not None:
        lines.append(f"Images: {status.images}")
    if status.failures is not None:
        lines.append(f"Failing: {status.failures}")
    elif status.interrupted is not None:
        lines.append(f"Interrupted: {status.interrupted}")
    if (snapshot := status.paused_at_snapshot) is not None:
        lines.append(
            f"Paused: the lake was rolled back to snapshot {snapshot}; `scanlake rollback --undo` allows syncs."
        )
    if (run := status.running) is not None:
        counts = [f"{run.files_listed:,} listed", f"{run.files_stored:,} fetched"]
        if run.total is not None and run.done is not None:
            counts.append(f"{max(0, run.total - run.done):,} of {run.total:,} to go")
        if run.eta_seconds is not None:
            counts.append(f"{format_duration(round(run.eta_seconds))} left")
        lines.append(f"Running: {run.command} since {format_instant(run.started_at)}: {', '.join(counts)}.")
    return lines


_RUN_HEADINGS: Final = ("command", "state", "started (UTC)", "fetched", "rejects", "seconds", "run", "error")


def _format_run(run: RunStatus) -> tuple[str | None, ...]:
    seconds = None if run.seconds is None else f"{round(run.seconds, 1):,}"
    counts = (f"{run.files_stored:,}", f"{run.rejects:,}", seconds)
    return (run.command, run.state, format_minute(run.started_at), *counts, run.run_id, run.error)
