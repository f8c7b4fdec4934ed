"""Reports of a run at its end: metrics file, alerts when runs fail, recover and succeed."""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import contextmanager, suppress
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from msgspec import Struct
from yarl import URL

from pipeline.errors import ExitCode, ScanlakeError, SettingsError
from pipeline.lake.catalog.duckdb import read_database
from pipeline.lake.ledger.live_state import KILLED, read_live_state
from pipeline.lake.ledger.readonly import open_ledger_readonly
from pipeline.lake.ledger.sizes import LakeSize, measure_lake
from pipeline.lake.storage.layout import LakeLayout
from pipeline.lake.storage.mounts import find_lost_mount, name_record, write_record
from pipeline.output.findings import Finding, from_error, ok, warning
from pipeline.output.logs import log
from pipeline.output.progress import CrawlProgress
from pipeline.output.redaction import to_one_line
from pipeline.processes.event_loop import run_async
from pipeline.sync.metrics import require_metrics_file, write_metrics
from pipeline.sync.run_result import SYNC, RunResult, is_failure
from schemas.timestamps import format_instant, to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.queries import SnapshotRecord
    from pipeline.output.progress import ProgressState
    from pipeline.settings.settings import Settings

POST_SECONDS: Final = 8.0
_MAX_REASON_CHARS: Final = 1_000
_MAX_REASONS: Final = 20
_KILLED_CODE: Final = 137  # what a shell reports of SIGKILL
_MAX_INCONSISTENT: Final = 2  # in one they can differ by chance
ALERTED: Final = "-alerted"  # exit codes of the failures that were sent since the last success
_INCONSISTENT_REASON: Final = "Lake and service differ in several verifications; see meta.verifications."
_NOT_PUBLISHED_REASON: Final = "The sync succeeded, but its publish to object storage failed."
_NO_IMAGES_REASON: Final = "The sync succeeded, but the download of images after it failed."


async def report_run(settings: Settings, result: RunResult) -> None:
    """Report a run by each channel: metrics, an alert.

    What one of them needs can be what has failed: its own failure is logged, and the others report all the same.
    """
    if settings.metrics_file is not None:
        labels = {"source": result.source} if result.source else {"lake": str(result.lake.absolute())}
        with _log_failure("metrics.write_failed"), suppress(SettingsError):  # a file of others has ended the run
            require_metrics_file(settings)
            write_metrics(settings.metrics_file, labels, result, _measure_free_space(settings.lake))
    with _log_failure("alert.failed"):
        await _alert(settings, result)


