"""The watermark, computed from values."""

from __future__ import annotations

from pipeline.crawl.models import ListedWindow
from pipeline.crawl.windows import ALL_TIME, Window
from pipeline.sync.watermark import (
    add_completed_windows,
    add_read_windows,
    advance,
    cap_target,
    fix_target,
    remove_lookback,
    repair_target,
)


def test_the_target_is_the_services_clock_less_the_settle_time() -> None:
    """The service's clock counts; without one the local clock does, with ten minutes of settle time or more."""
    assert fix_target(1_000, 9_999, settle_seconds=30, lookback_seconds=600) == 970
    assert fix_target(None, 9_999, settle_seconds=30, lookback_seconds=600) == 9_399
    assert fix_target(None, 9_999, settle_seconds=700, lookback_seconds=600) == 9_299


def test_the_target_is_not_far_ahead_of_this_machines_clock() -> None:
    """A service that is ahead counts only so far ahead as the next run's lookback makes up for twice."""
    assert fix_target(9_000, 1_000, settle_seconds=30, lookback_seconds=600) == 1_270
    assert fix_target(9_000, 1_000, settle_seconds=30, lookback_seconds=100) == 1_020
    assert fix_target(9_000, 1_000, settle_seconds=30, lookback_seconds=0) == 970


def test_a_watermark_that_its_run_cannot_have_reached_is_repaired() -> None:
    """A watermark later than the start of its run goes back to ten minutes before that start."""
    assert repair_target(10_300, 10_000) is None
    assert repair_target(10_301, 10_000) == 9_400


def test_the_target_is_capped_at_the_newest_update() -> None:
    """A fast local clock moves the target no further than the newest known update time."""
    assert (cap_target(500, 400), cap_target(500, 600), cap_target(500, None)) == (400, 500, 500)


def test_the_lookback_window_is_read_again() -> None:
    """The coverage ends so many seconds before the watermark."""
    assert remove_lookback(((None, 1_000),), 1_000, 300) == ((None, 700),)


def test_a_batch_covers_consistent_windows_only() -> None:
    """A window counts up to the time of its list less the lookback; an inconsistent one does not count."""
    consistent = ListedWindow(ALL_TIME, 1_000)
    inconsistent = ListedWindow(ALL_TIME, 2_000, is_consistent=False)
    assert add_completed_windows((), [consistent, inconsistent], 300) == ((None, 700),)


def test_a_run_covers_its_windows_up_to_the_target() -> None:
    """Open windows end at the target, and windows with an inconsistent list leave a gap."""
    windows = [Window(None, 100), Window(100, None)]
    assert add_read_windows((), windows, [], target=150) == ((None, 150),)
    assert add_read_windows((), windows, [Window(120, 130)], target=150) == ((None, 120), (130, 150))


def test_the_watermark_moves_back_only_after_an_inconsistent_list() -> None:
    """A later end moves it forward; an earlier one moves it back only when allowed; a gap at the start is no end."""
    assert advance(None, ((None, 50),), may_move_back=False) == 50
    assert advance(80, ((None, 50),), may_move_back=False) == 80
    assert advance(80, ((None, 50),), may_move_back=True) == 50
    assert advance(80, ((10, 50),), may_move_back=False) is None
