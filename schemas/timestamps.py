"""Parser and formatter of timestamps.

scanlake stores an instant as an integer: microseconds since 1970-01-01T00:00:00 UTC. Integers compare
exactly and do not depend on a session's zone. Arrow and SQLite store the same integers.
"""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = _EPOCH.replace(tzinfo=None)
_PATTERN: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[Tt ](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d{1,30}))?)?)?\s?(?:([Zz])|([+-])(\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)
_MIN_MILLISECONDS: Final = 100_000_000_000  # year 5138 in seconds, 1973 in milliseconds


def parse_instant(value: object) -> int | None:
    """Return microseconds since 1970 UTC, or None if `value` is not an instant.

    The parser accepts ISO-8601 with `T`, `t` or a space, and with `Z`, an offset or nothing (UTC, by the interface).
    A date means the start of its day. `:60` means the following second, `24:00` the following midnight.
    The parser cuts digits beyond the microsecond and never rounds, so no record moves into the next second.
    Integers are epoch seconds, or milliseconds from 10^11 on. Years are 1 to 9999.
    """
    if isinstance(value, str):
        plain = _parse_fast(value)
        return _parse_lenient(value) if plain is None else plain
    if isinstance(value, int) and not isinstance(value, bool):
        return _check_range(value * (1_000 if abs(value) >= _MIN_MILLISECONDS else SECOND))
    return None


parse_instant_cached: Final = lru_cache(maxsize=4_096)(parse_instant)
"""`parse_instant` for texts that soon come again: a detail has the timestamp of its list item."""


def _parse_lenient(text: str) -> int | None:
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, _, sign, off_hour, off_minute = match.groups()
    parts = (int(hour or 0), int(minute or 0), int(second or 0))
    offset = (int(off_hour or 0), int(off_minute or 0))
    if not _is_valid_clock(parts, fraction) or offset > (23, 59) or offset[1] > 59:
        return None
    try:
        midnight = datetime(int(year), int(month), int(day), tzinfo=UTC)
    except ValueError:
        return None
    shift = timedelta(hours=offset[0], minutes=offset[1]) * (-1 if sign == "-" else 1)
    since_epoch = midnight - _EPOCH + timedelta(hours=parts[0], minutes=parts[1], seconds=parts[2]) - shift
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    return _check_range(since_epoch // timedelta(microseconds=1) + micros)


def _parse_fast(text: str) -> int | None:
    """Return the instant of a text in a usual UTC format, read by the interpreter's parser; None for other formats."""
    size = len(text)
    if (size == 20 and text[19] == "Z") or (size == 25 and text.endswith("+00:00")):
        text = text[:19]
    elif size == 27 and text[19] == "." and text[26] == "Z":
        text = text[:26]
    elif size != 19:
        return None
    # `fromisoformat` also reads weeks and dates without dashes; only the accepted formats have these separators.
    if not (text[4] == text[7] == "-" and text[10] in "T " and text[13] == text[16] == ":"):
        return None
    try:
        since = datetime.fromisoformat(text) - _NAIVE_EPOCH
    except ValueError:
        return None
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


def _is_valid_clock(parts: tuple[int, int, int], fraction: str | None) -> bool:
    hour, minute, second = parts
    if hour == 24:
        return minute == second == 0 and not (fraction or "").strip("0")
    return hour <= 23 and minute <= 59 and second <= 60


_FIRST: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST: Final = (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def is_in_range(micros: int) -> bool:
    """Return whether an instant is in the years 1 to 9999."""
    return _FIRST <= micros <= _LAST


def _check_range(micros: int) -> int | None:
    return micros if is_in_range(micros) else None


def to_datetime(micros: int) -> datetime:
    """Return the instant as an aware `datetime` in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def from_datetime(moment: datetime) -> int:
    """Return microseconds since 1970 UTC; a naive `datetime` counts as UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def format_instant(micros: int) -> str:
    """Return `YYYY-MM-DDTHH:MM:SSZ`, the service's format, without the fraction."""
    return f"{to_datetime(micros):%Y-%m-%dT%H:%M:%S}Z".rjust(20, "0")


def is_same_instant(one: int | None, other: int | None) -> bool:
    """Return whether two instants are equal, or one is unknown; if one has whole seconds, compare seconds."""
    if one is None or other is None or one == other:
        return True
    is_whole_second = one % SECOND == 0 or other % SECOND == 0
    return is_whole_second and one // SECOND == other // SECOND


def now_us() -> int:
    """Return this machine's clock, in microseconds since 1970 UTC."""
    return time.time_ns() // 1_000


def new_run_id() -> str:
    """Return a unique id of a run or job that sorts by time: `20261121T031500Z-3f9a1c`."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}"
