"""Runs of `scanlake watch`: each lake is synced again and again, until the process is stopped."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from pipeline.errors import ExitCode, ScanlakeError
from pipeline.formatting import format_duration
from pipeline.monitoring.after_run import record_run
from pipeline.monitoring.child_process import run_child
from pipeline.monitoring.liveness import HEARTBEAT_SECONDS, STOPPED, LivenessFile, WatchState
from pipeline.monitoring.outcome import OutcomeKind
from pipeline.monitoring.run_history import RunStatsFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pipeline.monitoring.outcome import Outcome
    from pipeline.monitoring.schedule import Schedule
    from pipeline.monitoring.systemd import SystemdNotifier
    from pipeline.settings import Settings

COMMAND: Final = "sync"
_FATAL: Final = frozenset({int(ExitCode.USAGE), int(ExitCode.AUTH)})
_STATES: Final = {
    OutcomeKind.LOCKED: "waiting for another run",
    OutcomeKind.PAUSED: "paused by a rollback",
    OutcomeKind.FAILED: "backing off",
    OutcomeKind.NEEDS_ATTENTION: "backing off",
}
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """The configuration of one watch. `argv` is one run; `load_settings` reads the settings before each run."""

    source: str
    argv: Sequence[str]
    load_settings: Callable[[], Settings]
    schedule: Schedule
    max_runs: int | None = None  # None: until stopped
    never_gives_up: bool = False  # the same process watches other lakes


@dataclass(slots=True)
class Watcher:
    """The watch of one lake. It calls `on_change` after each change of `state`."""

    config: WatchConfig
    state: WatchState
    on_change: Callable[[], None]
    runs: int = 0
    last_outcome: Outcome | None = None
    _consecutive: int = 0
    _previous_kind: OutcomeKind | None = None
    _has_synced: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)

    async def run(self) -> int:
        """Run until stopped.

        Return the exit code of the last run after `max_runs` runs, or after a settings or authentication error on a
        lake that this watch has not synced before. A lake that it has synced is retried with a long back-off: the
        operator may correct the file that caused the error.
        """
        config = self.config
        settings = config.load_settings()
        history = RunStatsFile(settings.lake)
        self.state.last_success = history.last.last_success
        try:
            if config.max_runs != 1:
                await self._sleep("waiting", config.schedule.initial_delay())
            while True:
                settings = self._reload_settings(settings)
                outcome = await self._run_once(settings, history)
                kind = outcome.kind
                if kind is not OutcomeKind.LOCKED:
                    self.runs += 1
                if self._should_give_up(outcome):
                    _log.error("watch.ended", **self._source_field, exit_code=outcome.code, reason=outcome.reason)
                    return outcome.code
                if config.max_runs is not None and self.runs >= config.max_runs:
                    return outcome.code
                delay = config.schedule.next_delay(kind, self._consecutive, run_seconds=outcome.seconds)
                self._log_outcome(outcome, delay)
                await self._sleep(_STATES.get(kind, "waiting"), delay)
        finally:
            self._stop.set()

    def _should_give_up(self, outcome: Outcome) -> bool:
        is_fatal = outcome.kind is OutcomeKind.NEEDS_ATTENTION and outcome.code in _FATAL
        return is_fatal and not self._has_synced and not self.config.never_gives_up

    async def _run_once(self, settings: Settings, history: RunStatsFile) -> Outcome:
        self.state.state, self.state.next_run = "running", None
        self.on_change()
        outcome = await run_child(self.config.argv, command=COMMAND, lake=settings.lake)
        self.last_outcome = outcome
        kind = outcome.kind
        self._consecutive = self._consecutive + 1 if kind is self._previous_kind else 1
        self._previous_kind = kind
        self._has_synced |= kind in {OutcomeKind.DONE, OutcomeKind.PAUSED}
        stats = await asyncio.to_thread(record_run, settings, history, outcome, self.config.source, stop=self._stop)
        self.state.last_success = stats.last_success
        self.state.failures, self.state.reason = stats.failures, stats.reason
        return outcome

    def _reload_settings(self, previous: Settings) -> Settings:
        """Return the present settings; loading also reopens the log file, which a run may have rotated."""
        try:
            return self.config.load_settings()
        except ScanlakeError:
            return previous  # the run reports the error

    async def _sleep(self, state: str, seconds: float) -> None:
        self.state.state, self.state.next_run = state, time.time() + seconds
        self.on_change()
        await asyncio.sleep(seconds)

    @property
    def _source_field(self) -> dict[str, str]:
        return {"source": self.config.source} if self.config.source else {}

    def _log_outcome(self, outcome: Outcome, delay: float) -> None:
        fields = {**self._source_field, "seconds": round(outcome.seconds, 1), "next": format_duration(delay)}
        match outcome.kind:
            case OutcomeKind.DONE:
                names = ("files_stored", "rejects", "watermark")
                counts = {name: outcome.result[name] for name in names if name in outcome.result}
                _log.info("watch.synced", **counts, **fields)
            case OutcomeKind.LOCKED:
                _log.info("watch.lake_locked", reason=outcome.reason, **fields)
            case OutcomeKind.PAUSED | OutcomeKind.STOPPED:
                _log.info("watch.skipped", reason=outcome.reason, **fields)
            case _:
                _log.warning("watch.failed", exit_code=outcome.code, consecutive=self._consecutive, **fields)


# All watches of a process


async def run_watchers(
    configs: Sequence[WatchConfig], notifier: SystemdNotifier, liveness_file: Path | None
) -> list[Watcher]:
    """Run all watches concurrently and send heartbeats to systemd and the liveness file."""
    liveness = LivenessFile()

    def send_heartbeat() -> None:
        if liveness_file is not None:
            liveness.write(liveness_file)
        notifier.notify(status=_format_status(liveness), WATCHDOG="1")

    watchers = []
    for config in configs:
        liveness.states[config.source] = WatchState()
        watchers.append(Watcher(config, liveness.states[config.source], send_heartbeat))
    notifier.notify(READY="1", status="starting")
    interval = min(HEARTBEAT_SECONDS, (notifier.watchdog_seconds or HEARTBEAT_SECONDS) / 3)
    heartbeat = asyncio.create_task(_repeat_heartbeat(send_heartbeat, interval))
    try:
        async with asyncio.TaskGroup() as group:
            for watcher in watchers:
                group.create_task(watcher.run())
    finally:
        notifier.notify(STOPPING="1", status="stopping")
        heartbeat.cancel()
        for state in liveness.states.values():
            state.state, state.next_run = STOPPED, None
        with suppress(OSError):
            send_heartbeat()
    return watchers


async def _repeat_heartbeat(send_heartbeat: Callable[[], None], interval: float) -> None:
    while True:
        send_heartbeat()
        await asyncio.sleep(interval)


def _format_status(liveness: LivenessFile) -> str:
    texts = []
    for name, state in liveness.states.items():
        text = f"{name}: {state.state}" if name else state.state
        if state.failures:
            text += f", {state.failures} consecutive failures: {state.reason}"
        texts.append(text)
    return "; ".join(texts)
