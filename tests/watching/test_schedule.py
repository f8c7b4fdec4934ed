"""When the next run begins."""

from __future__ import annotations

import pytest

from pipeline.errors import SettingsError
from pipeline.watching.outcome import Kind
from pipeline.watching.schedule import Timetable, seconds_of, spell_seconds

QUARTER = 900.0


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("6h", 21_600), ("1d", 86_400), ("1h30m", 5_400), ("0.5s", 0.5)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """A duration is a number with its unit, or several side by side."""
    assert seconds_of("--every", text) == seconds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("15", "--every: not a duration. Did you mean 15s or 15m?"),
        ("", "--every: not a duration."),
        ("15 m", "--every: not a duration."),
        ("15min", "--every: not a duration."),
        ("-5m", "--every: not a duration."),
        ("1w", "--every: not a duration."),
        ("1e3s", "--every: not a duration."),
        ("0s", "--every: must be from 1s to 31d."),
        ("32d", "--every: must be from 1s to 31d."),
        (f"{'9' * 400}s", "--every: must be from 1s to 31d."),
    ],
)
def test_what_is_no_duration_says_how_to_write_one(text: str, says: str) -> None:
    """Anything else is refused in one line that shows how it is written."""
    with pytest.raises(SettingsError) as caught:
        seconds_of("--every", text, least=1)
    assert caught.value.message == says
    assert "90s, 15m, 6h, 1d" in caught.value.remedy


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (2.25, "2.2s"), (90, "1m30s"), (900, "15m"), (90_061, "1d1h"), (59.6, "1m")]
)
def test_durations_are_spelt(seconds: float, text: str) -> None:
    """A duration is told in the units it is written in, the two greatest."""
    assert spell_seconds(seconds) == text


def test_a_fleet_does_not_meet() -> None:
    """Runs begin up to a tenth of the interval earlier or later, counted from the last beginning."""
    chances = iter((0.0, 0.5, 1.0))
    table = Timetable(QUARTER, 90, lambda: next(chances))
    assert [table.pause(Kind.DONE, 1, taken=60) for _ in range(3)] == [750, 840, 930]
    assert Timetable.of(QUARTER).jitter == 90
    assert Timetable.of(60.0, 600.0).jitter == 60


def test_a_run_longer_than_the_interval_is_followed_at_once() -> None:
    """What took longer than the interval leaves no negative pause."""
    assert Timetable.of(QUARTER).pause(Kind.DONE, 1, taken=4000) == 0


def test_the_first_run_waits_a_moment() -> None:
    """Machines that are switched on together begin within half a minute of each other, not at once."""
    assert Timetable(86_400, 8640, lambda: 1.0).before_the_first() == 30
    assert Timetable(1, 0.1, lambda: 1.0).before_the_first() == 0.1


@pytest.mark.parametrize(
    ("every", "kind", "pauses"),
    [
        (QUARTER, Kind.FAILED, [30, 60, 120, 240, 480, 900, 900]),
        (86_400.0, Kind.FAILED, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]),
        (1.0, Kind.FAILED, [1, 2, 4, 8]),
        (QUARTER, Kind.STUCK, [300, 600, 1200, 2400, 3600, 3600]),
        (QUARTER, Kind.BUSY, [5, 10, 20, 40, 60, 60]),
        (1.0, Kind.BUSY, [1, 1]),
    ],
)
def test_failures_are_repeated_at_growing_intervals(every: float, kind: Kind, pauses: list[float]) -> None:
    """Pauses double from failure to failure, up to a quarter or an hour; with chance, never below half of that."""
    late, early = Timetable(every, 0, lambda: 1.0), Timetable(every, 0, lambda: 0.0)
    assert [late.pause(kind, number, taken=9) for number in range(1, len(pauses) + 1)] == pauses
    assert early.pause(kind, 3, taken=9) == late.pause(kind, 3, taken=9) / 2
    assert late.pause(kind, 10_000, taken=9) <= 3600
