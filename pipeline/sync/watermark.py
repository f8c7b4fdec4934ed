"""The watermark: everything updated before it is in the lake. Times are whole seconds since 1970 UTC. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.client.clock import MAX_AHEAD_SECONDS
from pipeline.crawl.models import SETTLE_SECONDS
from pipeline.crawl.windows import add_span, contiguous_end, remove_span

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.crawl.models import ListedWindow
    from pipeline.crawl.windows import Coverage, Window
    from pipeline.lake.ledger.queries import LedgerQueries
    from pipeline.settings.settings import Settings

SETTLE_WITHOUT_DATE_SECONDS: Final = 600
"""Settle time when the service sends no Date header: the local clock may be fast."""


def fix_target(service_now: int | None, local_now: int, *, lookback_seconds: int) -> int:
    """Return the target watermark of a run. Commits arrive up to `SETTLE_SECONDS` late in the service.

    A service that is ahead of this machine counts as far ahead as half the lookback: the next run reads that again.
    """
    if service_now is None:
        return local_now - SETTLE_WITHOUT_DATE_SECONDS
    return min(service_now, local_now + min(MAX_AHEAD_SECONDS, lookback_seconds // 2)) - SETTLE_SECONDS


def find_possible_watermark(watermark: int, run_started_at: int) -> int | None:
    """Return the watermark to go back to if a run that started then cannot have reached `watermark`; else None."""
    if watermark <= run_started_at + MAX_AHEAD_SECONDS:
        return None
    return run_started_at - SETTLE_WITHOUT_DATE_SECONDS


def coverage_before_lookback(ledger: LedgerQueries, settings: Settings) -> Coverage:
    """Return the coverage, without the lookback window if that is due: commits arrive late, and clocks differ."""
    coverage, properties = ledger.coverage(), ledger.properties
    if properties.watermark is None or not properties.lookback_due:
        return coverage
    return remove_span(coverage, properties.watermark - int(settings.lookback_seconds), None)


def add_completed_windows(coverage: Coverage, windows: Iterable[ListedWindow], lookback_seconds: int) -> Coverage:
    """Return the coverage after a batch. It counts if the run is killed before its end.

    Files can be committed late, or get timestamps of a slow clock, up to `lookback_seconds` after the list.
    """
    for completed in windows:
        window, end = completed.window, completed.listed_at - lookback_seconds
        if window.end is not None:
            end = min(end, window.end)
        if completed.is_consistent and (window.start is None or end > window.start):
            coverage = add_span(coverage, window.start, end)
    return coverage


def add_read_windows(
    coverage: Coverage, windows: Iterable[Window], unproven: Iterable[Window], *, target: int
) -> Coverage:
    """Return the coverage after a run: its windows up to the target, without those whose list was inconsistent."""
    for window in windows:
        coverage = add_span(coverage, window.start, target if window.end is None else min(window.end, target))
    for window in unproven:
        coverage = remove_span(coverage, window.start, window.end)
    return coverage


def advance(watermark: int | None, coverage: Coverage, *, may_move_back: bool) -> int | None:
    """Return the watermark that the coverage supports; None when the coverage has no beginning.

    It moves back only when `may_move_back`: this run found a list inconsistent that an earlier run relied on.
    """
    end = contiguous_end(coverage)
    if end is None or watermark is None or may_move_back:
        return end
    return max(watermark, end)
