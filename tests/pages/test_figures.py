"""Every figure of the page, held against plain SQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from pipeline.pages.dashboard import LedgerState, render_dashboard
from tests.lake.lake_builder import commit
from tests.pages.page_lakes import NOW, POPULATED_FILES, ParsedPage, asked, load_data, rows_of
from tests.sync.sync_harness import synced

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.pages.dashboard import Dashboard
    from tests.pages.conftest import PopulatedLake


@pytest.fixture(scope="module")
def figures(populated_lake: PopulatedLake) -> Dashboard:
    """What the page of the populated lake shows."""
    return load_data(populated_lake.folder, datetime.now(UTC))


def _read_text(data: Dashboard) -> str:
    """Return the text of the page with these values."""
    return ParsedPage(render_dashboard(data)).text


def test_what_the_catalog_says_of_itself(populated_lake: PopulatedLake, figures: Dashboard) -> None:
    """Runs, verifies, drift, deletions and size are those of the catalog, and reach the page."""
    data, text = figures, _read_text(figures)
    runs = asked(populated_lake.folder, "SELECT started_at, state, error FROM meta.runs ORDER BY 1 DESC")
    assert [(row["Started (UTC)"], row["State"], row["Error"] or None) for row in rows_of(data, "runs")] == runs
    assert [state for _, state, _ in runs].count("failed") == 1
    assert [row["Result"] for row in rows_of(data, "verifications")] == ["consistent"]
    ((uploads,),) = asked(populated_lake.folder, "SELECT count(*) FROM uploads")
    tiles = {tile["name"]: (tile["number"], tile["more"]) for tile in data.tiles}
    ((keys,),) = asked(populated_lake.folder, "SELECT count(*) FROM meta.schema_drift")
    assert tiles["Schema drift"][0] == str(keys)
    assert rows_of(data, "drift")[0]["finding"].startswith(f"{keys} keys ")
    deletions = rows_of(data, "deletions")
    assert sum(row["Files"] for row in deletions) == data.page["deleted_files"] == 7
    ((size, parts),) = asked(populated_lake.folder, "SELECT sum(bytes), count(*) FROM physical.parts")
    assert tiles["Size"] == (f"{size // 100 / 10:.1f} kB", f"{parts} parts in this snapshot")
    for words in (
        f"Files {POPULATED_FILES} {data.page['deleted_files']} files deleted in the service",
        f"Uploads {uploads:,} ",
        "1 of the last 5 ended runs did not finish",
        "At the last verification the lake is consistent with the service",
        "7 files are deleted in the service",
    ):
        assert words in text


async def test_rejects(tmp_path: Path) -> None:
    """Rejects count by reason, whatever the file."""
    lake = tmp_path / "lake"
    async with Emulator(15, seed=5) as emulator:
        emulator.set_faults(poison=tuple(emulator.world.pick_random(2)))
        await synced(emulator, lake, max_attempts=1)
    data = load_data(lake, datetime.now(UTC))
    (reason,) = rows_of(data, "rejects")
    assert (reason["Rejects"], reason["others"], data.page["rejects"]) == (2, None, 2)
    assert "/files/(id): HTTP 500" in reason["Reason"]
    assert "2 files or documents could not be stored" in _read_text(data)


def test_runs_that_did_not_finish(empty_lake: Path) -> None:
    """All runs that failed or were interrupted count; the latest of them is told, and the last run if it is one."""
    hours = [timedelta(hours=each) for each in (9, 5, 2, 1)]
    states = ("failed", "done", "interrupted", "done")
    made_up = [
        (f"r{place}", "sync", state, (NOW - each).replace(tzinfo=None), 9.0, 1, 1, 0, f"error {place}")
        for place, (each, state) in enumerate(zip(hours, states, strict=True))
    ]

    def text_of(runs: list[tuple[Any, ...]]) -> str:
        return _read_text(load_data(empty_lake, ledger=LedgerState(runs=runs)))

    text = text_of(made_up)
    assert "2 of the last 4 ended runs did not finish, the latest of 2026-11-21 05:00:00 UTC" in text
    assert "The last ended run" not in text
    running = ("r9", "sync", "running", NOW.replace(tzinfo=None), None, 1, 1, 0, None)
    for more in ([], [running]):
        assert "The last ended run (sync) did not finish: error 2." in text_of([*made_up[:3], *more])
        assert "The one ended run did not fail" in text_of([made_up[1], *more])
        assert "its last ended run and verification succeeded" in text_of([made_up[1], *more])
    assert "Last run running sync" in text_of([*made_up, running])
    assert "No run has ended yet" in text_of([running])


def test_deletions_of_many_days(tmp_path: Path) -> None:
    """The newest days have a line each; the others are one line with their sum."""
    at = int(NOW.timestamp() * 1_000_000)
    with Lake(tmp_path / "lake", doing="the test") as lake:
        commit(lake, dict.fromkeys(range(20), 0))
        for day in range(15):
            commit(lake, {}, gone=[day] if day else [0, 16, 17], stamp=-day * 86_400_000_000)
        lake.publish("r1", at=at, complete=True, watermark=at)
    data = load_data(tmp_path / "lake")
    deletions = rows_of(data, "deletions")
    assert [row["Files"] for row in deletions] == [3, *[1] * 11]
    newest = deletions[0]["Detected (UTC)"]
    assert [row["Detected (UTC)"] for row in deletions] == [newest - timedelta(day) for day in range(12)]
    assert "17 files are deleted in the service" in _read_text(data)
    assert "and 3 earlier days: 3" in _read_text(data)
