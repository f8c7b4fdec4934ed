"""The start of the next run: interval, jitter and back-off."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.errors import SettingsError
from pipeline.formatting import UNIT_SECONDS, format_duration
from pipeline.monitoring.run_result import RunOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_NUMBER_AND_UNIT: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_MAX_DURATION_SECONDS: Final = 31 * 86_400.0

_JITTER_RATIO: Final = 0.1  # of the interval
_MAX_INITIAL_DELAY_SECONDS: Final = 30.0  # machines that are switched on together start within this time
_FAILED_BACKOFF_SECONDS: Final = (30.0, 900.0)  # after the first failure, and the maximum
_ATTENTION_BACKOFF_SECONDS: Final = 300.0  # after the first failure that needs the operator
_MAX_BACKOFF_SECONDS: Final = 3600.0  # so that a repair takes effect within the hour
_LOCKED_POLL_SECONDS: Final = (5.0, 60.0)  # first and maximum delay while another run holds the lake


def parse_duration(subject: str, text: str, *, minimum: float = 0.0) -> float:
    """Return the seconds of `90s`, `15m`, `6h`, `1d` or `1h30m`. Raises `SettingsError` that names `subject`."""
    hint = "Write it as 90s, 15m, 6h, 1d or 1h30m."
    if not _DURATION.fullmatch(text):
        guess = f" Did you mean {text}s or {text}m?" if re.fullmatch(r"\d+(\.\d+)?", text) else ""
        raise SettingsError(f"{subject}: not a duration.{guess}", hint=hint)
    seconds = sum(float(number) * UNIT_SECONDS[unit] for number, unit in _NUMBER_AND_UNIT.findall(text))
    if not minimum <= seconds <= _MAX_DURATION_SECONDS:
        limits = f"{format_duration(minimum)} to {format_duration(_MAX_DURATION_SECONDS)}"
        raise SettingsError(f"{subject}: must be from {limits}.", hint=hint)
    return seconds


@dataclass(frozen=True, slots=True)
class Schedule:
    """The interval of runs in seconds. Each run starts up to `jitter` earlier or later, so that machines spread."""

    every: float
    jitter: float
    random: Callable[[], float] = random.random

    @classmethod
    def from_interval(cls, every: float, jitter: float | None = None) -> Schedule:
        """Return the schedule of an interval; the default jitter is a tenth of it."""
        return cls(every, every * _JITTER_RATIO if jitter is None else min(jitter, every))

    def initial_delay(self) -> float:
        """Return the seconds before the first run."""
        return self.random() * min(self.jitter, _MAX_INITIAL_DELAY_SECONDS)

    def next_delay(self, outcome: RunOutcome, consecutive: int, *, run_seconds: float) -> float:
        """Return the seconds until the next run.

        `consecutive` counts the runs in a row with this outcome. The delay after failures doubles from run to run,
        up to an hour; it starts shorter than a long interval, and grows longer than a short one.
        """
        doubled = 2.0 ** min(consecutive - 1, 16)
        match outcome:
            case RunOutcome.LOCKED:
                first, maximum = _LOCKED_POLL_SECONDS
                return self._add_jitter(min(first * doubled, maximum, self.every))
            case RunOutcome.FAILED:
                first, maximum = _FAILED_BACKOFF_SECONDS
                maximum = min(max(maximum, self.every), _MAX_BACKOFF_SECONDS)
                return self._add_jitter(min(min(first, self.every) * doubled, maximum))
            case RunOutcome.NEEDS_ATTENTION:
                first = min(_ATTENTION_BACKOFF_SECONDS, self.every)
                return self._add_jitter(min(first * doubled, _MAX_BACKOFF_SECONDS))
            case _:
                return max(0.0, self.every + self.jitter * (2 * self.random() - 1) - run_seconds)

    def _add_jitter(self, seconds: float) -> float:
        return seconds * (0.5 + self.random() / 2)
