"""A lake that lives once, for all tests that copy it: the lake and its service after each of its days."""

from __future__ import annotations

import asyncio
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import duckdb

from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from schemas.tables import TABLES
from tests.lake.operations import fold_all
from tests.lake_copies import copy_lake
from tests.sync.sync_harness import SEED, synced, verified

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

FILES: Final = 20
_SETTLE_SECONDS: Final = 5.0  # a version that is fetched in the second of its update is fetched again
_VIEWS: Final = ("workflows", "workflow_steps", "fields_wide", "form_answers_wide", "file_events")
_FEW: Final[dict[str, Any]] = {"keep_snapshots": 3, "retention_hours": 0}


class Day(NamedTuple):
    """A lake, only to be copied, and the world that its service had then."""

    lake: Path
    world: bytes

    @property
    def truth(self) -> list[dict[str, Any]]:
        """The files of the service."""
        return list(self._make_service().truth())

    @asynccontextmanager
    async def live_on(self, lake: Path) -> AsyncIterator[Emulator]:
        """Copy the lake to the new folder `lake`, and run its service."""
        async with self._make_service() as emulator:
            copy_lake(self.lake, lake, emulator.base_url)
            yield emulator

    def _make_service(self) -> Emulator:
        emulator = Emulator(FILES, seed=SEED)
        vars(emulator.world).update(pickle.loads(self.world))  # noqa: S301 - bytes of this run
        return emulator


class History(NamedTuple):
    """Days of a lake: of several commits and snapshots, one more, and after deletions, a compaction and a return."""

    yesterday: Day
    today: Day
    old: Day


def make_history(folder: Path) -> History:
    """Let a lake live in the folder, in an event loop of its own."""
    with ThreadPoolExecutor(1) as pool:
        return History(*pool.submit(asyncio.run, _live(folder)).result())


async def _live(folder: Path) -> list[Day]:
    lake, days = folder / "lake", list[Day]()

    async with Emulator(FILES, seed=SEED) as emulator:

        def end_day() -> None:
            copy = copy_lake(lake, folder / f"day {len(days)}")
            days.append(Day(copy, pickle.dumps(vars(emulator.world))))

        await synced(emulator, lake, commit_every_files=15, **_FEW)
        for _ in range(2):
            emulator.world.update(emulator.world.pick_random(8))
            emulator.world.create(2)
            emulator.world.clock.advance(_SETTLE_SECONDS)
            await synced(emulator, lake, **_FEW)
            end_day()
        gone = emulator.world.pick_random(3)
        emulator.world.delete(gone)
        await verified(emulator, lake, **_FEW)
        with Lake(lake, doing="compaction") as held:
            fold_all(held)
        emulator.world.restore(gone[:1], stamp=True)
        emulator.world.update(emulator.world.pick_random(4))
        emulator.world.clock.advance(_SETTLE_SECONDS)
        await synced(emulator, lake, **_FEW)
        emulator.world.delete(emulator.world.pick_random(1))
        await verified(emulator, lake, **_FEW)
        end_day()
    shutil.rmtree(lake)
    return days


def differing_rows(one: Path, other: Path) -> list[Any]:
    """Return the rows that only one of two lakes shows, of all tables and of views that the ledger shapes."""
    found = []
    with duckdb.connect() as db:
        for name, lake in (("one", one), ("other", other)):
            db.execute(f"ATTACH '{lake}/catalog.duckdb' AS {name} (READ_ONLY)")
        for table in [*(table.qualified_name for table in TABLES), *(f"main.{view}" for view in _VIEWS)]:
            for here, there in (("one", "other"), ("other", "one")):
                rows = db.execute(f"FROM {here}.{table} EXCEPT ALL FROM {there}.{table}").fetchall()
                found += [(table, row) for row in rows]
    return found
