"""The planner: whatever the stamps, its windows tile time, fit in a response, and get on; coverage is set algebra."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.crawl.windows import (
    EVERYTHING,
    FIRST,
    LAST,
    NARROW,
    Window,
    cover,
    cut,
    gaps,
    halve,
    horizon,
    trusted,
    uncover,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.crawl.windows import Coverage

SPAN: Final = 24  # the seconds of the small worlds: 0 to 23; one more on each side stands for all beyond
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
    """The seconds of a span, of those in TIME."""
    return {at for at in TIME if (start is None or at >= start) and (end is None or at < end)}


def covered(coverage: Coverage) -> set[int]:
    """The seconds that a coverage holds."""
    return set().union(*(seconds_of(low, high) for low, high in coverage))


def assert_tiles(window: Window, tiles: Sequence[Window]) -> None:
    """No gap, no overlap, nothing beyond, nothing empty."""
    assert tiles[0].start == window.start
    assert tiles[-1].end == window.end
    for left, right in pairwise(tiles):
        assert left.end is not None
        assert left.end == right.start
    for tile in tiles:
        assert tile.start is None or tile.end is None or tile.start < tile.end


def asked_for(window: Window, stamps: Sequence[int]) -> int:
    """How many of the stamps, in seconds, may come in answer to the window."""
    return sum(window.holds(stamp) for stamp in stamps)


@given(windows(), stamp_lists, st.integers(1, 12))
def test_cut_tiles_the_window(window: Window, stamps: list[int], limit: int) -> None:
    """The tiles of a cut follow each other without gap or overlap, from the window's start to its end."""
    assert_tiles(window, cut(window, stamps, limit))


@given(st.one_of(windows(), windows(0, 100_000)), st.one_of(stamp_lists, spread_lists), st.integers(1, 12))
@example(EVERYTHING, [0, 5, 7, 8, 20], 2)
def test_no_tile_is_asked_for_more_than_fits(window: Window, stamps: list[int], limit: int) -> None:
    """A tile that is not crowded holds at most as many stamps as fit, those of its widened bounds counted in."""
    for tile in cut(window, stamps, limit):
        if not tile.crowded:
            assert asked_for(tile, stamps) <= limit


@given(windows(), stamp_lists, st.integers(1, 12))
def test_a_crowd_is_a_crowd(window: Window, stamps: list[int], limit: int) -> None:
    """A crowded tile has more stamps than fit in the last seconds before its end, where it will be paged."""
    for tile in cut(window, stamps, limit):
        if tile.crowded and tile.end is not None and tile.end != window.end:
            assert asked_for(Window(tile.end - NARROW, tile.end), stamps) > limit


@given(stamp_lists.filter(bool), st.integers(1, 12))
def test_cut_makes_few_tiles(stamps: list[int], limit: int) -> None:
    """There are never more tiles than stamps allow: each but the last leaves a stamp behind it."""
    assert len(cut(EVERYTHING, stamps, limit)) <= len(set(stamps)) + 1


@given(windows(), st.lists(st.integers(-5, SPAN + 5)), st.integers(-3, SPAN + 3), st.integers(2, 16))
def test_halves_tile_the_window(window: Window, seen: list[int], now: int, pieces: int) -> None:
    """The parts of a window that is cut by time follow each other without gap or overlap, and are at least two."""
    if window.is_narrow:
        return
    parts = halve(window, seen=seen, now=now, pieces=pieces)
    assert_tiles(window, parts)
    assert len(parts) >= 2


@given(windows(), st.integers(-3, SPAN + 3), st.integers(2, 16))
def test_cutting_by_time_comes_to_an_end(window: Window, now: int, pieces: int) -> None:
    """However often the oldest part overflows, it is too narrow to be cut after a bounded number of cuts."""
    for _ in range(64):
        if window.is_narrow:
            return
        window = halve(window, seen=(), now=now, pieces=pieces)[0]
    pytest.fail(f"{window} is still cut")


def test_the_ends_of_time_are_narrow() -> None:
    """Before the first second and after the last one that can be asked for there is nothing left to cut."""
    assert Window(None, FIRST).is_narrow
    assert Window(LAST, None).is_narrow
    assert not EVERYTHING.is_narrow


@given(windows(), st.integers(0, SPAN * 10 - 1))
def test_bounds_may_be_taken_either_way(window: Window, tenth: int) -> None:
    """A stamp inside a window lies inside what is asked for, be the bounds inclusive or exclusive."""
    second, fraction = divmod(tenth, 10)
    inside = (window.start is None or second >= window.start) and (window.end is None or second < window.end)
    low, high = window.asked()
    moment = second + fraction / 10
    if inside:
        assert low is None or moment > low
        assert high is None or moment < high
    inclusive = (low is None or moment >= low) and (high is None or moment <= high)
    assert not inclusive or window.holds(second)


@given(st.lists(st.tuples(st.booleans(), bounds, bounds), max_size=10))
def test_coverage_is_a_set(steps: list[tuple[bool, int | None, int | None]]) -> None:
    """Covering and uncovering spans, empty ones too, gives union and difference, as disjoint spans in order."""
    coverage: Coverage = ()
    held: set[int] = set()
    for adds, start, end in steps:
        span = seconds_of(start, end)
        coverage = cover(coverage, start, end) if adds else uncover(coverage, start, end)
        held = held | span if adds else held - span
        assert covered(coverage) == held
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
            coverage = cover(coverage, start, end)
    return coverage


@given(coverages(), bounds, bounds)
def test_gaps_are_what_is_not_covered(coverage: Coverage, since: int | None, until: int | None) -> None:
    """The gaps of a span and what is covered of it are the whole span, without overlap, oldest first."""
    if since is not None and until is not None and since >= until:
        return
    found = gaps(coverage, since, until)
    assert found == sorted(found, key=lambda gap: BEFORE - 1 if gap.start is None else gap.start)
    missing = [at for gap in found for at in sorted(seconds_of(gap.start, gap.end))]
    assert missing == sorted(seconds_of(since, until) - covered(coverage))


@given(coverages())
def test_the_horizon_has_no_gap_before_it(coverage: Coverage) -> None:
    """Everything before the horizon is covered; where the beginning is not covered there is none."""
    reached = horizon(coverage)
    if reached is None:
        assert coverage in {(), ((None, None),)} or coverage[0][0] is not None
    else:
        assert seconds_of(None, reached) <= covered(coverage)
        assert reached not in covered(coverage) or reached == AFTER


@given(windows(), st.integers(0, SPAN), st.integers(0, SPAN))
def test_trust_ends_before_the_look_back(window: Window, listed_at: int, look_back: int) -> None:
    """Of a finished window of a killed run counts what lies inside it and before its list less the look-back."""
    span = trusted(window, listed_at, look_back)
    inside = {at for at in seconds_of(window.start, window.end) if at < listed_at - look_back}
    assert (set() if span is None else seconds_of(*span)) == inside


@given(coverages(), windows(), st.integers(0, SPAN), st.integers(0, SPAN))
def test_an_untrusted_window_covers_nothing(coverage: Coverage, window: Window, listed_at: int, look_back: int) -> None:
    """Covering what is trusted never covers a second that is neither covered before nor trusted."""
    span = trusted(window, listed_at, look_back)
    if span is not None:
        assert covered(cover(coverage, *span)) == covered(coverage) | seconds_of(*span)
