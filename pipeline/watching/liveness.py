"""The liveness file: a sign of life every few seconds, with the last success, the next run and the state."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pipeline.watching.places import replace_file
from pipeline.watching.schedule import spell_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BEAT: Final = 10.0  # seconds between two signs of life
STILL: Final = 60.0  # seconds without one after which the watch counts as dead


@dataclass(slots=True)
class Pulse:
    """How one watch stands. Times in seconds since 1970."""

    state: str = "starting"
    last_success: float | None = None
    next_run: float | None = None
    failures: int = 0
    reason: str = ""


@dataclass(slots=True)
class Heart:
    """The pulses of all lakes that one process watches, by the source's name; one without a name has an empty one."""

    pulses: dict[str, Pulse] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the signs of life to the file."""
        told: dict[str, Any] = {"at": _moment(time.time())}
        if set(self.pulses) == {""}:
            told |= _told(self.pulses[""])
        else:
            told["sources"] = {name: _told(pulse) for name, pulse in self.pulses.items()}
        replace_file(path, json.dumps(told) + "\n", what="liveness")


def flaw_of(path: Path, *, max_age: float | None) -> str | None:
    """What is wrong with the watch that writes this file; None when it lives.

    With `max_age` the last success of each source must be younger than so many seconds, too.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        since = time.time() - _seconds(told["at"])
        pulses: Mapping[str, Any] = told.get("sources") or {"": told}
        successes = {name: pulse.get("last_success") for name, pulse in pulses.items()}
        ages = {name: None if at is None else time.time() - _seconds(at) for name, at in successes.items()}
    except OSError as error:
        return f"{path}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{path}: not a liveness file"
    if since > STILL:
        return f"no sign of life for {spell_seconds(since)}"
    if max_age is not None:
        for name, age in ages.items():
            whose = f" of {name}" if name else ""
            if age is None:
                return f"no success{whose} yet"
            if age > max_age:
                return f"last success{whose} {spell_seconds(age)} ago"
    return None


def _told(pulse: Pulse) -> dict[str, Any]:
    told = asdict(pulse)
    return told | {name: None if told[name] is None else _moment(told[name]) for name in ("last_success", "next_run")}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
