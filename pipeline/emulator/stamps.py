"""Moments: integers of microseconds since 1970 in UTC, their spellings on the wire, and the world's clock."""

import re
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Literal

SECOND = 1_000_000
DAY = 86_400 * SECOND

Spelling = Literal["micros-z", "offset", "space"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)?(Z|[+ -]\d{2}:?\d{2})?")


@lru_cache(maxsize=4096)
def _day_text(day: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()


def micros_z(moment: int) -> str:
    """Spell a moment `2023-12-11T15:02:56.727000Z`."""
    day, rest = divmod(moment, DAY)
    seconds, micros = divmod(rest, SECOND)
    minutes, second = divmod(seconds, 60)
    return f"{_day_text(day)}T{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}.{micros:06d}Z"


def offset(moment: int) -> str:
    """Spell a moment `2023-12-11T15:02:51+00:00`, with a fraction only where there is one."""
    text = micros_z(moment)
    return (text[:19] if moment % SECOND == 0 else text[:26]) + "+00:00"


def space(moment: int) -> str:
    """Spell a moment `2023-12-11 15:02:51`, with a fraction only where there is one."""
    text = micros_z(moment)
    return text[:10] + " " + (text[11:19] if moment % SECOND == 0 else text[11:26])


SPELLINGS: dict[Spelling, Callable[[int], str]] = {"micros-z": micros_z, "offset": offset, "space": space}


def read(text: str, *, end_of_day: bool = False) -> int:
    """Return the moment a request's text names: date only, `T` or space, with or without `Z` or an offset.

    A date alone means the start of that day in UTC, or with `end_of_day` its last microsecond.
    ValueError for anything else.
    """
    found = _MOMENT.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not an ISO-8601 date or date-time")
    day, hour, minute, second, fraction, zone = found.groups()
    start = (datetime.fromisoformat(day).replace(tzinfo=UTC) - _EPOCH).days * DAY
    if hour is None:
        return start + (DAY - 1 if end_of_day else 0)
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second or 0)
    if int(hour) > 23 or int(minute) > 59 or int(second or 0) > 59:
        raise ValueError(f"{text!r} is no time of day")
    micros = int((fraction or "0").ljust(6, "0")[:6])
    return start + (seconds - _zone_seconds(zone)) * SECOND + micros


def _zone_seconds(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "")
    # An unencoded plus sign in a query arrives as a space.
    sign = -1 if zone[0] == "-" else 1
    return sign * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)


class Clock:
    """The world's time. It runs with the machine's until set; a set clock stands still."""

    def __init__(self, now: str = "") -> None:
        self._ahead = 0
        self._frozen: int | None = read(now) if now else None

    def now(self) -> int:
        """Return the current moment."""
        if self._frozen is not None:
            return self._frozen
        return time.time_ns() // 1000 + self._ahead

    def set(self, moment: int) -> None:
        """Stop the clock at a moment."""
        self._frozen = moment

    def advance(self, seconds: float) -> None:
        """Move the clock forward (or, negative, back); a running clock keeps running."""
        step = round(seconds * SECOND)
        if self._frozen is not None:
            self._frozen += step
        else:
            self._ahead += step

    def resume(self) -> None:
        """Let a stopped clock run on from where it stands."""
        if self._frozen is not None:
            self._ahead = self._frozen - time.time_ns() // 1000
            self._frozen = None
