"""The service's clock and `Retry-After`."""

from __future__ import annotations

from email.utils import formatdate

from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.clock import MAX_AHEAD_SECONDS, ServiceClock, parse_http_date, parse_retry_after
from schemas.timestamps import SECOND
from tests.rows import every

NOW = 1_800_000_000


def date(seconds: float) -> str:
    """Return an HTTP date."""
    return formatdate(seconds, usegmt=True)


@every(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("abc", None),
        ("-5", None),
        ("5", 5.0),
        (" 5 ", 5.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("1000000000", 1e9),
        ("9" * 400, 1e12),
        ("nan", None),
        ("inf", None),
        ("\u0665", None),
        (date(NOW + 90), 90.0),
        (date(NOW - 90), 0.0),
        ("Fri, 99 Foo 2099 00:00:00 GMT", None),
    ],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    """Seconds and dates are read, past dates are 0, invalid values are None."""
    assert parse_retry_after(text, date=date(NOW)) == seconds


def test_a_date_is_relative_to_the_responses_date() -> None:
    """A wrong clock on either side does not change the seconds to wait."""
    assert parse_retry_after(date(30), date=date(10)) == 20.0


@given(st.text(max_size=70))
def test_retry_after_never_fails(text: str) -> None:
    """Any text gives a number that is not negative, or None."""
    found = parse_retry_after(text, date=text)
    assert found is None or found >= 0


def test_there_is_no_time_before_a_date() -> None:
    """Without any `Date` the service's time is unknown."""
    clock = ServiceClock()
    clock.observe(None)
    clock.observe("yesterday")
    assert clock.now() is None


def test_the_clock_advances() -> None:
    """Between responses the service's time advances with the monotonic clock."""
    ticks = [100.0]
    clock = ServiceClock(lambda: ticks[0], lambda: int((NOW + ticks[0]) * SECOND))
    clock.observe(date(NOW))
    ticks[0] = 107.5
    assert clock.now() == NOW * SECOND + 7_500_000


def test_one_wrong_date_is_ignored() -> None:
    """A single response from 1970 or 2099 does not change the clock."""
    ticks = [0.0]
    clock = ServiceClock(lambda: ticks[0], lambda: int((NOW + ticks[0]) * SECOND))
    for second in range(10):
        ticks[0] = float(second)
        clock.observe(date(0 if second == 4 else 4_000_000_000 if second == 7 else NOW + second))
        assert clock.now() == (NOW + second) * SECOND


@every("ahead", [1_200, 86_400, 7_900 * 365 * 86_400])
def test_a_date_in_the_future_is_not_believed(ahead: int) -> None:
    """However far ahead a `Date` is, the clock is at most five minutes ahead of this machine's, and says how far."""
    clock = ServiceClock(lambda: 50.0, lambda: NOW * SECOND)
    clock.observe(date(min(NOW + ahead, 253_402_300_799)))
    assert clock.now() == (NOW + MAX_AHEAD_SECONDS) * SECOND
    assert (clock.seconds_ahead or 0) > 1_000


def test_the_past_is_told_again_with_later_dates() -> None:
    """The time at an earlier moment follows from all dates so far: one early lie is corrected by later answers."""
    ticks = [0.0]
    clock = ServiceClock(lambda: ticks[0], lambda: int((NOW + ticks[0]) * SECOND))
    clock.observe(date(NOW + 250))
    assert clock.at(0.0) == (NOW + 250) * SECOND
    for second in (1, 2, 3):
        ticks[0] = float(second)
        clock.observe(date(NOW + second))
    assert clock.at(0.0) == NOW * SECOND


def test_dates_are_microseconds() -> None:
    """An HTTP date becomes microseconds since 1970; an absurd one is None."""
    assert parse_http_date(date(NOW)) == NOW * SECOND
    assert parse_http_date("Mon, 01 Jan 99999 00:00:00 GMT") is None
