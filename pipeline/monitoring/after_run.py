"""Bookkeeping after a run: run statistics, metrics file, alerts.

`scanlake sync` does this itself. Under `scanlake watch` the parent process does it, because it outlives every run.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import ExitCode, StorageError, to_scanlake_error
from pipeline.lake.lake_folder import find_enclosing_lake
from pipeline.lake.layout import LakeLayout
from pipeline.lake.ledger_format import LedgerIdentity, identify_ledger
from pipeline.logs import to_one_line
from pipeline.monitoring.alerts import build_alert, is_configured, send_alert, send_ping
from pipeline.monitoring.child_process import is_watched
from pipeline.monitoring.metrics import write_metrics
from pipeline.monitoring.outcome import Outcome, OutcomeKind
from pipeline.monitoring.run_history import RunStatsFile
from pipeline.progress import CrawlProgress
from schemas.timestamps import format_instant

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from pipeline.lake.lake import Lake
    from pipeline.monitoring.alerts import AlertEvent
    from pipeline.monitoring.run_history import RunStats
    from pipeline.progress import ProgressState
    from pipeline.settings import Settings

_FAILED_KINDS: Final = frozenset({OutcomeKind.FAILED, OutcomeKind.NEEDS_ATTENTION})
_MAX_REASONS: Final = 20
_MAX_INCONSISTENT_VERIFICATIONS: Final = 2
_INCONSISTENT_REASON: Final = "Lake and service differ in several verifications; see meta.verifications."
_NOT_PUBLISHED_REASON: Final = "The sync succeeded, but the object storage does not have it."


@dataclass(slots=True)
class RunResult:
    """The result of a command's run: its exit code, and the object that --json prints."""

    code: ExitCode = ExitCode.OK
    result: dict[str, Any] = field(default_factory=dict)


@contextmanager
def monitored_run(settings: Settings, command: str, source: str = "") -> Iterator[RunResult]:
    """Record the result of a run and send metrics and alerts; under `watch` the parent does this."""
    result, started_at = RunResult(), time.time()
    reason = error_type = ""
    try:
        yield result
    except BaseException as error:
        failure = to_scanlake_error(error)
        reason, error_type = to_one_line(f"{failure.message} {failure.hint}"), type(failure).__name__
        result.code = failure.exit_code
        raise
    finally:
        if (_has_receiver(settings) or _is_lake(settings.lake)) and not is_watched():
            seconds = max(0.0, time.time() - started_at)
            lake, code = settings.lake, result.code
            outcome = Outcome(command, lake, code, reason, started_at, seconds, result.result, error_type)
            record_run(settings, RunStatsFile(lake), outcome, source)


def _has_receiver(settings: Settings) -> bool:
    """Return whether metrics, alerts or pings of a run go anywhere."""
    return bool(is_configured(settings) or settings.on_success_webhook or settings.metrics_file)


def _is_lake(folder: Path) -> bool:
    with suppress(StorageError):
        return identify_ledger(LakeLayout(folder.absolute()).ledger) is LedgerIdentity.LEDGER
    return False


def record_run(
    settings: Settings,
    history: RunStatsFile,
    outcome: Outcome,
    source: str = "",
    *,
    stop: threading.Event | None = None,
) -> RunStats:
    """Add the run to the statistics, write metrics, send alerts. Failures to do so are logged, not raised."""
    if is_configured(settings) and find_enclosing_lake(settings.lake) is None:
        # An alert is sent once per kind of failure, also if the first sync has failed and made no lake.
        with suppress(OSError):
            settings.lake.mkdir(parents=True, exist_ok=True)
    with history.update() as stats:
        stats.add_run(outcome)
        if _is_lasting_inconsistency(outcome, stats):
            outcome = replace(outcome, code=ExitCode.REJECTS, reason=_INCONSISTENT_REASON)
            # The run itself succeeded: its earlier failures have ended.
            stats.alerted_exit_codes = [code for code in stats.alerted_exit_codes if code == ExitCode.REJECTS]
        elif outcome.kind is OutcomeKind.DONE and (problem := (outcome.result.get("publish") or {}).get("problem")):
            outcome = replace(outcome, code=ExitCode.PUBLISH, reason=f"{_NOT_PUBLISHED_REASON} {problem}")
            stats.alerted_exit_codes = [code for code in stats.alerted_exit_codes if code == ExitCode.PUBLISH]
        event = _alert_event(outcome, stats) if is_configured(settings) else None
    labels = metric_labels(settings, source)
    if settings.metrics_file is not None:
        write_metrics(settings.metrics_file, stats, labels)
    if outcome.kind is OutcomeKind.DONE:
        send_ping(settings, stop=stop)
    if event is not None and send_alert(settings, build_alert(event, outcome, source), stop=stop):
        with history.update() as stats:
            stats.alerted_exit_codes = [*stats.alerted_exit_codes, outcome.code] if event == "failed" else []
    return stats


