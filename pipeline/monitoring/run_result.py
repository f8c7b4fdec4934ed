"""The result of a run, as the statistics, the metrics and the alerts need it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from pipeline.errors import ExitCode, LakePausedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DONE: Final = frozenset({ExitCode.OK, ExitCode.REJECTS})
_NOT_RUN: Final = frozenset({ExitCode.LOCKED, ExitCode.INTERRUPTED})  # another run holds the lake, or it was stopped


class RunResult(Struct):
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
    def is_done(self) -> bool:
        """Whether the run did its work, also with rejects."""
        return self.code in _DONE

    @property
    def has_failed(self) -> bool:
        """Whether the operator learns of it. A lake that a rollback has paused is no failure."""
        is_paused = self.error_type == LakePausedError.__name__
        return not is_paused and self.code not in _DONE | _NOT_RUN