@contextmanager
def _log_failure(event: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever ends one channel, the others report
        log.warning(event, reason=to_one_line(str(error)), exc_info=error)


def _measure_free_space(lake: Path) -> int | None:
    """Return the free bytes of a lake's disk; None if there is no lake, so that they are not of another disk."""
    with suppress(OSError):
        return None if find_lost_mount(lake) else shutil.disk_usage(lake).free
    return None


async def _alert(settings: Settings, result: RunResult) -> None:
    """Send "failed" once per exit code until a sync succeeds, "recovered" at the first success, "succeeded" later.

    Of another command than sync nothing is remembered: each failure is sent.
    """
    problem = _find_problem(settings, result)
    if result.command != SYNC:
        if problem is not None and not result.follows_sync:
            await send_alert(settings, result, "failed", *problem)
        return
    alerted = _read_alerted_codes(settings.lake)
    if problem is not None:
        if result.is_done:  # the run itself succeeded: its earlier failures have ended
            alerted &= {problem[0]}
        if problem[0] not in alerted and await send_alert(settings, result, "failed", *problem):
            alerted.add(problem[0])
    elif result.is_done and await send_alert(settings, result, "recovered" if alerted else "succeeded", result.code):
        alerted.clear()
    if result.code != ExitCode.LOCKED:  # the time of the record is the end of the last sync
        write_record(settings.lake, ALERTED, " ".join(map(str, sorted(alerted))).encode())


def _find_problem(settings: Settings, result: RunResult) -> tuple[int, str] | None:
    """Return exit code and reason of a failure, or of a problem that a successful sync leaves."""
    if result.has_failed:
        return result.code, result.reason
    if result.is_done and result.command == SYNC:
        if _is_inconsistent(settings.lake):
            return ExitCode.REJECTS, _INCONSISTENT_REASON
        if problem := (result.result.get("publish") or {}).get("problem"):
            return ExitCode.PUBLISH, f"{_NOT_PUBLISHED_REASON} {problem}"
        images = result.result.get("images") or {}
        if is_failure(images.get("exit_code", ExitCode.OK)):
            return images["exit_code"], f"{_NO_IMAGES_REASON} {images['problem'] or ''}".rstrip()
    return None


def _is_inconsistent(lake: Path) -> bool:
    """Return whether the last verifications found differences; False if that is unknown."""
    with suppress(ScanlakeError), open_ledger_readonly(LakeLayout(lake)) as ledger:
        last = ledger.query(f"SELECT consistent FROM verification ORDER BY verified_at DESC LIMIT {_MAX_INCONSISTENT}")
        return len(last) == _MAX_INCONSISTENT and not any(row["consistent"] for row in last)
    return False


def _read_alerted_codes(lake: Path) -> set[int]:
    with suppress(OSError, RuntimeError, ValueError):
        return set(map(int, name_record(lake, ALERTED).read_bytes().split()))
    return set()


def report_killed_sync(settings: Settings, source: str = "") -> None:
    """Report the last sync as failed if it was killed and is not reported yet: a sync that is killed cannot do it."""
    state = read_live_state(settings.lake, runs=1)
    last = next((run for run in state.runs if run.command == SYNC), None) if state is not None else None
    if last is None or last.state != "interrupted" or last.error not in {KILLED, "killed"}:  # "killed": by a later run
        return
    started_at = to_datetime(last.started_at)
    with suppress(OSError, RuntimeError):
        if name_record(settings.lake, ALERTED).stat().st_mtime >= started_at.timestamp():
            return
    reason = f"The sync of {format_instant(last.started_at)} was killed, or the machine stopped."
    result = RunResult(settings.lake, source, _KILLED_CODE, reason, started_at=started_at)
    result.result = {"run_id": last.run_id}
    run_async(report_run(settings, result))


# Alerts: one POST of JSON to `notify_url`, without the token, with a time limit


async def send_alert(settings: Settings, result: RunResult, event: str, exit_code: int, reason: str = "") -> bool:
    """Send an alert about a run: "failed", "recovered" or "succeeded"; return if the receiver took it, or is none."""
    if settings.notify_url is None:
        return True
    reason = to_one_line(reason)[:_MAX_REASON_CHARS]
    what = {"failed": f"failed: {reason}", "recovered": "works again", "succeeded": "succeeded"}[event]
    lake = str(result.lake.absolute())
    body = {
        "text": f"scanlake {result.command} of {result.source or lake} {what}",  # chat services show it
        "event": event,
        "reason": reason,
        "exit_code": exit_code,
        "command": result.command,
        "lake": lake,
        "source": result.source,
        "run_id": str(result.result.get("run_id") or ""),
    }
    problem = await _post(settings.notify_url.reveal(), body)
    if problem is None:
        log.info("alert.sent", alert=event, exit_code=exit_code)
    else:
        log.warning("alert.failed", alert=event, reason=problem)
    return problem is None


async def _post(url: str, body: Mapping[str, Any]) -> str | None:
    """Return the problem, without the URL, which is a secret; None if it answered 2xx. A redirect is a problem."""
    timeout = aiohttp.ClientTimeout(total=POST_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(URL(url, encoded=True), json=body, allow_redirects=False) as response,
        ):
            return None if 200 <= response.status < 300 else f"notify_url: HTTP {response.status}"
    except (OSError, ValueError, aiohttp.ClientError) as error:
        return f"notify_url: {type(error).__name__}"


def check_channels(settings: Settings) -> Iterator[Finding]:
    """Yield findings for `metrics_file` and `notify_url`. Nothing is written and nothing is sent."""
    if (file := settings.metrics_file) is not None:
        try:
            require_metrics_file(settings)
            folder = next(folder for folder in file.absolute().parents if folder.exists())
            if os.access(folder, os.W_OK | os.X_OK):
                yield ok("settings", "metrics_file", f"{folder} can be written")
            else:
                yield warning("settings", "metrics_file", f"{folder} cannot be written", "Correct its permissions.")
        except SettingsError as failure:
            yield from_error("settings", "metrics_file", failure)
    if settings.notify_url is not None:
        url = URL(settings.notify_url.reveal(), encoded=True)
        try:
            socket.create_connection((url.host or "", url.port or 443), timeout=POST_SECONDS).close()
            yield ok("settings", "notify_url", "its host accepts connections; no alert was sent")
        except (OSError, UnicodeError) as failure:  # the second: of a name that the name system cannot have
            problem = f"no connection to its host: {type(failure).__name__}"
            yield warning("settings", "notify_url", problem, "Correct notify_url, or start the receiver.")


# Figures of a run and its lake: from the ledger, without opening the catalog


class RunDelta(Struct, frozen=True):
    """The difference that a run made, and the limits of its requests."""

    added: int
    changed: int
    rows: dict[str, int]  # by table
    rejected: dict[str, int]  # documents and files that this run rejected, by reason
    throttled: int = 0
    max_requests_per_second: float | None = None
    concurrency: int = 0
    limited_by: str = ""


def measure_delta(
    lake: Lake, run_id: str, stored: int, before: tuple[SnapshotRecord | None, int], last: ProgressState | None
) -> RunDelta:
    """Return the difference that the last run made: `stored` versions came in, `last` is its last progress.

    `before` are the snapshot and the number of the next commit before the run.
    """
    ledger = lake.ledger
    files = [0 if snapshot is None else snapshot.files for snapshot in (before[0], ledger.last_snapshot())]
    added = min(max(0, files[1] - files[0]), stored)
    progress = last if isinstance(last, CrawlProgress) else CrawlProgress()
    return RunDelta(
        added,
        stored - added,
        _count_new_rows(lake.layout, since_seq=before[1]),
        dict(islice(ledger.count_rejects(run_id).items(), _MAX_REASONS)),
        progress.throttled,
        progress.max_requests_per_second,
        progress.concurrency,
        progress.limited_by,
    )


def _count_new_rows(layout: LakeLayout, *, since_seq: int) -> dict[str, int]:
    """Return the number of rows by table that the published catalog has of a commit and the later ones."""
    if not layout.catalog.exists():
        return {}
    with read_database(layout.catalog) as db:
        columns = "FROM duckdb_columns() WHERE column_name = '_seq' AND database_name = 'lake'"
        tables = db.execute(f"SELECT table_name, schema_name || '.' || table_name {columns} ORDER BY ALL").fetchall()
        sql = "SELECT count(*) FROM {} WHERE _seq >= {}"
        counts = {name: db.execute(sql.format(path, since_seq)).fetchall()[0][0] for name, path in tables}
    return {name: rows for name, rows in counts.items() if rows}


class LakeStats(Struct, frozen=True):
    """The figures of a lake: files, rejects, bytes, the last verification, the learned limits; None: unknown."""

    files: int | None
    deleted_files: int
    rejects: int
    rejects_by_reason: dict[str, int]
    snapshot: int | None
    watermark: datetime | None
    bytes: int
    size: LakeSize
    disk_free_bytes: int
    verified_at: datetime | None
    verified_consistent: bool | None
    rate: float | None
    concurrency: int | None

    @classmethod
    def read_from(cls, lake: Lake) -> LakeStats:
        """Return the figures of a locked lake."""
        ledger = lake.ledger
        snapshot, verification = ledger.last_snapshot(), ledger.last_verification()
        watermark = None if snapshot is None else snapshot.watermark
        reasons = ledger.count_rejects()
        limits, size = ledger.properties.learned_limits or {}, measure_lake(lake.layout, ledger)
        return cls(
            files=None if snapshot is None else snapshot.files,
            deleted_files=ledger.count_deleted_files(),
            rejects=sum(reasons.values()),
            rejects_by_reason=dict(islice(reasons.items(), _MAX_REASONS)),
            snapshot=None if snapshot is None else snapshot.snapshot,
            watermark=None if watermark is None else to_datetime(watermark),
            bytes=size.total,
            size=size,
            disk_free_bytes=shutil.disk_usage(lake.layout.root).free,
            verified_at=None if verification is None else to_datetime(verification.verified_at),
            verified_consistent=None if verification is None else verification.consistent,
            rate=limits.get("rate"),
            concurrency=limits.get("concurrency"),
        )
