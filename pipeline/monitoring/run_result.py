"""The result of a run, as the scheduler, the statistics, the metrics and the alerts need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import ExitCode, LakePausedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class RunOutcome(Enum):
    """The meaning of a result for the next run."""

    DONE = "done"
    LOCKED = "locked"  # another run holds the lake: wait for it
    PAUSED = "paused"  # by a rollback
    STOPPED = "stopped"  # on request
    FAILED = "failed"  # usually temporary: the service, the disk, a rare bug
    NEEDS_ATTENTION = "needs_attention"  # the operator has to act: settings, token, damage


_OUTCOMES: Final[dict[int, RunOutcome]] = {
    ExitCode.OK: RunOutcome.DONE,
    ExitCode.REJECTS: RunOutcome.DONE,
    ExitCode.LOCKED: RunOutcome.LOCKED,
    ExitCode.INTERRUPTED: RunOutcome.STOPPED,
    ExitCode.USAGE: RunOutcome.NEEDS_ATTENTION,
    ExitCode.AUTH: RunOutcome.NEEDS_ATTENTION,
    ExitCode.DAMAGE: RunOutcome.NEEDS_ATTENTION,
}


@dataclass(slots=True)
class RunResult:
    """A run of a command on the lake of a source: exit code, and the object that --json prints.

    `reason` is one line, empty without an error; `error_type` is the class name of that error.
    """

    command: str
    lake: Path
    source: str = ""
    code: int = ExitCode.OK
    reason: str = ""
    error_type: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0

    @property
    def ended_at(self) -> datetime:
        """The end of the run."""
        return self.started_at + timedelta(seconds=self.seconds)

    @property
    def outcome(self) -> RunOutcome:
        """The meaning of the result for the next run."""
        if self.error_type == LakePausedError.__name__:
            return RunOutcome.PAUSED
        return _OUTCOMES.get(self.code, RunOutcome.FAILED)

    @property
    def has_failed(self) -> bool:
        """Whether the operator learns of it."""
        return self.outcome in {RunOutcome.FAILED, RunOutcome.NEEDS_ATTENTION}
