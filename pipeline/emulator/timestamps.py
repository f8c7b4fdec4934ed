"""Times as microseconds since 1970 in UTC, their text formats, and the clock of the world."""

import re
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Literal

SECOND = 1_000_000
DAY = 86_400 * SECOND

TimeFormat = Literal["micros-z", "offset", "space"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_RE = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)?(Z|[+ -]\d{2}:?\d{2})?")


@lru_cache(maxsize=4096)
def _format_day(day: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()


def format_micros_z(time_us: int) -> str:
    """Format a time as `2023-12-11T15:02:56.727000Z`."""
    day, rest = divmod(time_us, DAY)
    seconds, micros = divmod(rest, SECOND)
    minutes, second = divmod(seconds, 60)
    return f"{_format_day(day)}T{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}.{micros:06d}Z"


def format_offset(time_us: int) -> str:
    """Format a time as `2023-12-11T15:02:51+00:00`; a fraction is written only if it is not zero."""
    text = format_micros_z(time_us)
    return (text[:19] if time_us % SECOND == 0 else text[:26]) + "+00:00"


def format_space(time_us: int) -> str:
    """Format a time as `2023-12-11 15:02:51`; a fraction is written only if it is not zero."""
    text = format_micros_z(time_us)
    return text[:10] + " " + (text[11:19] if time_us % SECOND == 0 else text[11:26])


TIME_FORMATS: dict[TimeFormat, Callable[[int], str]] = {
    "micros-z": format_micros_z,
    "offset": format_offset,
    "space": format_space,
}


def parse_timestamp(text: str, *, end_of_day: bool = False) -> int:
    """Parse a date or a date-time with `T` or space, with or without `Z` or an offset.

    A date is the start of that day in UTC, or with `end_of_day` its last microsecond.
    Raise ValueError for other texts.
    """
    match = _TIME_RE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not an ISO-8601 date or date-time")
    day, hour, minute, second, fraction, zone = match.groups()
    start = (datetime.fromisoformat(day).replace(tzinfo=UTC) - _EPOCH).days * DAY
    if hour is None:
        return start + (DAY - 1 if end_of_day else 0)
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second or 0)
    if int(hour) > 23 or int(minute) > 59 or int(second or 0) > 59:
        raise ValueError(f"{text!r} is no time of day")
    micros = int((fraction or "0").ljust(6, "0")[:6])
    return start + (seconds - _parse_zone(zone)) * SECOND + micros


def _parse_zone(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "")
    # An unencoded plus sign in a query arrives as a space.
    sign = -1 if zone[0] == "-" else 1
    return sign * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)


class Clock:
    """Clock of the world. It follows the system clock until it is set; then it stands still."""

    def __init__(self, now: str = "") -> None:
        self._offset_us = 0
        self._frozen_us: int | None = parse_timestamp(now) if now else None

    def now(self) -> int:
        """Return the current time."""
        if self._frozen_us is not None:
            return self._frozen_us
        return time.time_ns() // 1000 + self._offset_us

    def set(self, time_us: int) -> None:
        """Stop the clock at a time."""
        self._frozen_us = time_us

    def advance(self, seconds: float) -> None:
        """Move the clock forward, or back if `seconds` is negative; a running clock keeps running."""
        step = round(seconds * SECOND)
        if self._frozen_us is not None:
            self._frozen_us += step
        else:
            self._offset_us += step

    def resume(self) -> None:
        """Restart a stopped clock from its current time."""
        if self._frozen_us is not None:
            self._offset_us = self._frozen_us - time.time_ns() // 1000
            self._frozen_us = None
