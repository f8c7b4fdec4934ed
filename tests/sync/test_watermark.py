"""The watermark, computed from values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from pipeline.crawl.models import ListedWindow
from pipeline.crawl.windows import ALL_TIME, Window
from pipeline.settings.settings import Settings
from pipeline.sync.watermark import (
    add_completed_windows,
    add_read_windows,
    advance,
    coverage_before_lookback,
    fix_target,
    repair_target,
)
from schemas.timestamps import SECOND
from tests.rows import every

if TYPE_CHECKING:
    from pipeline.lake.ledger.queries import LedgerQueries


@every(
    ("service", "local", "lookback", "target"),
    [
        (1_000, 9_999, 600, 970),
        (None, 9_999, 600, 9_399),
        (9_000, 1_000, 600, 1_270),
        (9_000, 1_000, 100, 1_020),
        (9_000, 1_000, 0, 970),
    ],
)
def test_the_target_is_the_services_clock_less_the_settle_time(
    service: int | None, local: int, lookback: int, target: int
) -> None:
    """The service's clock counts, without one the local less ten minutes; ahead it counts half the lookback at most."""
    assert fix_target(service, local, lookback_seconds=lookback) == target


def test_watermarks_are_repaired() -> None:
    """A watermark later than its run can reach goes to ten minutes before it."""
    assert (repair_target(10_300, 10_000), repair_target(10_301, 10_000)) == (None, 9_400)


def test_coverage_ends_before_the_lookback_and_has_the_gaps_of_inconsistent_lists() -> None:
    """A window counts up to its list's time less the lookback, open ones to the target, inconsistent ones not."""
    settings = Settings(lookback_seconds=300)
    cases: list[tuple[int | None, bool, int]] = [(1_000, True, 700), (1_000, False, 1_000), (None, True, 1_000)]
    for watermark, is_due, end in cases:
        properties = SimpleNamespace(watermark=watermark, lookback_due=is_due)
        ledger = cast("LedgerQueries", SimpleNamespace(coverage=lambda: ((None, 1_000),), properties=properties))
        assert coverage_before_lookback(ledger, settings) == ((None, end),)
    lists = [ListedWindow(ALL_TIME, 1_000 * SECOND), ListedWindow(ALL_TIME, 2_000 * SECOND, is_consistent=False)]
    assert add_completed_windows((), lists, 300) == ((None, 700),)
    windows = [Window(None, 100), Window(100, None)]
    assert add_read_windows((), windows, [], target=150) == ((None, 150),)
    assert add_read_windows((), windows, [Window(120, 130)], target=150) == ((None, 120), (130, 150))


def test_the_watermark_moves_back_only_after_an_inconsistent_list() -> None:
    """A later end moves it forward; an earlier one moves it back only when allowed; a gap at the start is no end."""
    assert advance(None, ((None, 50),), may_move_back=False) == 50
    assert advance(80, ((None, 50),), may_move_back=False) == 80
    assert advance(80, ((None, 50),), may_move_back=True) == 50
    assert advance(80, ((10, 50),), may_move_back=False) is None
