"""The outcome of a run, as the scheduler, the metrics and the alerts need it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import ExitCode, LakePausedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SIGNAL_EXIT_CODE_BASE: Final = 128  # a shell adds this to the number of the signal that ended a process


class OutcomeKind(Enum):
    """The meaning of an outcome for the next run."""

    DONE = "done"
    LOCKED = "locked"  # another run holds the lake: wait for it
    PAUSED = "paused"  # rolled back, until `scanlake unpause`
    STOPPED = "stopped"  # on request
    FAILED = "failed"  # usually temporary: the service, the disk, a rare bug
    NEEDS_ATTENTION = "needs_attention"  # the operator has to act: settings, token, damage


_KINDS: Final = {
    ExitCode.OK: OutcomeKind.DONE,
    ExitCode.REJECTS: OutcomeKind.DONE,
    ExitCode.LOCKED: OutcomeKind.LOCKED,
    ExitCode.INTERRUPTED: OutcomeKind.STOPPED,
    ExitCode.USAGE: OutcomeKind.NEEDS_ATTENTION,
    ExitCode.AUTH: OutcomeKind.NEEDS_ATTENTION,
    ExitCode.DAMAGE: OutcomeKind.NEEDS_ATTENTION,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: exit code, reason on one line, start (seconds since 1970) and its --json result.

    `error_type` is the class name of the error that ended it, empty without one.
    """

    command: str
    lake: Path
    code: int
    reason: str = ""
    started_at: float = 0.0
    seconds: float = 0.0
    result: Mapping[str, Any] = field(default_factory=dict)
    error_type: str = ""

    @property
    def ended_at(self) -> float:
        """End of the run, seconds since 1970."""
        return self.started_at + self.seconds

    @property
    def kind(self) -> OutcomeKind:
        """Meaning of the outcome for the next run."""
        if self.error_type == LakePausedError.__name__:
            return OutcomeKind.PAUSED
        return _KINDS.get(ExitCode(self.code), OutcomeKind.FAILED) if self.code in set(ExitCode) else OutcomeKind.FAILED

    @property
    def run_id(self) -> str:
        """Id of the run; empty if it failed before it got one."""
        return str(self.result.get("run_id") or "")


def describe_exit(command: str, returncode: int) -> tuple[int, str]:
    """Return the exit code of a process as a shell has it, and the reason if a signal ended it."""
    if returncode >= 0:
        return returncode, ""
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    cause = " The system kills processes when memory is short." if -returncode == signal.SIGKILL else ""
    return _SIGNAL_EXIT_CODE_BASE - returncode, f"{command} was killed by {name}.{cause}"
