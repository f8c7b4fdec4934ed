"""Runs of a lake that failed since the last success, also those that failed before the ledger could record them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from pipeline.formatting import pluralize
from pipeline.logs import to_one_line
from pipeline.monitoring.run_history import RunStatsFile
from schemas.timestamps import from_datetime

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.lake.live_state import LiveState


class Failures(Struct, frozen=True):
    """Consecutive failed runs, and the reason of the last one."""

    count: int
    reason: str

    def __str__(self) -> str:
        """One sentence."""
        runs = "the last run" if self.count == 1 else f"the last {pluralize(self.count, 'run')}"
        return f"{runs} failed: {self.reason}"


def find_failures(lake: Path, state: LiveState | None) -> Failures | None:
    """Return the failures since the last run that ended well; None without one. `state` is None without a lake."""
    recorded, last_success_at = ((), 0) if state is None else (state.failures, state.last_success_at)
    stats = RunStatsFile(lake).last
    ended_at = 0 if stats.last_ended is None else from_datetime(stats.last_ended)
    is_counted = stats.failures > 0 and ended_at > last_success_at
    count = max(len(recorded), stats.failures if is_counted else 0)
    if not count:
        return None
    reason = stats.reason if is_counted else recorded[0].error or "unknown"
    return Failures(count, to_one_line(reason))
