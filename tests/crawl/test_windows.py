"""Windows: whatever the timestamps, sub-windows tile their window, fit in a response, and end; coverage is a set."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.crawl.models import ListedWindow
from pipeline.crawl.windows import (
    ALL_TIME,
    MAX_SECOND,
    MIN_SECOND,
    MIN_WINDOW_SECONDS,
    Window,
    add_span,
    contiguous_end,
    remove_span,
    split_by_time,
    split_by_timestamps,
    uncovered_windows,
)
from pipeline.sync.watermark import add_completed_windows
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.crawl.windows import Coverage

SPAN: Final = 24  # the seconds of the small worlds: 0 to 23; one more on each side represents all other seconds
BEFORE, AFTER = -1, SPAN
TIME: Final = range(BEFORE, AFTER + 1)

seconds = st.integers(0, SPAN)
bounds = st.one_of(st.none(), seconds)


@st.composite
def windows(draw: st.DrawFn, low: int = 0, high: int = SPAN) -> Window:
    """A window with or without bounds, never empty."""
    start = draw(st.one_of(st.none(), st.integers(low, high - 1)))
    end = draw(st.one_of(st.none(), st.integers((low if start is None else start) + 1, high)))
    return Window(start, end)


stamp_lists = st.lists(st.integers(0, SPAN - 1), max_size=120).map(sorted)
spread_lists = st.lists(st.integers(0, 100_000), max_size=300).map(sorted)


def seconds_of(start: int | None, end: int | None) -> set[int]:
    """Return the seconds of a span that are in TIME."""
    return {at for at in TIME if (start is None or at >= start) and (end is None or at < end)}


def covered(coverage: Coverage) -> set[int]:
    """Return the seconds of a coverage."""
    return set().union(*(seconds_of(low, high) for low, high in coverage))


def assert_tiles(window: Window, tiles: Sequence[Window]) -> None:
    """Assert that tiles have no gap and no overlap, and that none is empty or outside of the window."""
    assert tiles[0].start == window.start
    assert tiles[-1].end == window.end
    for left, right in pairwise(tiles):
        assert left.end is not None
        assert left.end == right.start
    for tile in tiles:
        assert tile.start is None or tile.end is None or tile.start < tile.end


def count_matches(window: Window, stamps: Sequence[int]) -> int:
    """Return how many of the timestamps may be in the answer to the window's query."""
    return sum(window.may_contain(stamp) for stamp in stamps)


@given(st.one_of(windows(), windows(0, 100_000)), st.one_of(stamp_lists, spread_lists), st.integers(1, 12))
@example(ALL_TIME, [0, 5, 7, 8, 20], 2)
def test_split_by_timestamps_tiles_the_window(window: Window, stamps: list[int], limit: int) -> None:
    """Sub-windows tile their window, are few, and match at most what fits in a response, but for an overflow's end."""
    tiles = split_by_timestamps(window, stamps, limit)
    assert_tiles(window, tiles)
    assert window != ALL_TIME or len(tiles) <= len(set(stamps)) + 1
    for tile in tiles:
        if not tile.overflows:
            assert count_matches(tile, stamps) <= limit
        elif tile.end is not None and tile.end != window.end:  # read by pages: too many in the last seconds
            assert count_matches(Window(tile.end - MIN_WINDOW_SECONDS, tile.end), stamps) > limit


@given(windows(), st.lists(st.integers(-5, SPAN + 5)), st.integers(-3, SPAN + 3), st.integers(2, 16))
def test_split_by_time_tiles_the_window(window: Window, seen: list[int], now: int, pieces: int) -> None:
    """A window is split into two or more; however often the oldest overflows, it is narrow after a bounded number."""
    for _ in range(64):
        if window.is_narrow:
            return
        parts = split_by_time(window, known=seen, now=now, pieces=pieces)
        assert_tiles(window, parts)
        assert len(parts) >= 2
        window, seen = parts[0], []
    pytest.fail(f"{window} is still split")


def test_the_ends_of_time_are_narrow() -> None:
    """A window before the first second or after the last one is not split."""
    assert Window(None, MIN_SECOND).is_narrow
    assert Window(MAX_SECOND, None).is_narrow
    assert not ALL_TIME.is_narrow


@given(windows(), st.integers(0, SPAN * 10 - 1))
def test_inclusive_and_exclusive_bounds_are_equal(window: Window, tenth: int) -> None:
    """A timestamp inside a window matches its query, whether the bounds are inclusive or exclusive."""
    second, fraction = divmod(tenth, 10)
    inside = (window.start is None or second >= window.start) and (window.end is None or second < window.end)
    low, high = window.query_bounds()
    moment = second + fraction / 10
    if inside:
        assert low is None or moment > low
        assert high is None or moment < high
    inclusive = (low is None or moment >= low) and (high is None or moment <= high)
    assert not inclusive or window.may_contain(second)


@given(st.lists(st.tuples(st.booleans(), bounds, bounds), max_size=10))
def test_coverage_is_a_set(steps: list[tuple[bool, int | None, int | None]]) -> None:
    """Adding and removing spans, empty ones too, gives union and difference, as disjoint spans in order."""
    coverage: Coverage = ()
    expected: set[int] = set()
    for adds, start, end in steps:
        span = seconds_of(start, end)
        coverage = add_span(coverage, start, end) if adds else remove_span(coverage, start, end)
        expected = expected | span if adds else expected - span
        assert covered(coverage) == expected
        for (_, left), (right, _) in pairwise(coverage):
            assert left is not None
            assert right is not None
            assert left < right, "neighbours are one span"


@st.composite
def coverages(draw: st.DrawFn) -> Coverage:
    """Some coverage."""
    coverage: Coverage = ()
    for start, end in draw(st.lists(st.tuples(bounds, bounds), max_size=5)):
        if start is None or end is None or start < end:
            coverage = add_span(coverage, start, end)
    return coverage


@given(coverages())
def test_uncovered_windows_are_the_complement(coverage: Coverage) -> None:
    """The uncovered windows and the coverage are all time, without overlap, oldest first."""
    found = uncovered_windows(coverage)
    assert found == sorted(found, key=lambda gap: BEFORE - 1 if gap.start is None else gap.start)
    missing = [at for gap in found for at in sorted(seconds_of(gap.start, gap.end))]
    assert missing == sorted(set(TIME) - covered(coverage))


@given(coverages())
def test_the_watermark_has_no_gap_before_it(coverage: Coverage) -> None:
    """Everything before the watermark is covered; without a covered beginning there is no watermark."""
    reached = contiguous_end(coverage)
    if reached is None:
        assert coverage in {(), ((None, None),)} or coverage[0][0] is not None
    else:
        assert seconds_of(None, reached) <= covered(coverage)
        assert reached not in covered(coverage) or reached == AFTER


@given(coverages(), windows(), st.integers(0, SPAN), st.integers(0, SPAN))
def test_the_covered_span_ends_before_the_lookback(
    coverage: Coverage, window: Window, listed_at: int, lookback: int
) -> None:
    """A completed window of a killed run covers its seconds up to the lookback before its list, and no other."""
    inside = {at for at in seconds_of(window.start, window.end) if at < listed_at - lookback}
    lists = [ListedWindow(window, listed_at * SECOND)]
    assert covered(add_completed_windows(coverage, lists, lookback)) == covered(coverage) | inside
