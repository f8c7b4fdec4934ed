"""Results of runs, and consecutive failures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from pipeline.errors import ExitCode, LakePausedError
from pipeline.output.formatting import pluralize
from pipeline.output.redaction import to_one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.lake.ledger.live_state import LiveState

SYNC: Final = "sync"
"""The command whose runs are counted."""
_FETCHES: Final = frozenset({"sync", "verify"})  # the success of one ends the failures of all
_GOOD: Final = frozenset({"done", "stopped"})
_DONE: Final = frozenset({ExitCode.OK, ExitCode.REJECTS})
_NOT_RUN: Final = frozenset({ExitCode.LOCKED, ExitCode.INTERRUPTED})  # another run holds the lake, or it was stopped


class RunResult(Struct):
    """A run of a command on the lake of a source: exit code, and of a sync the object that --json prints.

    `reason` is one line, empty without an error; `error_type` is the class name of that error. `follows_sync`: a
    sync has started it, and sends the alert.
    """

    lake: Path
    source: str = ""
    code: int = ExitCode.OK
    reason: str = ""
    error_type: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0
    command: str = SYNC
    follows_sync: bool = False

    @property
    def ended_at(self) -> datetime:
        """The end of the run."""
        return self.started_at + timedelta(seconds=self.seconds)

    @property
    def is_done(self) -> bool:
        """Whether the run did its work, also with rejects."""
        return self.code in _DONE

    @property
    def has_failed(self) -> bool:
        """Whether the operator learns of it. A lake that a rollback has paused is no failure."""
        is_paused = self.error_type == LakePausedError.__name__
        return not is_paused and is_failure(self.code)


def is_failure(code: int) -> bool:
    """Return whether a command that ended with `code` has failed."""
    return code not in _DONE | _NOT_RUN


class Failures(Struct, frozen=True):
    """Consecutive failed runs, and the reason of the last one."""

    count: int
    reason: str

    def __str__(self) -> str:
        """One sentence."""
        runs = "the last run" if self.count == 1 else f"the last {pluralize(self.count, 'run')}"
        return f"{runs} failed: {self.reason}"


def find_failures(state: LiveState, commands: frozenset[str] = _FETCHES) -> Failures | None:
    """Return the failures of `commands` since the last run of one that ended well; None without one."""
    runs = [run for run in state.runs if run.command in commands]
    last_success = max((run.started_at for run in runs if run.state in _GOOD), default=0)
    failed = [run for run in runs if run.state == "failed" and run.started_at > last_success]
    return Failures(len(failed), to_one_line(failed[0].error or "unknown")) if failed else None
