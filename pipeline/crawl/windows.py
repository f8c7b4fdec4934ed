"""Windows: which intervals of update time to request. Pure; times are whole seconds since 1970 UTC.

Page-numbered lists lose files while files change: an update removes a file from the pages that are being read,
all later files move up by one, and the first file of the next page is never listed. Only one response is
consistent, so a window is split until its list fits in one response.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MIN_WINDOW_SECONDS: Final = 3
"""A window this narrow is paged, not split: its widened bounds already overlap the neighbours."""

MIN_SECOND: Final = -62_135_596_800  # year 1, the first second that a query can have
MAX_SECOND: Final = 253_402_300_799  # year 9999, the last one
_FALLBACK_SPLIT_POINTS: Final = (946_684_800, 0, MIN_SECOND)  # 2000, 1970, year 1; for files with unknown timestamps


class Window(Struct, frozen=True, order=True):
    """The half-open interval [start, end) of update time; None is no bound.

    `overflows`: its list is known not to fit in one response.
    """

    start: int | None
    end: int | None
    overflows: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether the window is too short to be split."""
        low = MIN_SECOND if self.start is None else self.start
        high = MAX_SECOND if self.end is None else self.end
        return high - low <= MIN_WINDOW_SECONDS

    def query_bounds(self) -> tuple[int | None, int | None]:
        """Return the bounds to send.

        They are widened by a second on both sides, so that it does not matter whether the service includes them.
        """
        return None if self.start is None else self.start - 1, self.end  # the last second inside is end - 1

    def may_contain(self, second: int) -> bool:
        """Return whether a file with a timestamp in that second may be in the answer to `query_bounds`."""
        low, high = self.query_bounds()
        return (low is None or second >= low) and (high is None or second <= high)


Coverage = tuple[tuple[int | None, int | None], ...]
"""Disjoint intervals [start, end) of update time that the lake has read completely, in order."""

ALL_TIME: Final = Window(None, None)


def add_span(coverage: Coverage, start: int | None, end: int | None) -> Coverage:
    """Return the coverage with one more span."""
    if start is not None and end is not None and end <= start:
        return coverage
    spans = sorted([*coverage, (start, end)], key=lambda span: -math.inf if span[0] is None else span[0])
    merged: list[tuple[int | None, int | None]] = [spans[0]]
    for low, high in spans[1:]:
        last_low, last_high = merged[-1]
        if last_high is None or (low is not None and low > last_high):
            if last_high is not None:
                merged.append((low, high))
            continue
        merged[-1] = (last_low, None if high is None else max(last_high, high))
    return tuple(merged)


def contiguous_end(coverage: Coverage) -> int | None:
    """Return the end of the first span if that has no lower bound: everything updated before is in the lake."""
    return coverage[0][1] if coverage and coverage[0][0] is None else None


def remove_span(coverage: Coverage, start: int | None, end: int | None) -> Coverage:
    """Return the coverage without a span."""
    if start is not None and end is not None and end <= start:
        return coverage
    remaining: list[tuple[int | None, int | None]] = []
    for low, high in coverage:
        if start is not None and (low is None or low < start):
            remaining.append((low, start if high is None else min(high, start)))
        if end is not None and (high is None or high > end):
            remaining.append((end if low is None else max(low, end), high))
    return tuple(remaining)


def uncovered_windows(coverage: Coverage) -> list[Window]:
    """Return the windows that are not covered, oldest first."""
    remaining: Coverage = ((None, None),)
    for start, end in coverage:
        remaining = remove_span(remaining, start, end)
    return [Window(start, end) for start, end in remaining]


def split_by_timestamps(window: Window, timestamps: Sequence[int], limit: int) -> list[Window]:
    """Return sub-windows of `window` whose queries match at most `limit` of `timestamps` each.

    `timestamps` are the sorted seconds of the known files in the window. A single second with more than `limit`
    files becomes a window of a few seconds around it that `overflows`.
    """
    sub_windows: list[Window] = []
    edge = window.start
    while True:
        first = 0 if edge is None else bisect_left(timestamps, edge - 1)
        over = first + limit  # index of the first timestamp that is one too many
        if over >= len(timestamps):
            sub_windows.append(Window(edge, window.end))
            return sub_windows
        end = timestamps[over] - 1
        if (edge is not None and end <= edge) or timestamps[first] >= end:
            sub_windows.append(Window(edge, _clip_end(window, timestamps[over] + 2), overflows=True))
        else:
            sub_windows.append(Window(edge, _clip_end(window, end)))
        edge = sub_windows[-1].end
        if edge is None or edge == window.end:
            return sub_windows


def _clip_end(window: Window, end: int) -> int:
    return end if window.end is None else min(end, window.end)


def split_by_time(window: Window, *, known: Iterable[int], now: int, pieces: int = 2) -> list[Window]:
    """Return sub-windows of `window` of equal length, for files with unknown or equal timestamps.

    `known` are timestamps of the window's files, in any order. `now` is the service's clock. An open bound is
    split off first, so that the rest is finite and can be halved.
    """
    start, end = window.start, window.end
    if start is None:
        latest = end if end is not None else now
        edge = next((point for point in _FALLBACK_SPLIT_POINTS if point < latest), latest - 1)
        return [Window(None, edge), Window(edge, end)]
    if end is None:
        edge = max(now, start + 1, *(timestamp for timestamp in known if window.may_contain(timestamp)))
        return [Window(start, edge), Window(edge, None)]
    count = min(pieces, end - start)
    edges = [start + (end - start) * step // count for step in range(count + 1)]
    return [Window(low, high) for low, high in pairwise(edges)]
