"""Times as microseconds since 1970 in UTC, their text formats, and the clock of the world."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Literal

SECOND = 1_000_000
DAY = 86_400 * SECOND

TimeFormat = Literal["micros-z", "offset", "space"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = _EPOCH.replace(tzinfo=None)
_TIME_RE = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2})?)(?:\.(\d{1,9}))?)?(Z|[+ -]\d{2}:?\d{2})?")


def to_datetime(time_us: int) -> datetime:
    """Return a time in UTC, without a zone."""
    return _NAIVE_EPOCH + timedelta(microseconds=time_us)


def format_micros_z(time_us: int) -> str:
    """Format a time as `2023-12-11T15:02:56.727000Z`."""
    return to_datetime(time_us).isoformat(timespec="microseconds") + "Z"


# The second and third form have a fraction only if it is not zero.
TIME_FORMATS: dict[TimeFormat, Callable[[int], str]] = {
    "micros-z": format_micros_z,
    "offset": lambda time_us: to_datetime(time_us).isoformat() + "+00:00",
    "space": lambda time_us: to_datetime(time_us).isoformat(" "),
}


def parse_timestamp(text: str, *, end_of_day: bool = False) -> int:
    """Parse a date or a date-time with `T` or space, with or without `Z` or an offset.

    A date is the start of that day in UTC, or with `end_of_day` its last microsecond.
    Raise ValueError for other texts.
    """
    match = _TIME_RE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not an ISO-8601 date or date-time")
    day, clock, fraction, zone = match.groups()
    # An unencoded plus sign in a query arrives as a space.
    moment = datetime.fromisoformat(f"{day}T{clock or '00:00'}{(zone or 'Z').replace(' ', '+')}")
    start = (moment - _EPOCH) // timedelta(microseconds=1) + int((fraction or "0").ljust(6, "0")[:6])
    return start + DAY - 1 if end_of_day and clock is None else start


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
