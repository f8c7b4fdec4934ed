"""Time in HTTP headers: `Retry-After`, stated limits, and the service's clock from its `Date` headers."""

from __future__ import annotations

import re
import time
from collections import deque
from datetime import UTC
from email.utils import parsedate_to_datetime
from statistics import median_low
from typing import TYPE_CHECKING, Final

from schemas.timestamps import SECOND, from_datetime, now_us

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_SAMPLES: Final = 31
_MAX_DATE_CHARS: Final = 64
_LIMIT_POLICY: Final = re.compile(r',\s*(?=")')  # before the quoted name of the next one
_LIMIT_PARAMETER: Final = re.compile(r"\b(remaining|reset|r|t)\s*=\s*(\d+)")
_NUMBER: Final = re.compile(r"[0-9]{1,12}")
_MIN_EPOCH: Final = 1e9  # a larger reset is an instant, not a number of seconds
MAX_AHEAD_SECONDS: Final = 300
"""How far the service's clock may be ahead of this machine's. Half of the default lookback, which makes up for it."""


def parse_http_date(text: str | None) -> int | None:
    """Return an HTTP date in microseconds since 1970 UTC, None if it is invalid."""
    if not text or len(text) > _MAX_DATE_CHARS:
        return None
    try:
        date = parsedate_to_datetime(text)
        return from_datetime(date if date.tzinfo else date.replace(tzinfo=UTC))
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def parse_retry_after(text: str | None, *, date: str | None = None) -> float | None:
    """Return the seconds to wait, None if the header is absent or invalid.

    Both forms are supported. An HTTP date is relative to the response's own `Date`, so that a wrong local clock does
    not matter. A past date is 0; a negative number is invalid.
    """
    text = (text or "").strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return min(float(text[:20]), 1e12)
    until = parse_http_date(text)
    if until is None:
        return None
    now = parse_http_date(date)
    if now is None:
        now = int(time.time() * SECOND)
    return max(0.0, (until - now) / SECOND)


def parse_stated_pause(header: Callable[[str], str | None]) -> float | None:
    """Return the seconds until there are calls again if the headers state that none remains, else None.

    IETF drafts up to 7 have `RateLimit-Remaining` and `RateLimit: limit=9, remaining=0, reset=5`, later ones
    `RateLimit: "name";r=0;t=5`; `X-RateLimit-Reset` is in seconds, or an instant in seconds since 1970.
    """
    pauses: list[float] = []
    for prefix in ("RateLimit", "X-RateLimit"):
        for policy in _LIMIT_POLICY.split(header(prefix) or ""):
            values = dict(_LIMIT_PARAMETER.findall(policy))
            remaining = values.get("remaining", values.get("r", header(f"{prefix}-Remaining"))) or ""
            reset = values.get("reset", values.get("t", header(f"{prefix}-Reset"))) or ""
            if _NUMBER.fullmatch(remaining) and not int(remaining) and _NUMBER.fullmatch(reset):
                seconds = float(reset)
                if seconds > _MIN_EPOCH:
                    now = parse_http_date(header("Date"))
                    seconds -= (int(time.time() * SECOND) if now is None else now) / SECOND
                pauses.append(max(0.0, seconds))
    return max(pauses, default=None)


class ServiceClock:
    """The service's clock, learned from `Date` headers and advanced by the monotonic clock.

    The offset is the median of the latest headers, so that one wrong `Date` does not matter. A `Date` decides which
    updates later runs do not ask for, so it counts only up to `MAX_AHEAD_SECONDS` ahead of this machine's clock.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, local_now: Callable[[], int] = now_us) -> None:
        self._monotonic = monotonic
        self._local_now = local_now
        self._offsets: deque[int] = deque(maxlen=_MAX_SAMPLES)
        self._offset: int | None = None
        self._last_date: str | None = None

    def observe(self, date: str | None) -> None:
        """Learn from a response's `Date`. Cheap: the text of the previous response is not parsed again."""
        if date is None or date == self._last_date:
            return
        self._last_date = date
        instant = parse_http_date(date)
        if instant is not None:
            monotonic = int(self._monotonic() * SECOND)
            self._offsets.append(instant - monotonic)
            limit = self._local_now() + MAX_AHEAD_SECONDS * SECOND
            self._offset = min(median_low(self._offsets), limit - monotonic)

    def now(self) -> int | None:
        """Return the service's time in microseconds since 1970 UTC, None before the first valid `Date`."""
        return self.at(self._monotonic())

    def at(self, monotonic: float) -> int | None:
        """Return the service's time at a monotonic time of this process, by all headers so far; see `now`."""
        return None if self._offset is None else self._offset + int(monotonic * SECOND)

    def now_or_local(self) -> int:
        """Return the service's time, or this machine's before any usable `Date`; microseconds since 1970 UTC."""
        now = self.now()
        return now_us() if now is None else now

    @property
    def seconds_ahead(self) -> float | None:
        """How far the service's `Date` is ahead of this machine's clock; None before the first valid `Date`."""
        return None if not self._offsets else self.seconds_since(self._local_now())

    def seconds_since(self, instant: int) -> float:
        """Return the age of a timestamp by the service's `Date`, however wrong this machine's clock is; seconds."""
        monotonic = int(self._monotonic() * SECOND)
        return ((median_low(self._offsets) + monotonic if self._offsets else self._local_now()) - instant) / SECOND
