"""The service's clock and `Retry-After`."""

from __future__ import annotations

from email.utils import formatdate

from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.clock import MAX_AHEAD_SECONDS, ServiceClock, parse_retry_after
from schemas.timestamps import SECOND
from tests.rows import every

NOW = 1_800_000_000


def date(seconds: float) -> str:
    """Return an HTTP date."""
    return formatdate(seconds, usegmt=True)


@every(
    ("text", "seconds"),
    [
        *((text, None) for text in (None, "", "abc", "-5", "nan", "inf", "\u0665", "Fri, 99 Foo 2099 00:00:00 GMT")),
        *(("5", 5.0), (" 5 ", 5.0), ("0", 0.0), ("1.5", 1.5), ("1000000000", 1e9), ("9" * 400, 1e12)),
        *((date(NOW + 90), 90.0), (date(NOW - 90), 0.0)),
    ],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    """Seconds and dates are read, past dates are 0, invalid values are None."""
    assert parse_retry_after(text, date=date(NOW)) == seconds  # by the response's own date, not by a clock of ours


@given(st.text(max_size=70))
def test_retry_after_never_fails(text: str) -> None:
    """Any text gives a number that is not negative, or None."""
    found = parse_retry_after(text, date=text)
    assert found is None or found >= 0


class Ticking(ServiceClock):
    """A clock on a machine that shows NOW at its monotonic zero."""

    def __init__(self) -> None:
        self.ticks = 0.0
        super().__init__(lambda: self.ticks, lambda: int((NOW + self.ticks) * SECOND))


def test_the_clock_advances() -> None:
    """Without any `Date` the time is unknown; after one it advances with the monotonic clock."""
    clock = Ticking()
    for nothing in (None, "yesterday", "Mon, 01 Jan 99999 00:00:00 GMT"):
        clock.observe(nothing)
        assert clock.now() is None
    clock.observe(date(NOW))
    clock.ticks = 7.5
    assert clock.now() == NOW * SECOND + 7_500_000


def test_one_wrong_date_is_ignored() -> None:
    """A single response from 1970 or 2099 does not change the clock."""
    clock = Ticking()
    for second in range(10):
        clock.ticks = float(second)
        clock.observe(date(0 if second == 4 else 4_000_000_000 if second == 7 else NOW + second))
        assert clock.now() == (NOW + second) * SECOND


@every("ahead", [1_200, 86_400, 7_900 * 365 * 86_400])
def test_a_date_in_the_future_is_not_believed(ahead: int) -> None:
    """However far ahead a `Date` is, the clock is at most five minutes ahead of this machine's, and says how far."""
    clock = Ticking()
    clock.observe(date(min(NOW + ahead, 253_402_300_799)))
    assert clock.now() == (NOW + MAX_AHEAD_SECONDS) * SECOND
    assert (clock.seconds_ahead or 0) > 1_000


def test_the_past_is_told_again_with_later_dates() -> None:
    """The time at an earlier moment follows from all dates so far: one early lie is corrected by later answers."""
    clock = Ticking()
    clock.observe(date(NOW + 250))
    assert clock.at(0.0) == (NOW + 250) * SECOND
    for second in (1, 2, 3):
        clock.ticks = float(second)
        clock.observe(date(NOW + second))
    assert clock.at(0.0) == NOW * SECOND
