"""`sync --limit`: the newest files alone, as a trial, and the rest later."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.emulator.options import Quirks, WorldPlan
from pipeline.sync.sync import TimeRange
from schemas.timestamps import SECOND, to_datetime
from tests.processes import ran
from tests.sync.sync_harness import check_equal, opened, synced

if TYPE_CHECKING:
    from pathlib import Path

FILES: Final = 600
LIMIT: Final = 40
WORLDS: Final[dict[str, tuple[dict[str, Any], Quirks, int]]] = {  # the world, the service, how many more are fetched
    "usual": ({}, Quirks(), 5),
    "without counts": ({}, Quirks(paging="none"), 5),
    "small pages": ({}, Quirks(page_cap=7), 5),
    "another order in each page": ({}, Quirks(order="shuffled", page_cap=7), 3 * LIMIT),
    "oldest first": ({}, Quirks(order="updated-asc", start_bound="exclusive"), 5),
    "most within days": ({"spread": "burst"}, Quirks(), 5),
    "60 in a second": ({"spread": "same-second"}, Quirks(), 60),
    "no time in the list": ({}, Quirks(updated_in_list="absent"), 5),
    "some without any time": ({}, Quirks(null_times=0.1), 5),
    "a clock ahead": ({}, Quirks(date_skew_seconds=7200), 5),
}


@pytest.mark.parametrize("name", WORLDS)
async def test_the_newest_files_come_first_and_the_rest_later(name: str, lake: Path) -> None:
    """Whatever the list looks like, N files or a second's more are fetched, none older than another that is left out.

    The lake has no watermark until a whole sync, which fetches each other file once.
    """
    world, quirks, more = WORLDS[name]
    async with Emulator(plan=WorldPlan(files=FILES, seed=5, **world), quirks=quirks) as emulator:
        trial = await synced(emulator, lake, TimeRange(newest=LIMIT))
        with opened(lake) as db:
            stored = {row[0] for row in db.execute("SELECT file_id FROM files").fetchall()}
        timed = {file["key"]: file["updated"] // SECOND for file in emulator.truth() if file["updated"] is not None}
        first = sorted(timed.values())[-LIMIT]
        newest, newest_by_a_second = ({key for key in timed if timed[key] >= second} for second in (first, first - 1))
        if not quirks.null_times:
            assert newest <= stored
            assert quirks.order == "shuffled" or stored <= newest_by_a_second
        assert LIMIT <= len(stored) <= LIMIT + more
        assert trial.watermark is None
        assert trial.details_fetched == trial.requests["detail"] == len(stored)
        assert trial.requests["list"] <= (600 if quirks.page_cap else 60)
        again = await synced(emulator, lake, TimeRange(newest=LIMIT))
        whole = await synced(emulator, lake)
        assert whole.watermark is not None
        if quirks.updated_in_list == "shown":  # else nothing shows that a file is as before
            assert again.details_fetched <= (5 if quirks.order == "shuffled" else 0)
            assert again.details_fetched + whole.details_fetched == FILES - len(stored)
        check_equal(lake, emulator)


@pytest.mark.usefixtures("published")
async def test_what_is_left_out_is_named(lake: Path) -> None:
    """Summary and status say that the lake is not complete, and an earlier watermark waits for the files between.

    A limit of as many files as there are, or a sync without one, leaves nothing out.
    """
    async with Emulator(60, seed=5) as emulator:
        middle = sorted(file["updated"] for file in emulator.truth())[30]

        async def run_sync(*arguments: str) -> str:
            code, out, err = await ran(emulator, lake, "sync", *arguments)
            assert code == 0, err
            return out

        async def read_status() -> tuple[Any, str]:
            status = json.loads((await ran(emulator, lake, "status", "--json"))[1])
            return status["freshness"]["watermark"], (await ran(emulator, lake, "status"))[1]

        trial = await run_sync("--limit", "20")
        assert "watermark  none yet: the lake has only part of the files" in trial
        assert "next       not complete: `scanlake sync` without --limit" in trial
        watermark, status = await read_status()
        assert (watermark, "Not complete, no watermark yet" in status) == (None, True)
        assert "is incomplete" in (await ran(emulator, lake, "query", "FROM files"))[2]
        due = json.loads(await run_sync("--limit", "20", "--set", "verify_every_days=0.0000001", "--json"))
        assert (due["verify"], due["details_fetched"]) == (None, 0)  # it would fetch all files
        assert "Not complete" not in await run_sync("--limit", "61")
        watermark, status = await read_status()
        assert (watermark is None, "Not complete" in status) == (False, False)
        check_equal(lake, emulator)

        shutil.rmtree(lake)
        await run_sync("--until", f"{to_datetime(middle):%Y-%m-%dT%H:%M:%SZ}")
        before, status = await read_status()
        assert (before is None, "Not complete" in status) == (False, False)
        assert "next       not complete" in await run_sync("--limit", "3")
        watermark, status = await read_status()
        assert (watermark, "Not complete: the lake has only part" in status) == (before, True)
        await run_sync()
        assert "Not complete" not in (await read_status())[1]
        check_equal(lake, emulator)
