"""The target watermark of a run by the clocks of service and machine, and the repair of one that no run can reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.client.clock import MAX_AHEAD_SECONDS
from pipeline.crawl.models import SETTLE_SECONDS
from pipeline.crawl.windows import remove_span
from pipeline.logs import get_logger
from pipeline.sync.watermark import SETTLE_WITHOUT_DATE_SECONDS, fix_target, repair_target
from schemas.timestamps import SECOND, now_us, to_datetime

if TYPE_CHECKING:
    from pipeline.client.clock import ServiceClock
    from pipeline.lake.ledger import Ledger
    from pipeline.settings import Settings

_log = get_logger()

_MAX_QUIET_SKEW_SECONDS: Final = 60


def warn_of_clock(clock: ServiceClock) -> None:
    """Warn of a service without a clock, and of one whose clock differs from this machine's."""
    ahead = clock.seconds_ahead
    if ahead is None:
        _log.warning("clock.missing", settle_seconds=SETTLE_WITHOUT_DATE_SECONDS, hint="The service sends no Date.")
    elif abs(ahead) > _MAX_QUIET_SKEW_SECONDS:
        _log.warning(
            "clock.skewed",
            service_ahead_seconds=round(ahead),
            hint="Synchronize this machine's clock by NTP; if it is right, the service's is wrong.",
        )


def target_by_clock(clock: ServiceClock, settings: Settings, *, at: float) -> int:
    """Return the target watermark of a run that was fixed at a monotonic time, by all answers so far; in seconds."""
    now = clock.at(at)
    return fix_target(
        None if now is None else now // SECOND,
        now_us() // SECOND,
        settle_seconds=SETTLE_SECONDS,
        lookback_seconds=int(settings.lookback_seconds),
    )


def repair_watermark(ledger: Ledger) -> None:
    """Go back to a watermark that can be true if a wrong clock has put it, or any coverage, into the future."""
    watermark, coverage, now = ledger.properties.watermark, ledger.coverage(), now_us() // SECOND
    is_ahead = any(end is not None and end > now + MAX_AHEAD_SECONDS for _, end in coverage)
    if watermark is None:
        if is_ahead:
            ledger.begin_lookback(())
        return
    run = ledger.first_run_with_watermark(watermark * SECOND)
    repaired = repair_target(watermark, now if run is None else run.started_at // SECOND)
    if repaired is not None or is_ahead:
        _move_back(ledger, watermark, watermark if repaired is None else repaired)


def correct_watermark(ledger: Ledger, target: int) -> None:
    """Go back to the target of a run if the watermark is after the service's time: an earlier `Date` was wrong."""
    watermark = ledger.properties.watermark
    if watermark is not None and watermark > target + SETTLE_SECONDS:
        _move_back(ledger, watermark, target)


def _move_back(ledger: Ledger, watermark: int, repaired: int) -> None:
    if repaired != watermark:
        _log.warning(
            "watermark.repaired",
            watermark=_to_text(watermark),
            repaired=_to_text(repaired),
            hint="A wrong clock had put it into the future; what was updated since is read again.",
        )
    ledger.move_watermark_back(repaired, remove_span(ledger.coverage(), repaired, None))


def _to_text(second: int) -> str:
    return f"{to_datetime(second * SECOND):%Y-%m-%dT%H:%M:%SZ}"
