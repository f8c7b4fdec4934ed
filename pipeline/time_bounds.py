"""Time bounds on the command line. A date alone is the start of its day as a lower bound, its end as an upper one."""

import re
from datetime import datetime
from typing import Final

from pipeline.errors import SettingsError
from schemas.timestamps import DAY, SECOND, parse_instant, to_datetime

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def parse_bound(flag: str, text: str | None) -> datetime | str | None:
    """Return a bound of a search. A date stays a date: the service reads it by the same rule."""
    instant = _parse_instant(flag, text)
    if text is None or instant is None:
        return None
    return text.strip() if _is_date(text) else to_datetime(instant)


def parse_range(
    since: str | None, until: str | None, names: tuple[str, str] = ("--since", "--until")
) -> tuple[int | None, int | None]:
    """Return the range in seconds, its end exclusive. Raises `SettingsError` if it is empty."""
    low, high = _parse_instant(names[0], since), _parse_instant(names[1], until)
    if high is not None and until is not None and _is_date(until):
        high += DAY
    if low is not None and high is not None and high <= low:
        raise SettingsError(f"{names[1]} is not after {names[0]}.", hint=f"Use a later {names[1]}.")
    return (None if low is None else low // SECOND, None if high is None else high // SECOND)


def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text.strip()) is not None


def _parse_instant(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    instant = parse_instant(text)
    if instant is None:
        raise SettingsError(f"{flag} {text}: not an instant.", hint="Use 2026-01-31 or 2026-01-31T12:00:00Z.")
    return instant
