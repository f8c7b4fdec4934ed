"""Running real syncs against the emulator for these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb

from pipeline.lake.lake import Lake
from pipeline.progress import Silent
from pipeline.runs.sync import Range, Summary, sync
from pipeline.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.emulator import Emulator

SEED = 11


async def synced(emulator: Emulator, lake: Path, chosen: Range | None = None, **settings: Any) -> Summary:
    """Sync the emulator's world into `lake`, as one run of the command would."""
    made = Settings(base_url=emulator.base_url, lake=lake, **settings)
    with Lake(made.lake, doing="sync", anchor=made.anchor) as held:
        return await sync(held, made, emulator.token, chosen or Range(), Silent())


def opened(lake: Path) -> duckdb.DuckDBPyConnection:
    """The lake as an analyst opens it."""
    return duckdb.connect(str(lake / "catalog.duckdb"), read_only=True)
