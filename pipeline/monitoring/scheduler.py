"""Runs of `scanlake watch`: each lake is synced again and again, until the process is stopped."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.errors import ExitCode, ScanlakeError
from pipeline.formatting import format_duration
from pipeline.logs import get_logger
from pipeline.monitoring.after_run import record_run
from pipeline.monitoring.child_process import run_child
from pipeline.monitoring.run_history import RunStatsFile
from pipeline.monitoring.run_result import RunOutcome, RunResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.monitoring.schedule import Schedule
    from pipeline.settings import Settings

COMMAND: Final = "sync"
_FATAL: Final = frozenset({int(ExitCode.USAGE), int(ExitCode.AUTH)})
_log = get_logger()


@dataclass(slots=True)
class Watcher:
    """The watch of one lake. `argv` is one run; `load_settings` reads the settings before each run."""

    source: str
    argv: Sequence[str]
    load_settings: Callable[[], Settings]
    schedule: Schedule
    max_runs: int | None = None  # None: until stopped
    never_gives_up: bool = False  # the same process watches other lakes
    runs: int = 0
    last_run: RunResult | None = None
    _consecutive: int = 0
    _has_synced: bool = False

    async def run(self) -> int:
        """Run until stopped.

        Return the exit code of the last run after `max_runs` runs, or after a settings or authentication error on a
        lake that this watch has not synced before. A lake that it has synced is retried with a long back-off: the
        operator may correct the file that caused the error.
        """
        settings = self.load_settings()
        history = RunStatsFile(settings.lake)
        if self.max_runs != 1:
            await asyncio.sleep(self.schedule.initial_delay())
        while True:
            with suppress(ScanlakeError):  # the run reports it
                settings = self.load_settings()  # and reopen the log file, which a run may have rotated
            result = await self._run_once(settings, history)
            is_fatal = result.outcome is RunOutcome.NEEDS_ATTENTION and result.code in _FATAL
            if is_fatal and not self._has_synced and not self.never_gives_up:
                _log.error("watch.ended", **self._source_field, exit_code=result.code, reason=result.reason)
                return result.code
            if self.max_runs is not None and self.runs >= self.max_runs:
                return result.code
            delay = self.schedule.next_delay(result.outcome, self._consecutive, run_seconds=result.seconds)
            self._log_result(result, delay)
            await asyncio.sleep(delay)

    async def _run_once(self, settings: Settings, history: RunStatsFile) -> RunResult:
        result = await run_child(self.argv, RunResult(COMMAND, settings.lake, self.source))
        is_same = self.last_run is not None and self.last_run.outcome is result.outcome
        self._consecutive = self._consecutive + 1 if is_same else 1
        self.last_run = result
        self.runs += result.outcome is not RunOutcome.LOCKED
        self._has_synced |= result.outcome in {RunOutcome.DONE, RunOutcome.PAUSED}
        await record_run(settings, history, result)
        return result

    @property
    def last_code(self) -> int | None:
        """Exit code of the last run; None before the first one has ended."""
        return None if self.last_run is None else self.last_run.code

    @property
    def _source_field(self) -> dict[str, str]:
        return {"source": self.source} if self.source else {}

    def _log_result(self, result: RunResult, delay: float) -> None:
        fields = {**self._source_field, "seconds": round(result.seconds, 1), "next": format_duration(delay)}
        match result.outcome:
            case RunOutcome.DONE:
                names = ("files_stored", "rejects", "watermark")
                counts = {name: result.result[name] for name in names if name in result.result}
                _log.info("watch.synced", **counts, **fields)
            case RunOutcome.LOCKED:
                _log.info("watch.lake_locked", reason=result.reason, **fields)
            case RunOutcome.PAUSED | RunOutcome.STOPPED:
                _log.info("watch.skipped", reason=result.reason, **fields)
            case _:
                _log.warning("watch.failed", exit_code=result.code, consecutive=self._consecutive, **fields)


async def run_watchers(watchers: Sequence[Watcher]) -> None:
    """Run all watches of a process concurrently."""
    async with asyncio.TaskGroup() as group:
        for watcher in watchers:
            group.create_task(watcher.run())
