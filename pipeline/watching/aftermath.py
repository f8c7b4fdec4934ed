"""What follows a run, in one place: it is counted, the metrics are written, and who wants to know is told.

`scanlake sync` does it for itself, whoever starts it; below a watch the watch does it, which outlives every run.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import structlog

from pipeline.errors import Exit
from pipeline.watching.alarms import alarm_of, is_wanted, ring
from pipeline.watching.child import is_watched
from pipeline.watching.metrics import write_metrics
from pipeline.watching.outcome import Kind, Outcome, failure_of
from pipeline.watching.record import Memory
from pipeline.watching.telemetry import refuse_without_extra, send_telemetry

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.settings import Settings
    from pipeline.watching.alarms import News
    from pipeline.watching.record import Record

_log = structlog.get_logger()
_TROUBLE: Final = frozenset({Kind.FAILED, Kind.STUCK})


class Account:
    """What a verb says of its run: the exit code it will return, and the object that --json prints."""

    def __init__(self) -> None:
        self.code = Exit.DONE
        self.told: dict[str, Any] = {}


@contextmanager
def accounted(settings: Settings, verb: str, source: str = "") -> Iterator[Account]:
    """The frame of a run: whatever it ends with is counted and told, unless a watch does that.

    Raises `SettingsError` at once for an `otel_endpoint` that cannot be served.
    """
    refuse_without_extra(settings)
    account, began = Account(), time.time()
    reason = ""
    try:
        yield account
    except BaseException as error:
        code, reason = failure_of(error)
        account.code = Exit(code)
        raise
    finally:
        if _is_wanted(settings) and not is_watched():
            seconds = time.time() - began
            outcome = Outcome(verb, settings.lake, account.code, reason, began, max(0.0, seconds), account.told)
            finish(settings, Memory(settings.lake), outcome, source)


def _is_wanted(settings: Settings) -> bool:
    return is_wanted(settings) or settings.metrics_file is not None or settings.otel_endpoint is not None


def finish(
    settings: Settings, memory: Memory, outcome: Outcome, source: str = "", *, stop: threading.Event | None = None
) -> Record:
    """Count the run, write the metrics, tell who is to be told. Never raises for what lies outside of us."""
    with memory.changing() as record:
        record.take(outcome)
        news = _news(outcome, record) if is_wanted(settings) else None
    labels = {"source": source} if source else {"lake": str(settings.lake.absolute())}
    if settings.metrics_file is not None:
        write_metrics(_of_source(settings.metrics_file, source), record, labels)
    if settings.otel_endpoint is not None:
        send_telemetry(settings.otel_endpoint, record, labels)
    if news is not None and ring(settings, alarm_of(news, outcome, source), stop=stop):
        with memory.changing() as record:
            record.told = [*record.told, outcome.code] if news == "failed" else []
    return record


def _of_source(path: Path, source: str) -> Path:
    """Sources that share the setting have a file each: m.prom is m-north.prom for north."""
    return path.with_name(f"{path.stem}-{source}{path.suffix}") if source else path


def _news(outcome: Outcome, record: Record) -> News | None:
    """What is new: a failure whose exit code was not told yet, or the end of a trouble that was."""
    if outcome.kind in _TROUBLE:
        return None if outcome.code in record.told else "failed"
    return "recovered" if outcome.kind is Kind.DONE and record.told else None
