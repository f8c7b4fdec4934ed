"""The present state of a lake, from its ledger: it is ahead of the published catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from pipeline.errors import ScanlakeError
from pipeline.lake.layout import LakeLayout, has_writer_since
from pipeline.lake.ledger_format import LedgerIdentity, identify_ledger
from pipeline.lake.reader import open_ledger_readonly

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.lake.models import LakeProperties, RunProgress, RunRecord

_KILLED: Final = "The process ended without recording why."
_FETCHES: Final = frozenset({"sync", "verify"})
_GOOD: Final = frozenset({"done", "stopped"})
_MIN_RUNS: Final = 50  # to count consecutive failures


class LiveState(Struct, frozen=True):
    """State of a lake. `runs` are the latest, newest first; one without a process is interrupted.

    `progress` is that of the newest run while it is going on. `files` are committed, published or not.
    """

    properties: LakeProperties
    runs: tuple[RunRecord, ...]
    progress: RunProgress | None
    files: int
    was_verified: bool
    has_snapshots: bool

    @property
    def running(self) -> RunRecord | None:
        """The run that is going on."""
        return self.runs[0] if self.runs and self.runs[0].state == "running" else None

    @property
    def failures(self) -> tuple[RunRecord, ...]:
        """Runs that failed since the last success, newest first. Interrupted ones do not count."""
        last_success = self.last_success_at
        return tuple(run for run in self.runs if run.state == "failed" and run.started_at > last_success)

    @property
    def last_success_at(self) -> int:
        """Start of the last run that fetched and ended well, microseconds; 0 without one."""
        return max((run.started_at for run in self.runs if run.command in _FETCHES and run.state in _GOOD), default=0)


def read_live_state(lake: Path, *, runs: int) -> LiveState | None:
    """Return the state of the lake with at least its latest `runs` runs; None if the ledger cannot be read."""
    layout = LakeLayout(lake.absolute())
    try:
        if identify_ledger(layout.ledger) is not LedgerIdentity.LEDGER:
            return None  # a database of others: SQLite would write an index for its log
        with open_ledger_readonly(layout) as ledger:
            records = ledger.recent_runs(max(runs, _MIN_RUNS))
            properties, files = ledger.properties, ledger.count_files()
            was_verified, has_snapshots = ledger.last_verification() is not None, ledger.last_snapshot() is not None
        newest_runs = tuple(_mark_interrupted(layout, index, run) for index, run in enumerate(records))
    except ScanlakeError:
        return None  # `scanlake check` shows why
    progress, newest = properties.run_progress, next(iter(newest_runs), None)
    if newest is None or newest.state != "running" or progress is None or progress["run_id"] != newest.run_id:
        progress = None
    return LiveState(properties, newest_runs, progress, files, was_verified, has_snapshots)


def _mark_interrupted(layout: LakeLayout, index: int, run: RunRecord) -> RunRecord:
    """Return a run without a process as interrupted: it was killed, or a full disk let it record no end."""
    if run.state != "running" or (index == 0 and has_writer_since(layout, run.started_at)):
        return run
    return replace(run, state="interrupted", error=run.error or _KILLED)
