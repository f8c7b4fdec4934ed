"""Every figure of the page, held against plain SQL."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from pipeline.output.formatting import format_bytes
from pipeline.query.dashboard import LedgerState, render_dashboard
from tests.lake.lake_builder import commit
from tests.pages.page_lakes import NOW, POPULATED_FILES, ParsedPage, asked, build_lake, load_data, rows_of
from tests.sync.sync_harness import synced

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.query.dashboard import Dashboard
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
    shown = [(row["Started (UTC)"], row["State"], row["Error"] or None) for row in rows_of(data, "runs")]
    assert [(datetime.fromisoformat(started or ""), *others) for started, *others in shown] == runs
    assert [state for _, state, _ in runs].count("failed") == 1
    assert [row["State"] for row in rows_of(data, "verifications")] == ["consistent"]
    ((uploads,),) = asked(populated_lake.folder, "SELECT count(*) FROM uploads")
    ((keys,),) = asked(populated_lake.folder, "SELECT count(*) FROM meta.schema_drift")
    assert 0 < len(rows_of(data, "drift")) <= keys
    deletions = rows_of(data, "deletions")
    assert sum(int(row["Files"] or 0) for row in deletions) == data.page["deleted_files"] == 7
    ((size, parts),) = asked(populated_lake.folder, "SELECT bytes, parts FROM meta._freshness")
    for words in (
        f"Schema drift {keys} keys, kept as sent in extra",
        f"{keys} keys unknown to the schema",
        f"Size {format_bytes(size)} {parts} parts in this snapshot",
        f"Files {POPULATED_FILES} {data.page['deleted_files']} files deleted in the service",
        f"Uploads {uploads:,} ",
        "1 of the last 5 ended runs did not finish",
        "At the last verification the lake is consistent with the service",
        "7 files are deleted in the service",
    ):
        assert words in text


def test_charts_show_what_the_catalog_has(populated_lake: PopulatedLake, figures: Dashboard) -> None:
    """Files, uploads, damage, open runs and the age of the data are those of plain SQL, and all of them are drawn."""
    folder, data = populated_lake.folder, figures

    def sum_of(key: str, column: str) -> float:
        return sum(float(row[column] or 0) for row in rows_of(data, key))

    ((files, uploads, open_runs, photos, damaged),) = asked(
        folder,
        "SELECT (SELECT count(*) FROM files), (SELECT count(*) FROM uploads),"
        " (SELECT count(*) FROM open_workflow_runs), sum(photos), sum(with_damage) FROM damage_by_month",
    )
    assert (sum_of("growth", "Files"), sum_of("growth", "Uploads")) == (files, uploads)
    assert (sum_of("workflows", "Runs"), sum_of("damage", "Photos"), sum_of("damage", "With damage")) == (
        open_runs, photos, damaged,
    )  # fmt: skip
    months = asked(folder, "SELECT month::DATE::VARCHAR, damage_ratio FROM damage_by_month ORDER BY month DESC")
    shown = [(row["Month"], row["Photos with damage (%)"]) for row in rows_of(data, "damage")]
    assert [month for month, _ in shown] == [month for month, _ in months]
    for (_, percent), (_, ratio) in zip(shown, months, strict=True):
        assert (percent is None) == (ratio is None)
        assert ratio is None or abs(float(percent or 0) - 100 * ratio) <= 0.051
    snapshots = asked(folder, "SELECT published_at::VARCHAR FROM meta.snapshots ORDER BY snapshot DESC")
    assert [row["Until (UTC)"] for row in rows_of(data, "age")][1:] == [at for (at,) in snapshots[:-1]]
    drawn = {key: [(plot.title, len(plot.marks)) for plot in shown.plots] for key, shown in data.panels.items()}
    assert drawn["growth"] == [(name, len(rows_of(data, "growth"))) for name in ("Files", "Uploads")]
    assert [title for title, _ in drawn["runs"]] == ["Seconds", "Calls"]
    assert all(len(drawn[key]) == 1 for key in ("damage", "workflows", "age"))
    text = _read_text(data)
    assert f"{open_runs:,} workflow runs are open" in text
    assert f"{files:,} files with {uploads:,} uploads" in text


def test_a_young_lake_counts_by_day(tmp_path: Path) -> None:
    """Files of less than two months are counted by day, and days without a file are 0."""
    at = NOW.replace(tzinfo=None)
    uploads = [{"file_id": 7, "id": n, "position": n, "created_at": at - timedelta(days=10 * n)} for n in range(3)]
    build_lake(tmp_path / "lake", {7: 3}, {"uploads": uploads})
    rows = [row for row in rows_of(load_data(tmp_path / "lake"), "growth") if row["Uploads"] != "0"]
    assert [row["Period"] for row in rows] == ["2026-11-21", "2026-11-11", "2026-11-01"]


async def test_rejects(tmp_path: Path) -> None:
    """Rejects count by reason, whatever the file."""
    lake = tmp_path / "lake"
    async with Emulator(15, seed=5) as emulator:
        emulator.set_faults(poison=tuple(emulator.world.pick_random(2)))
        await synced(emulator, lake, max_attempts=1)
    data = load_data(lake, datetime.now(UTC))
    (reason,) = rows_of(data, "rejects")
    assert (reason["Rejects"], data.page["rejects"]) == ("2", 2)
    assert "/files/(id): HTTP 500" in (reason["Reason"] or "")
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
    """The newest days have a line each; that there are more is said, and all of them are counted."""
    at = int(NOW.timestamp() * 1_000_000)
    with Lake(tmp_path / "lake", doing="the test") as lake:
        commit(lake, dict.fromkeys(range(20), 0))
        for day in range(15):
            commit(lake, {}, gone=[day] if day else [0, 16, 17], stamp=-day * 86_400_000_000)
        lake.publish("r1", at=at, complete=True, watermark=at)
    data = load_data(tmp_path / "lake")
    deletions = rows_of(data, "deletions")
    assert [row["Files"] for row in deletions] == ["3", *["1"] * 11]
    newest = date.fromisoformat(deletions[0]["Detected (UTC)"] or "")
    assert [row["Detected (UTC)"] for row in deletions] == [str(newest - timedelta(day)) for day in range(12)]
    assert "17 files are deleted in the service" in _read_text(data)
    assert "The first 12 rows of more." in _read_text(data)
