"""Bounds of time: a date alone is the start of its day as a lower bound, its end as an upper one."""

import re
from typing import Final

from pipeline.errors import SettingsError
from schemas.timestamps import DAY, SECOND, parse_instant

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def parse_range(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Return the range in seconds, its end exclusive. Raises `SettingsError` if it is empty."""
    low, high = parse_bound("--since", since), parse_bound("--until", until)
    if high is not None and until is not None and is_date(until):
        high += DAY
    if low is not None and high is not None and high <= low:
        raise SettingsError("--until is not after --since.", hint="Use a later --until.")
    return (None if low is None else low // SECOND, None if high is None else high // SECOND)


def is_date(text: str) -> bool:
    """Return whether the text is a date without a time."""
    return _DATE.fullmatch(text.strip()) is not None


def parse_bound(flag: str, text: str | None) -> int | None:
    """Return the instant of an option, of a date its start. Raises `SettingsError`."""
    if text is None:
        return None
    instant = parse_instant(text)
    if instant is None:
        raise SettingsError(f"{flag} {text}: not an instant.", hint="Use 2026-01-31 or 2026-01-31T12:00:00Z.")
    return instant
