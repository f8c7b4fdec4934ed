"""The schedule of runs: durations, jitter, back-off."""

from __future__ import annotations

import pytest

from pipeline.errors import SettingsError
from pipeline.formatting import format_duration
from pipeline.monitoring.run_result import RunOutcome
from pipeline.monitoring.schedule import Schedule, parse_duration
from tests.rows import every

QUARTER = 900.0


@every(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("6h", 21_600), ("1d", 86_400), ("1h30m", 5_400), ("0.5s", 0.5)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """A duration is a number with its unit, or several side by side."""
    assert parse_duration("--every", text) == seconds


@every(
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
        parse_duration("--every", text, minimum=1)
    assert caught.value.message == says
    assert "90s, 15m, 6h, 1d" in caught.value.hint


@every(("seconds", "text"), [(0, "0s"), (2.25, "2.2s"), (90, "1m30s"), (900, "15m"), (90_061, "1d1h"), (59.6, "1m")])
def test_durations_are_spelt(seconds: float, text: str) -> None:
    """A duration is told in the units it is written in, the two greatest."""
    assert format_duration(seconds) == text


def test_a_fleet_does_not_meet() -> None:
    """Runs begin up to a tenth of the interval earlier or later, counted from the last beginning."""
    chances = iter((0.0, 0.5, 1.0))
    table = Schedule(QUARTER, 90, lambda: next(chances))
    assert [table.next_delay(RunOutcome.DONE, 1, run_seconds=60) for _ in range(3)] == [750, 840, 930]
    assert Schedule.from_interval(QUARTER).jitter == 90
    assert Schedule.from_interval(60.0, 600.0).jitter == 60


def test_a_run_longer_than_the_interval_is_followed_at_once() -> None:
    """What took longer than the interval leaves no negative pause."""
    assert Schedule.from_interval(QUARTER).next_delay(RunOutcome.DONE, 1, run_seconds=4000) == 0


def test_the_first_run_waits_a_moment() -> None:
    """Machines that are switched on together begin within half a minute of each other, not at once."""
    assert Schedule(86_400, 8640, lambda: 1.0).initial_delay() == 30
    assert Schedule(1, 0.1, lambda: 1.0).initial_delay() == 0.1


@every(
    ("every", "outcome", "pauses"),
    [
        (QUARTER, RunOutcome.FAILED, [30, 60, 120, 240, 480, 900, 900]),
        (86_400.0, RunOutcome.FAILED, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]),
        (1.0, RunOutcome.FAILED, [1, 2, 4, 8]),
        (QUARTER, RunOutcome.NEEDS_ATTENTION, [300, 600, 1200, 2400, 3600, 3600]),
        (QUARTER, RunOutcome.LOCKED, [5, 10, 20, 40, 60, 60]),
        (1.0, RunOutcome.LOCKED, [1, 1]),
    ],
)
def test_failures_are_repeated_at_growing_intervals(every: float, outcome: RunOutcome, pauses: list[float]) -> None:
    """Pauses double from failure to failure, up to a quarter or an hour; with chance, never below half of that."""
    late, early = Schedule(every, 0, lambda: 1.0), Schedule(every, 0, lambda: 0.0)
    assert [late.next_delay(outcome, number, run_seconds=9) for number in range(1, len(pauses) + 1)] == pauses
    assert early.next_delay(outcome, 3, run_seconds=9) == late.next_delay(outcome, 3, run_seconds=9) / 2
    assert late.next_delay(outcome, 10_000, run_seconds=9) <= 3600
