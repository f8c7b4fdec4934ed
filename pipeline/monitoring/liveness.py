"""The liveness file: a heartbeat every few seconds, with the last success, the next run and the state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from pipeline.formatting import format_duration
from pipeline.monitoring.metrics import write_or_warn

if TYPE_CHECKING:
    from pathlib import Path

HEARTBEAT_SECONDS: Final = 10.0
MAX_HEARTBEAT_AGE_SECONDS: Final = 60.0
STOPPED: Final = "stopped"
"""State of a watch that has ended. Its process writes it last."""


@dataclass(slots=True)
class WatchState:
    """The state of one watch."""

    state: str = "starting"
    last_success: datetime | None = None
    next_run: datetime | None = None
    failures: int = 0
    reason: str = ""


@dataclass(slots=True)
class Liveness:
    """The states of all watches of one process by source, and the time of its last heartbeat."""

    at: datetime
    sources: dict[str, WatchState]

    def write(self, path: Path, *, has_warned: bool = False) -> bool:
        """Write a heartbeat with all states to the file; return whether it was written. Warn once of a failure."""
        self.at = datetime.now(UTC)
        text = msgspec.json.encode(self).decode()
        return write_or_warn(path, f"{text}\n", subject="liveness", has_warned=has_warned)


def liveness_problem(path: Path, *, max_age: float | None) -> str | None:
    """Return the problem of the watch that writes this file; None if it lives.

    With `max_age` the last success of each source must be at most so many seconds old, too.
    """
    try:
        liveness = msgspec.json.decode(path.read_bytes(), type=Liveness)
    except OSError as error:
        return f"{path}: {error.strerror}."
    except msgspec.DecodeError:
        return f"{path}: not a liveness file."
    problem = None
    if all(state.state == STOPPED for state in liveness.sources.values()):
        problem = "the watch has stopped."
    elif _age(liveness.at) > MAX_HEARTBEAT_AGE_SECONDS:
        problem = f"no heartbeat for {format_duration(round(_age(liveness.at)))}."
    elif max_age is not None:
        problem = _find_old_success(liveness, max_age)
    return None if problem is None else f"{path}: {problem}"


def _find_old_success(liveness: Liveness, max_age: float) -> str | None:
    """Return the first source whose last success is older than `max_age` seconds, as a clause."""
    for name, state in liveness.sources.items():
        source = f" of {name}" if name else ""
        if state.last_success is None:
            return f"no success{source} yet."
        age = _age(state.last_success)
        if age > max_age:
            return f"last success{source} {format_duration(round(age))} ago; --max-age is {format_duration(max_age)}."
    return None


def _age(moment: datetime) -> float:
    return (datetime.now(UTC) - moment).total_seconds()