def metric_labels(settings: Settings, source: str) -> dict[str, str]:
    """Return the labels of a lake's metrics: the source, or the folder of a lake without one."""
    return {"source": source} if source else {"lake": str(settings.lake.absolute())}


def _alert_event(outcome: Outcome, stats: RunStats) -> AlertEvent | None:
    """Return "failed" for an exit code without an alert so far, "recovered" for the first success after one."""
    if outcome.kind in _FAILED_KINDS or _is_lasting_inconsistency(outcome, stats):
        return None if outcome.code in stats.alerted_exit_codes else "failed"
    return "recovered" if outcome.kind is OutcomeKind.DONE and stats.alerted_exit_codes else None


def _is_lasting_inconsistency(outcome: Outcome, stats: RunStats) -> bool:
    """Return whether a run succeeded, yet lake and service differ in the last verifications.

    In one verification they can differ by chance. The alert has the exit code REJECTS, whatever code the run has.
    """
    return outcome.kind is OutcomeKind.DONE and stats.inconsistent_verifications >= _MAX_INCONSISTENT_VERIFICATIONS


# Figures of a run and its lake: from the ledger, without opening the catalog


@dataclass(frozen=True, slots=True)
class LakeBefore:
    """A lake before a run: published files, and the number of the next commit."""

    files: int
    next_commit_seq: int

    @classmethod
    def read_from(cls, lake: Lake) -> LakeBefore:
        """Return the present state of the lake."""
        snapshot = lake.ledger.last_snapshot()
        return cls(0 if snapshot is None else snapshot.files, lake.ledger.next_commit_seq())


@dataclass(frozen=True, slots=True)
class RunDelta:
    """The difference that a run made, and the limits of its requests."""

    added: int
    changed: int
    rows: dict[str, int]  # by table
    rejected: dict[str, int]  # documents and files that this run rejected, by reason
    throttled: int = 0
    max_requests_per_second: float | None = None
    concurrency: int = 0
    limited_by: str = ""


def measure_delta(lake: Lake, before: LakeBefore, *, run_id: str, stored: int, last: ProgressState | None) -> RunDelta:
    """Return the difference that the last run made: `stored` versions came in, `last` is its last progress."""
    ledger = lake.ledger
    snapshot = ledger.last_snapshot()
    added = min(max(0, (0 if snapshot is None else snapshot.files) - before.files), stored)
    progress = last if isinstance(last, CrawlProgress) else CrawlProgress()
    return RunDelta(
        added,
        stored - added,
        ledger.row_counts(since_seq=before.next_commit_seq),
        dict(islice(ledger.count_rejects(run_id).items(), _MAX_REASONS)),
        progress.throttled,
        progress.max_requests_per_second,
        progress.concurrency,
        progress.limited_by,
    )


def lake_stats(lake: Lake) -> dict[str, Any]:
    """Return the figures of a locked lake: files, rejects, bytes, the last verification, the learned limits.

    Instants are ISO-8601 text in UTC; unknown values are None.
    """
    ledger = lake.ledger
    snapshot = ledger.last_snapshot()
    reasons = ledger.count_rejects()
    verification = ledger.last_verification()
    limits = ledger.properties.learned_limits or {}
    return {
        "files": None if snapshot is None else snapshot.files,
        "deleted_files": ledger.count_deleted_files(),
        "rejects": sum(reasons.values()),
        "rejects_by_reason": dict(islice(reasons.items(), _MAX_REASONS)),
        "snapshot": None if snapshot is None else snapshot.snapshot,
        "watermark": None if snapshot is None or snapshot.watermark is None else format_instant(snapshot.watermark),
        "bytes": folder_bytes(lake.layout.root),
        "verified_at": None if verification is None else format_instant(verification.verified_at),
        "verified_consistent": None if verification is None else verification.consistent,
        "rate": limits.get("rate"),
        "concurrency": limits.get("concurrency"),
    }


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder; files that vanish during the count are ignored."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(path, name).lstat().st_size
    return total
