"""One lake, watched: run, see what became of it, rest, run again; until somebody says stop."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from pipeline.errors import Exit, ScanlakeError
from pipeline.watching.aftermath import finish
from pipeline.watching.child import run_child
from pipeline.watching.outcome import Kind
from pipeline.watching.record import Memory
from pipeline.watching.schedule import spell_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.settings import Settings
    from pipeline.watching.liveness import Pulse
    from pipeline.watching.outcome import Outcome
    from pipeline.watching.schedule import Timetable

VERB: Final = "sync"
_FATAL: Final = frozenset({int(Exit.USAGE), int(Exit.TOKEN)})
_STATES: Final = {
    Kind.BUSY: "waiting for another run",
    Kind.PAUSED: "paused by a rollback",
    Kind.FAILED: "backing off",
    Kind.STUCK: "backing off",
}
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Post:
    """What is watched and how. `command` is one run; `load` reads the settings anew, which may have changed."""

    source: str
    command: Sequence[str]
    load: Callable[[], Settings]
    timetable: Timetable
    most: int | None = None  # runs; None: until stopped
    never_gives_up: bool = False  # others are watched by the same process
    follow: Callable[[], Sequence[str]] | None = None  # what is to be run after a sync that went well; may be nothing


@dataclass(slots=True)
class Watcher:
    """Watches one lake. `changed` is called whenever the pulse has another state."""

    post: Post
    pulse: Pulse
    changed: Callable[[], None]
    runs: int = 0
    last: Outcome | None = None
    _in_a_row: int = 0
    _former: Kind | None = None
    _has_worked: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)

    async def run(self) -> int:
        """Watch. Returns the last run's exit code, after `most` runs or at a failure that nothing but a person mends.

        Settings and a token that never worked stop the watch: whoever has just started it is there to mend
        them. Those that did work once may heal as they broke, by a file that is put right: it goes on, slowly.
        """
        settings = self.post.load()
        memory = Memory(settings.lake)
        self.pulse.last_success = memory.last.last_success
        try:
            if self.post.most != 1:
                await self._rest("waiting", self.post.timetable.before_the_first())
            while True:
                settings = self._settings(settings)
                outcome = await self._run_once(settings, memory)
                kind = outcome.kind
                if kind is not Kind.BUSY:
                    self.runs += 1
                if self._is_hopeless(outcome):
                    _log.error("watch.ended", **self._named, exit_code=outcome.code, reason=outcome.reason)
                    return outcome.code
                if kind is Kind.DONE:
                    await self._follow(settings)
                if self.post.most is not None and self.runs >= self.post.most:
                    return outcome.code
                pause = self.post.timetable.pause(kind, self._in_a_row, taken=outcome.seconds)
                self._tell(outcome, pause)
                await self._rest(_STATES.get(kind, "waiting"), pause)
        finally:
            self._stop.set()

    def _is_hopeless(self, outcome: Outcome) -> bool:
        trouble = outcome.kind is Kind.STUCK and outcome.code in _FATAL
        return trouble and not self._has_worked and not self.post.never_gives_up

    async def _run_once(self, settings: Settings, memory: Memory) -> Outcome:
        self.pulse.state, self.pulse.next_run = "running", None
        self.changed()
        outcome = await run_child(self.post.command, verb=VERB, lake=settings.lake)
        self.last = outcome
        kind = outcome.kind
        self._in_a_row = self._in_a_row + 1 if kind is self._former else 1
        self._former = kind
        self._has_worked |= kind in {Kind.DONE, Kind.PAUSED}
        source, stop = self.post.source, self._stop
        record = await asyncio.to_thread(lambda: finish(settings, memory, outcome, source, stop=stop))
        self.pulse.last_success = record.last_success
        self.pulse.failures, self.pulse.reason = record.failures, record.reason
        return outcome

    async def _follow(self, settings: Settings) -> None:
        command = self.post.follow() if self.post.follow is not None else ()
        if command:
            done = await run_child(command, verb="what follows", lake=settings.lake)
            if done.kind is not Kind.DONE:
                _log.warning("watch.unfollowed", **self._named, exit_code=done.code, reason=done.reason)

    def _settings(self, former: Settings) -> Settings:
        """The settings as they are now: the log file is opened anew, too, which a run may have turned over."""
        try:
            return self.post.load()
        except ScanlakeError:
            return former  # the run will say what is wrong with them

    async def _rest(self, state: str, seconds: float) -> None:
        self.pulse.state, self.pulse.next_run = state, time.time() + seconds
        self.changed()
        await asyncio.sleep(seconds)

    @property
    def _named(self) -> dict[str, str]:
        return {"source": self.post.source} if self.post.source else {}

    def _tell(self, outcome: Outcome, pause: float) -> None:
        fields = {**self._named, "seconds": round(outcome.seconds, 1), "next": spell_seconds(pause)}
        match outcome.kind:
            case Kind.DONE:
                told = outcome.told
                counts = {name: told[name] for name in ("files_expanded", "rejects", "horizon") if name in told}
                _log.info("watch.synced", **counts, **fields)
            case Kind.BUSY:
                _log.info("watch.waits", reason=outcome.reason, **fields)
            case Kind.PAUSED | Kind.STOPPED:
                _log.info("watch.skipped", reason=outcome.reason, **fields)
            case _:
                _log.warning("watch.failed", exit_code=outcome.code, in_a_row=self._in_a_row, **fields)
