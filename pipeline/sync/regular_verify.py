"""The regular verify: it follows a sync every `verify_every_days`, because a sync never sees a deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from pipeline.errors import TimeLimitReachedError
from pipeline.sync.verify import VerifyMode, VerifyResult, verify
from schemas.timestamps import DAY, now_us

if TYPE_CHECKING:
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.progress import Progress
    from pipeline.settings import Settings
    from pipeline.sync.sync import SyncSummary


class VerifyStopped(Struct, frozen=True):
    """A regular verify that ended at `max_duration_seconds`: a planned stop, without a result."""

    error: str
    state: str = "stopped"


def is_due(ledger: LedgerQueries, settings: Settings) -> bool:
    """Return whether the last verify, or the first sync, was more than `verify_every_days` ago."""
    last = ledger.properties.verified_or_synced_at
    days = settings.verify_every_days
    return bool(days) and last is not None and abs(now_us() - last) >= days * DAY  # a wrong clock may have set it


async def verify_if_due(
    lake: Lake, settings: Settings, token: str, summary: SyncSummary, progress: Progress
) -> VerifyResult | VerifyStopped | None:
    """Verify after a sync; return None if that is not due, or if the sync was stopped.

    At `max_duration_seconds` the verify stops and stays due for the next sync. Raises a `ScanlakeError`.
    """
    if summary.state != "done" or not is_due(lake.ledger, settings):
        return None
    try:
        return await verify(lake, settings, token, VerifyMode(), progress)
    except TimeLimitReachedError as limit:
        return VerifyStopped(limit.message)
