"""Time as the service tells it: `Retry-After`, and the service's own clock from its `Date` headers."""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC
from email.utils import parsedate_to_datetime
from statistics import median_low
from typing import TYPE_CHECKING, Final

from schemas.instants import SECOND, from_datetime

if TYPE_CHECKING:
    from collections.abc import Callable

_KEPT: Final = 31


def read_date(text: str | None) -> int | None:
    """An HTTP date as microseconds since 1970 UTC, or None when it is none."""
    if not text or len(text) > 64:
        return None
    try:
        moment = parsedate_to_datetime(text)
        return from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def read_retry_after(text: str | None, *, date: str | None = None) -> float | None:
    """Seconds to wait, or None when the header is absent or says nothing.

    Both forms are understood. A moment is counted from the reply's own `Date`, so that a wrong clock here
    does not matter; a past moment is 0, a negative number says nothing.
    """
    text = (text or "").strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return min(float(text[:20]), 1e12)
    moment = read_date(text)
    if moment is None:
        return None
    now = read_date(date)
    if now is None:
        now = int(time.time() * SECOND)
    return max(0.0, (moment - now) / SECOND)


class ServiceClock:
    """The service's clock, learned from `Date` headers and carried on by the monotonic clock.

    One odd `Date` among many is outvoted: the offset is the median of the latest ones.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offsets: deque[int] = deque(maxlen=_KEPT)
        self._offset: int | None = None
        self._last: str | None = None

    def observe(self, date: str | None) -> None:
        """Take note of a reply's `Date`. Cheap: a text seen just before is not read again."""
        if date is None or date == self._last:
            return
        self._last = date
        moment = read_date(date)
        if moment is not None:
            self._offsets.append(moment - int(self._monotonic() * SECOND))
            self._offset = median_low(self._offsets)

    def now(self) -> int | None:
        """The service's time in microseconds since 1970 UTC, or None before any usable `Date`."""
        return None if self._offset is None else self._offset + int(self._monotonic() * SECOND)
