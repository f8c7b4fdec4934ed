"""When the next run begins: durations as people write them, jitter, and back-off. Pure."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.errors import SettingsError
from pipeline.watching.outcome import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_PIECE: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_LONGEST: Final = 31 * 86_400.0

_JITTER_SHARE: Final = 0.1  # of the interval
_FIRST_WAIT: Final = 30.0  # seconds before the first run at most: a fleet may have been switched on at once
_FAILED: Final = (30.0, 900.0)  # seconds after a first failure, and at most while runs keep failing
_STUCK: Final = 300.0  # after one that only a person can mend
_SLOWEST: Final = 3600.0  # no failure waits longer than this or the interval, so that mending shows
_BUSY: Final = (5.0, 60.0)  # between two looks at a lake that another run holds


def seconds_of(flag: str, text: str, *, least: float = 0.0) -> float:
    """The seconds of `90s`, `15m`, `6h`, `1d` or `1h30m`. Raises `SettingsError` that names `flag`."""
    if not _DURATION.fullmatch(text):
        hint = f" Did you mean {text}s or {text}m?" if re.fullmatch(r"\d+(\.\d+)?", text) else ""
        raise SettingsError(f"{flag}: not a duration.{hint}", remedy="Write it as 90s, 15m, 6h, 1d or 1h30m.")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PIECE.findall(text))
    if not least <= seconds <= _LONGEST:
        raise SettingsError(
            f"{flag}: must be from {spell_seconds(least)} to {spell_seconds(_LONGEST)}.",
            remedy="Write it as 90s, 15m, 6h, 1d or 1h30m.",
        )
    return seconds


def spell_seconds(seconds: float) -> str:
    """Seconds as people write them: 90 s is `1m30s`."""
    left = max(0.0, seconds)
    if left < 10:
        return f"{left:g}s" if left == round(left) else f"{left:.1f}s"
    words, rest = [], round(left)
    for unit in "dhms":
        count, rest = divmod(rest, int(_UNITS[unit]))
        if count:
            words.append(f"{count}{unit}")
    return "".join(words[:2]) or "0s"


@dataclass(frozen=True, slots=True)
class Timetable:
    """How often to run. Seconds; each run begins up to `jitter` earlier or later, so that a fleet does not meet."""

    every: float
    jitter: float
    chance: Callable[[], float] = random.random

    @classmethod
    def of(cls, every: float, jitter: float | None = None) -> Timetable:
        """The timetable of an interval; the jitter is a tenth of it unless given."""
        return cls(every, every * _JITTER_SHARE if jitter is None else min(jitter, every))

    def before_the_first(self) -> float:
        """Seconds to wait before the first run."""
        return self.chance() * min(self.jitter, _FIRST_WAIT)

    def pause(self, kind: Kind, in_a_row: int, *, taken: float) -> float:
        """Seconds until the next run, after one of `kind` that took `taken` seconds.

        `in_a_row` counts how many ended in the same trouble. Runs that failed are repeated sooner than the
        interval where that is long, and later where it is short: doubling, and no more than an hour.
        """
        doubled = 2.0 ** min(in_a_row - 1, 16)
        if kind is Kind.BUSY:
            return self._spread(min(_BUSY[0] * doubled, _BUSY[1], self.every))
        if kind in {Kind.FAILED, Kind.STUCK}:
            first, most = _FAILED if kind is Kind.FAILED else (_STUCK, _SLOWEST)
            most = min(max(most, self.every), _SLOWEST) if kind is Kind.FAILED else most
            return self._spread(min(min(first, self.every) * doubled, most))
        return max(0.0, self.every + self.jitter * (2 * self.chance() - 1) - taken)

    def _spread(self, seconds: float) -> float:
        return seconds * (0.5 + self.chance() / 2)
