"""The watermark, computed from values."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from pipeline.crawl.models import ListedWindow
from pipeline.crawl.windows import ALL_TIME, Window
from pipeline.settings.settings import Settings
from pipeline.sync.differences import select_rotating_share
from pipeline.sync.watermark import (
    add_completed_windows,
    add_read_windows,
    advance,
    coverage_before_lookback,
    find_possible_watermark,
    fix_target,
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
    assert (find_possible_watermark(10_300, 10_000), find_possible_watermark(10_301, 10_000)) == (None, 9_400)


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


@every(("count", "share"), [(40, 0.1), (40, 1.0), (100, 0.07), (7, 0.001), (4_999, 0.3), (5_000, 0.999)])
def test_rotating_shares_have_their_size_and_select_every_file(count: int, share: float) -> None:
    """Each share has its part of the files, rounded up, whatever their ids; successive shares select all of them."""
    size, position = math.ceil(count * share - 1e-9), 0
    for ids in (range(1, count + 1), range(9_007_199_254_740_993, 9_007_199_254_740_993 + 222 * count, 222)):
        seen: set[int] = set()
        for _ in range(-(-count // size)):
            selected, position = select_rotating_share(ids, position=position, share=share)
            assert len(selected) == size
            seen |= selected
        assert seen == set(ids)
    spread, _ = select_rotating_share(range(1_000), position=0, share=0.1)
    assert all(sum(low <= file_id < low + 250 for file_id in spread) in range(20, 31) for low in range(0, 1_000, 250))
