"""Running real syncs against the emulator for these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb

from pipeline.lake.lake import Lake
from pipeline.progress import NullProgress
from pipeline.settings import Settings
from pipeline.sync.sync import SyncSummary, TimeRange, sync
from tests.constants import run_constants

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.emulator import Emulator

SEED = 11


async def synced(
    emulator: Emulator,
    lake: Path,
    chosen: TimeRange | None = None,
    *,
    accept_new_base_url: bool = False,
    **settings: Any,
) -> SyncSummary:
    """Sync the emulator's world into `lake`, as one run of the command would."""
    with run_constants(settings):
        made = Settings(base_url=emulator.base_url, lake=lake, **settings)
        with Lake(made.lake, doing="sync") as held:
            return await sync(
                held,
                made,
                emulator.token,
                chosen or TimeRange(),
                NullProgress(),
                accept_new_base_url=accept_new_base_url,
            )


def opened(lake: Path) -> duckdb.DuckDBPyConnection:
    """The lake as an analyst opens it."""
    return duckdb.connect(str(lake / "catalog.duckdb"), read_only=True)
