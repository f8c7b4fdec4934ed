"""One parser and one spelling for moments in time.

Inside scanlake an instant is an integer: microseconds since 1970-01-01T00:00:00 UTC. Integers compare
exactly, never shift with a session's zone, and are what Arrow and SQLite hold anyway.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = _EPOCH.replace(tzinfo=None)
_SHAPE: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[Tt ](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d{1,30}))?)?)?\s?(?:([Zz])|([+-])(\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)
_MILLISECONDS_FROM: Final = 100_000_000_000  # as seconds this is the year 5138, as milliseconds 1973


def parse_instant(value: object) -> int | None:
    """Microseconds since 1970 UTC, or None when `value` names no instant.

    The policy, in one place: ISO-8601 with `T`, `t` or a space, with `Z`, an offset or nothing (UTC, as the
    interface says); a date alone is the start of its day; digits beyond the microsecond are cut off, never
    rounded, so that no record moves into the next second; `:60` is the following second and `24:00` the
    following midnight. Whole numbers are epoch seconds, or milliseconds from 10^11 on. Years 1 to 9999.
    """
    if isinstance(value, str):
        plain = _plain(value)
        return _any_spelling(value) if plain is None else plain
    if isinstance(value, int) and not isinstance(value, bool):
        return _from_epoch(value)
    return None


def _any_spelling(text: str) -> int | None:
    found = _SHAPE.fullmatch(text.strip())
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, _, sign, off_hour, off_minute = found.groups()
    parts = (int(hour or 0), int(minute or 0), int(second or 0))
    offset = (int(off_hour or 0), int(off_minute or 0))
    if not _clock_is_sound(parts, fraction) or offset > (23, 59) or offset[1] > 59:
        return None
    try:
        midnight = datetime(int(year), int(month), int(day), tzinfo=UTC)
    except ValueError:
        return None
    shift = timedelta(hours=offset[0], minutes=offset[1]) * (-1 if sign == "-" else 1)
    whole = midnight - _EPOCH + timedelta(hours=parts[0], minutes=parts[1], seconds=parts[2]) - shift
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    return _in_range(whole // timedelta(microseconds=1) + micros)


def _plain(text: str) -> int | None:
    """The instant of the usual spellings in UTC, read by the interpreter's own parser; None for any other."""
    size = len(text)
    if (size == 20 and text[19] == "Z") or (size == 25 and text.endswith("+00:00")):
        text = text[:19]
    elif size == 27 and text[19] == "." and text[26] == "Z":
        text = text[:26]
    elif size != 19:
        return None
    # It reads more than we do, weeks and forms without dashes; these marks stand only in ours.
    if not (text[4] == text[7] == "-" and text[10] in "T " and text[13] == text[16] == ":"):
        return None
    try:
        since = datetime.fromisoformat(text) - _NAIVE_EPOCH
    except ValueError:
        return None
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


def _clock_is_sound(parts: tuple[int, int, int], fraction: str | None) -> bool:
    hour, minute, second = parts
    if hour == 24:
        return minute == second == 0 and not (fraction or "").strip("0")
    return hour <= 23 and minute <= 59 and second <= 60


def _from_epoch(value: int) -> int | None:
    return _in_range(value * (1_000 if abs(value) >= _MILLISECONDS_FROM else SECOND))


_FIRST: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST: Final = (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def _in_range(micros: int) -> int | None:
    return micros if _FIRST <= micros <= _LAST else None


def as_datetime(micros: int) -> datetime:
    """The instant as an aware `datetime` in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def from_datetime(moment: datetime) -> int:
    """Microseconds since 1970 UTC of an aware `datetime`; a naive one is taken as UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def spell_instant(micros: int) -> str:
    """`YYYY-MM-DDTHH:MM:SSZ`, the form the service takes; a fraction is cut off."""
    return f"{as_datetime(micros):%Y-%m-%dT%H:%M:%S}Z".rjust(20, "0")


def floor_second(micros: int) -> int:
    """The beginning of the second in which the instant lies."""
    return micros - micros % SECOND
