"""The liveness file: a heartbeat every few seconds, with the last success, the next run and the state."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import structlog

from pipeline.formatting import format_duration
from pipeline.monitoring.metrics import write_or_warn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HEARTBEAT_SECONDS: Final = 10.0
MAX_HEARTBEAT_AGE_SECONDS: Final = 60.0
STOPPED: Final = "stopped"
"""State of a watch that has ended. Its process writes it last."""

_log = structlog.get_logger()


@dataclass(slots=True)
class WatchState:
    """The state of one watch. Instants are seconds since 1970."""

    state: str = "starting"
    last_success: float | None = None
    next_run: float | None = None
    failures: int = 0
    reason: str = ""


@dataclass(slots=True)
class LivenessFile:
    """The states of all watches of one process, by source name; the key is empty for a watch without a source."""

    states: dict[str, WatchState] = field(default_factory=dict)
    _is_failing: bool = False

    def write(self, path: Path) -> None:
        """Write a heartbeat with all states to the file. Log the first of several failures, and the recovery."""
        content: dict[str, Any] = {"at": _format_instant(time.time())}
        if set(self.states) == {""}:
            content |= _to_json(self.states[""])
        else:
            content["sources"] = {name: _to_json(state) for name, state in self.states.items()}
        written = write_or_warn(path, json.dumps(content) + "\n", subject="liveness", has_warned=self._is_failing)
        if written and self._is_failing:
            _log.info("liveness.write_recovered", path=str(path))
        self._is_failing = not written


def liveness_problem(path: Path, *, max_age: float | None) -> str | None:
    """Return the problem of the watch that writes this file; None if it lives.

    With `max_age` the last success of each source must be at most so many seconds old, too.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        heartbeat_age = time.time() - _parse_instant(content["at"])
        states: Mapping[str, Any] = content.get("sources") or {"": content}
        has_stopped = all(state.get("state") == STOPPED for state in states.values())
        successes = {name: state.get("last_success") for name, state in states.items()}
        ages = {name: None if at is None else time.time() - _parse_instant(at) for name, at in successes.items()}
    except OSError as error:
        return f"{path}: {error.strerror}."
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{path}: not a liveness file."
    if has_stopped:
        return f"{path}: the watch has stopped."
    if heartbeat_age > MAX_HEARTBEAT_AGE_SECONDS:
        return f"{path}: no heartbeat for {format_duration(round(heartbeat_age))}."
    return None if max_age is None else _find_old_success(path, ages, max_age)


def _find_old_success(path: Path, ages: Mapping[str, float | None], max_age: float) -> str | None:
    """Return the first source whose last success is older than `max_age` seconds, as a sentence."""
    for name, age in ages.items():
        source = f" of {name}" if name else ""
        if age is None:
            return f"{path}: no success{source} yet."
        if age > max_age:
            return (
                f"{path}: last success{source} {format_duration(round(age))} ago; --max-age is"
                f" {format_duration(max_age)}."
            )
    return None


def _to_json(state: WatchState) -> dict[str, Any]:
    instants = {"last_success": _format_instant(state.last_success), "next_run": _format_instant(state.next_run)}
    return asdict(state) | instants


def _format_instant(seconds: float | None) -> str | None:
    return (
        None
        if seconds is None
        else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def _parse_instant(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()
