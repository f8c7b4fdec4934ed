"""The target watermark by the clocks, and the way back from a watermark that a wrong clock has moved. In seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.client.clock import MAX_AHEAD_SECONDS
from pipeline.crawl.models import SETTLE_SECONDS
from pipeline.crawl.windows import remove_span
from pipeline.output.logs import log
from pipeline.sync.watermark import find_possible_watermark, fix_target
from schemas.timestamps import SECOND, format_instant, now_us

if TYPE_CHECKING:
    from pipeline.client.clock import ServiceClock
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.settings.settings import Settings


def target_by_clock(clock: ServiceClock, settings: Settings, *, at: float) -> int:
    """Return the target watermark of a run that was fixed at a monotonic time, by all answers so far; in seconds."""
    now, lookback = clock.at(at), int(settings.lookback_seconds)
    return fix_target(None if now is None else now // SECOND, now_us() // SECOND, lookback_seconds=lookback)


def repair_watermark(ledger: Ledger) -> None:
    """Go back to a watermark that can be true if a wrong clock has put it, or any coverage, into the future."""
    watermark, coverage, now = ledger.properties.watermark, ledger.coverage(), now_us() // SECOND
    is_ahead = any(end is not None and end > now + MAX_AHEAD_SECONDS for _, end in coverage)
    if watermark is None:
        if is_ahead:
            ledger.store_coverage((), lookback_due=False)
        return
    run = ledger.first_run_with_watermark(watermark * SECOND)
    repaired = find_possible_watermark(watermark, now if run is None else run.started_at // SECOND)
    if repaired is not None or is_ahead:
        _move_back(ledger, watermark, watermark if repaired is None else repaired)


def correct_watermark(ledger: Ledger, target: int) -> None:
    """Go back to the target of a run if the watermark is after the service's time: an earlier `Date` was wrong."""
    watermark = ledger.properties.watermark
    if watermark is not None and watermark > target + SETTLE_SECONDS:
        _move_back(ledger, watermark, target)


def _move_back(ledger: Ledger, watermark: int, repaired: int) -> None:
    if repaired != watermark:
        log.warning(
            "watermark.repaired",
            watermark=format_instant(watermark * SECOND),
            repaired=format_instant(repaired * SECOND),
            hint="A wrong clock had put it into the future; what was updated since is read again.",
        )
    coverage = remove_span(ledger.coverage(), repaired, None)
    ledger.store_coverage(coverage, watermark=repaired, lookback_due=True)
