"""A sync that the system or a power loss ends records no end: the next sync counts it, and sends its alert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.lake.live_state import read_live_state
from pipeline.monitoring.after_run import record_run
from pipeline.monitoring.run_history import RunStatsFile
from pipeline.monitoring.run_result import RunResult
from pipeline.process import run_async
from schemas.timestamps import format_instant, to_datetime

if TYPE_CHECKING:
    from pipeline.settings import Settings

_COMMAND: Final = "sync"
_KILLED_CODE: Final = 137  # what a shell reports of SIGKILL


def record_killed_sync(settings: Settings, source: str = "") -> None:
    """Count the last sync as failed, with metrics and an alert, if it was killed and is not counted yet."""
    state = read_live_state(settings.lake, runs=1)
    last = next(iter(state.runs), None) if state is not None else None
    if last is None or last.command != _COMMAND or last.state != "interrupted":
        return
    history, started_at = RunStatsFile(settings.lake), to_datetime(last.started_at)
    if history.last.last_ended is not None and history.last.last_ended >= started_at:
        return
    reason = f"The sync of {format_instant(last.started_at)} was killed, or the machine stopped."
    result = RunResult(_COMMAND, settings.lake, source, _KILLED_CODE, reason, started_at=started_at)
    result.result = {"run_id": last.run_id}
    run_async(record_run(settings, history, result))
