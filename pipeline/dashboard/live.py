"""The ledger's runs on the page: they are ahead of the catalog that the rest of the page shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.dashboard.models import DashboardData, Run
from pipeline.dashboard.queries import RUNS
from schemas.timestamps import to_datetime

if TYPE_CHECKING:
    from pipeline.lake.live_state import LiveState
    from pipeline.lake.models import RunRecord


def add_live_state(data: DashboardData, state: LiveState, failing: str | None) -> DashboardData:
    """Return the data with the runs and the pause of the ledger. `failing` has the reason of failed runs."""
    pause = state.properties.rollback_pause
    return replace(
        data,
        runs=tuple(map(_to_run, reversed(state.runs[:RUNS]))),
        failing=failing,
        paused_at=None if pause is None else pause["to"],
    )


def version_of(state: LiveState | None) -> str:
    """Return a text that changes when the page must show other runs or another pause."""
    if state is None:
        return ""
    newest = state.runs[0] if state.runs else None
    is_paused = state.properties.rollback_pause is not None
    return f"-{newest and newest.run_id}-{newest and newest.state}-{is_paused}"


def _to_run(run: RunRecord) -> Run:
    return Run(
        run.run_id,
        run.command,
        run.state,
        to_datetime(run.started_at).replace(tzinfo=None),
        run.seconds,
        run.files_stored,
        run.requests_list + run.requests_detail,
        run.rejects,
        run.error,
    )
