"""The planner: which spans of update time to ask for. Pure; times are whole seconds since 1970 UTC.

Page-numbered lists lose files while files change: an update takes a file out of the pages being read, all
behind it move up one place, and the one at the page's edge is never shown. Only one response is a
consistent picture, so a window is cut until its list fits in one response.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NARROW: Final = 3
"""Seconds. A window this narrow is paged, not cut: its widened bounds already reach into the neighbours."""

FIRST: Final = -62_135_596_800  # year 1, the first second that can be asked for
LAST: Final = 253_402_300_799  # year 9999, the last one
_ANCIENT: Final = (946_684_800, 0, FIRST)  # 2000, 1970, year 1: edges for files whose stamps are not known


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """The half-open span [start, end) of update time; None is no bound. `crowded`: known not to fit."""

    start: int | None
    end: int | None
    crowded: bool = False

    @property
    def is_narrow(self) -> bool:
        """Too short to be cut."""
        low = FIRST if self.start is None else self.start
        high = LAST if self.end is None else self.end
        return high - low <= NARROW

    def asked(self) -> tuple[int | None, int | None]:
        """The bounds to send, widened by a second on both sides: whether they include makes no difference."""
        return (
            None if self.start is None else self.start - 1,
            None if self.end is None else self.end,  # the last second inside is end - 1
        )

    def holds(self, second: int) -> bool:
        """Whether a stamp in that second may come in answer to `asked`."""
        low, high = self.asked()
        return (low is None or second >= low) and (high is None or second <= high)


Coverage = tuple[tuple[int | None, int | None], ...]
"""Disjoint spans [start, end) of update time that the lake holds whole, in order."""

EVERYTHING: Final = Window(None, None)


def cover(coverage: Coverage, start: int | None, end: int | None) -> Coverage:
    """The coverage with one more span."""
    if start is not None and end is not None and end <= start:
        return coverage
    spans = sorted([*coverage, (start, end)], key=lambda span: _low(span[0]))
    merged: list[tuple[int | None, int | None]] = [spans[0]]
    for low, high in spans[1:]:
        last_low, last_high = merged[-1]
        if last_high is None or (low is not None and low > last_high):
            if last_high is not None:
                merged.append((low, high))
            continue
        merged[-1] = (last_low, None if high is None else max(last_high, high))
    return tuple(merged)


def horizon(coverage: Coverage) -> int | None:
    """Everything updated before it is in: the end of the first span, if that begins at the beginning."""
    return coverage[0][1] if coverage and coverage[0][0] is None else None


def uncover(coverage: Coverage, start: int | None, end: int | None) -> Coverage:
    """The coverage without a span."""
    if start is not None and end is not None and end <= start:
        return coverage
    left: list[tuple[int | None, int | None]] = []
    for low, high in coverage:
        if start is not None and (low is None or low < start):
            left.append((low, start if high is None else min(high, start)))
        if end is not None and (high is None or high > end):
            left.append((end if low is None else max(low, end), high))
    return tuple(left)


def gaps(coverage: Coverage, since: int | None, until: int | None) -> list[Window]:
    """What of [since, until) is not covered, oldest first."""
    found: list[Window] = []
    edge: int | None = since
    open_low = since is None
    for low, high in coverage:
        if not open_low and high is not None and edge is not None and high <= edge:
            continue
        if low is not None and until is not None and low >= until:
            break
        if low is not None and (open_low or (edge is not None and low > edge)):
            found.append(Window(edge, low))
        if high is None:
            return found
        edge, open_low = high, False
    if until is None or edge is None or edge < until:
        found.append(Window(edge, until))
    return found


def _low(start: int | None) -> float:
    return float("-inf") if start is None else start


def cut(window: Window, stamps: Sequence[int], limit: int) -> list[Window]:
    """Windows that tile `window` and hold at most `limit` of `stamps` each, as they will be asked.

    `stamps` are the seconds, sorted, of the files known in the window. A second that holds more than
    `limit` alone comes as a `crowded` window of a few seconds around it.
    """
    tiles: list[Window] = []
    edge = window.start
    while True:
        first = 0 if edge is None else bisect_left(stamps, edge - 1)
        over = first + limit  # the first stamp that would be one too many
        if over >= len(stamps):
            tiles.append(Window(edge, window.end))
            return tiles
        end = stamps[over] - 1
        if (edge is not None and end <= edge) or stamps[first] >= end:
            tiles.append(_crowd(window, edge, stamps[over] + 2))
        else:
            tiles.append(Window(edge, _inside(window, end)))
        edge = tiles[-1].end
        if edge is None or edge == window.end:
            return tiles


def _crowd(window: Window, start: int | None, end: int) -> Window:
    return Window(start, _inside(window, end), crowded=True)


def _inside(window: Window, end: int) -> int:
    return end if window.end is None else min(end, window.end)


def halve(window: Window, *, seen: Iterable[int], now: int, pieces: int = 2) -> list[Window]:
    """Windows that tile `window`, by time alone: where stamps are unknown or have not helped.

    `seen` are stamps known to lie inside, in any order; `now` is the service's clock. An open end is cut
    off at a moment inside, so that a finite rest remains to be halved.
    """
    inside = sorted(stamp for stamp in seen if window.holds(stamp))
    start, end = window.start, window.end
    if start is None:
        edge = _ancient_edge(end if end is not None else now)
        return [Window(None, edge), Window(edge, end)]
    if end is None:
        edge = max(now, inside[-1] if inside else now, start + 1)
        return [Window(start, edge), Window(edge, None)]
    count = min(pieces, end - start)
    edges = [start + (end - start) * step // count for step in range(count + 1)]
    return [Window(low, high) for low, high in pairwise(edges)]


def _ancient_edge(end: int) -> int:
    return next((edge for edge in _ANCIENT if edge < end), end - 1)


def trusted(window: Window, listed_at: int, look_back: int) -> tuple[int | None, int | None] | None:
    """What a finished window of a run that did not end still vouches for; None for nothing.

    Files may arrive late, or be stamped by a slow clock, up to `look_back` seconds after the fact.
    """
    end = listed_at - look_back
    if window.end is not None:
        end = min(end, window.end)
    return None if window.start is not None and end <= window.start else (window.start, end)
