"""Every figure of the page, held against the service's own truth, read by another reader, and against plain SQL."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.formatting import format_bytes
from pipeline.lake.lake import Lake
from pipeline.pages.dashboard import LedgerState, render_dashboard
from tests.lake.lake_builder import commit
from tests.oracle import expected as expect_rows
from tests.pages.page_lakes import NOW, POPULATED_FILES, ParsedPage, asked, build_lake, details_of, load_data, rows_of
from tests.sync.sync_harness import synced

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.pages.dashboard import Dashboard
    from tests.pages.conftest import PopulatedLake

    Row = dict[str, Any]

DAYS, MONTHS, MAX_NAMES = 90, 24, 12
AGES = ((1, "under a day"), (7, "1 to 7 days"), (30, "7 to 30 days"), (90, "30 to 90 days"),
        (365, "90 days to a year"), (10**9, "over a year"))  # fmt: skip


@pytest.fixture(scope="module")
def figures(populated_lake: PopulatedLake) -> Dashboard:
    """What the page of the populated lake shows."""
    return load_data(populated_lake.folder, datetime.now(UTC))


@pytest.fixture(scope="module")
def truth(populated_lake: PopulatedLake) -> dict[str, list[Row]]:
    """Every row of every table, as the naive reader of the interface finds it."""
    return expect_rows(populated_lake.truth)


def test_days(figures: Dashboard, truth: dict[str, list[Row]]) -> None:
    """Totals are those of the service; each of the last ninety days shows what was registered on it, if anything."""
    page = figures.page
    assert (page["files"], page["uploads"]) == (POPULATED_FILES, len(truth["uploads"]))
    assert page["first_file"] == min(row["created_at"] for row in truth["files"])
    for name in ("files", "uploads"):
        days = [row for row in rows_of(figures, "activity") if row["noun"] == name]
        assert [row["day"] for row in days] == [days[0]["day"] + timedelta(place) for place in range(DAYS)]
        counts = Counter(row["created_at"].date() for row in truth[name])
        assert [row["value"] for row in days] == [counts[row["day"]] for row in days]
        assert sum(row["value"] for row in days) > 9
        shown = {row["Day (UTC)"]: row[name.capitalize()] for row in details_of(figures, "activity")}
        assert shown == {row["day"]: row["value"] for row in days}


def _read_text(data: Dashboard) -> str:
    """Return the text of the page with these values."""
    return ParsedPage(render_dashboard(data)).text


def _damage_of(data: Dashboard) -> dict[tuple[str, str], tuple[int, int]]:
    """Uploads with a flag and with damage, by type and month."""
    return {(row["Type"], row["Month"]): (row["Uploads"], row["With damage"]) for row in details_of(data, "damage")}


def test_damage_by_type_and_month(figures: Dashboard, truth: dict[str, list[Row]]) -> None:
    """Each type and month shows the uploads that say whether they show damage, and those that do; so do all kinds."""
    shown = _damage_of(figures)
    last = figures.page["last_day"]
    first = date(last.year - MONTHS // 12, last.month, 1) + timedelta(31)
    told: Counter[tuple[str, str]] = Counter()
    damaged: Counter[tuple[str, str]] = Counter()
    for row in truth["uploads"]:
        taken = (row["scan_date_time"] or row["created_at"]).date().replace(day=1)
        if taken >= first.replace(day=1) and row["has_damage"] is not None:
            told[row["upload_type"], f"{taken:%Y-%m}"] += 1
            damaged[row["upload_type"], f"{taken:%Y-%m}"] += row["has_damage"]
    assert shown == {key: (told[key], damaged[key]) for key in told}
    assert sum(damaged.values()) > 20
    counts = Counter(row["damage_type_desc"] for row in truth["uploads"] if row["has_damage"])
    kinds = rows_of(figures, "damage", 1)
    assert {row["Kind of damage"]: row["part"] for row in kinds} == dict(counts)
    assert f" of {counts.total()} damaged uploads" in kinds[0]["finding"]


def test_damage_counts_when_it_was_taken_and_told(tmp_path: Path) -> None:
    """An upload counts in the month it was taken, not registered, and only if it says whether it shows damage.

    A stamp far ahead or long ago neither stretches the axis nor counts on a wrong day. The axis of months has room for
    those in which nothing, or too little, was taken.
    """
    taken, registered = datetime(2026, 9, 30, 23), datetime(2026, 10, 1, 1)  # noqa: DTZ001 - UTC without saying so
    marks = (True, False, False, None)
    uploads = [
        {"file_id": 1, "id": key, "position": key, "upload_type": "snap", "has_damage": mark,
         "scan_date_time": None if key == 1 else taken, "created_at": registered}
        for key, mark in enumerate(marks)
    ]  # fmt: skip
    odd = [datetime(9999, 12, 31), datetime(2026, 11, 20), datetime(1, 1, 1)]  # noqa: DTZ001 - UTC without saying so
    uploads += [{"file_id": 1, "id": 10 + n, "position": n, "created_at": at} for n, at in enumerate(odd)]
    uploads += [
        {"file_id": 1, "id": 20 * month + n, "position": 0, "upload_type": "snap", "has_damage": n < month,
         "created_at": datetime(2026, month, 5)}  # noqa: DTZ001 - UTC without saying so
        for month in (1, 2, 11) for n in range(20)
    ]  # fmt: skip
    build_lake(tmp_path / "lake", {1: 7}, {"uploads": uploads})
    data = load_data(tmp_path / "lake")
    shown = {month: counts for (kind, month), counts in _damage_of(data).items() if kind == "snap"}
    assert list(shown) == ["2026-01", "2026-02", "2026-09", "2026-10", "2026-11"]
    assert list(shown.values()) == [(20, 1), (20, 2), (2, 1), (1, 0), (20, 11)]
    assert len(_damage_of(data)) == 6
    assert _damage_of(data)["(none)", "2026-11"] == (0, 0)
    assert "No damaged upload names its kind" in _read_text(data)
    days = rows_of(data, "activity")
    registered_on = {row["day"]: row["value"] for row in days if row["noun"] == "uploads" and row["value"]}
    assert registered_on == {date(2026, 11, 20): 1}
    assert days[-1]["day"] == NOW.date()
    page = render_dashboard(data)
    panel = page[page.index('id="damage-1-title"') : page.index("The rates as a table")]
    assert [round(float(x), 1) for x in re.findall(r'<rect x="([^"]+)%"', panel)] == [1.1, 10.2, 92.0]
    assert re.findall(r"<title>([^<]+)</title>", panel) == [
        "Jan 2026: 5.0 % (1 of 20)", "Feb 2026: 10.0 % (2 of 20)", "Nov 2026: 55.0 % (11 of 20)"
    ]  # fmt: skip


def _started(row: Row) -> datetime:
    at = row["started_on_device_at"] or row["submit_date_time"] or row["created_at"]
    assert isinstance(at, datetime)
    return at


def test_open_runs_by_age(populated_lake: PopulatedLake, truth: dict[str, list[Row]]) -> None:
    """Open workflow runs fall into the class of their age, and are those of the view open_workflow_runs."""
    now = datetime.now(UTC)
    data = load_data(populated_lake.folder, now)
    still = [row for row in truth["workflow_runs"] if row["completed_at"] is None and row["deleted_at"] is None]
    ages = [(now.replace(tzinfo=None) - _started(row)) / timedelta(days=1) for row in still]
    classes = Counter(next(name for bound, name in AGES if age < bound) for age in ages)
    assert {row["Age"]: row["part"] for row in rows_of(data, "workflows")} == {name: classes[name] for _, name in AGES}
    assert asked(populated_lake.folder, "SELECT count(*) FROM open_workflow_runs") == [(classes.total(),)]
    oldest = asked(populated_lake.folder, "SELECT started_at FROM open_workflow_runs ORDER BY age_days DESC LIMIT 12")
    assert [(row["Started (UTC)"],) for row in details_of(data, "workflows")] == oldest


def _says(value: str | None) -> bool:
    return value is not None and value.strip(" ") != ""


def test_fields(figures: Dashboard, truth: dict[str, list[Row]]) -> None:
    """A field counts once a file, however often it was scanned, and only where it holds a value."""
    holders: dict[str, set[int]] = {}
    for row in truth["fields"]:
        files = holders.setdefault(row["name"], set())
        if _says(row["value"]):
            files.add(row["file_id"])
    shown = rows_of(figures, "completeness")
    counts = sorted(((-len(files), name) for name, files in holders.items()))[:MAX_NAMES]
    assert [(-row["part"], row["Field"]) for row in shown] == counts
    assert {row["whole"] for row in shown} == {POPULATED_FILES}
    assert shown[0]["others"] == f"and {len(holders) - MAX_NAMES} other fields"


def test_questions(figures: Dashboard, truth: dict[str, list[Row]]) -> None:
    """Questions show how often they are answered."""
    by_label = Counter(row["label"] for row in truth["form_answers"])
    answered = Counter(row["label"] for row in truth["form_answers"] if _says(row["value"]))
    questions = rows_of(figures, "completeness", 1)
    counts = {
        (label if len(label) <= 90 else f"{label[:89]}…", answered[label], count) for label, count in by_label.items()
    }
    assert {(row["Question"], row["part"], row["whole"]) for row in questions} <= counts
    assert len(questions) == min(MAX_NAMES, len(by_label))


def test_what_the_catalog_says_of_itself(populated_lake: PopulatedLake, figures: Dashboard) -> None:
    """Runs, verifies, drift, deletions and size are those of the catalog, and reach the page."""
    data, text = figures, _read_text(figures)
    runs = asked(populated_lake.folder, "SELECT run_id, state, error FROM meta.runs ORDER BY started_at")
    shown = [(row["run_id"], row["State"], row["Error"] or None) for row in reversed(details_of(data, "runs"))]
    assert shown == runs
    assert [state for _, state, _ in runs].count("failed") == 1
    assert [row["Result"] for row in rows_of(data, "verifications")] == ["consistent"]
    tiles = {tile["name"]: (tile["number"], tile["more"]) for tile in data.tiles}
    ((keys,),) = asked(populated_lake.folder, "SELECT count(*) FROM meta.schema_drift")
    assert tiles["Schema drift"][0] == str(keys)
    assert rows_of(data, "drift")[0]["finding"].startswith(f"{keys} keys ")
    deletions = rows_of(data, "deletions")
    assert sum(row["value"] for row in deletions) == data.page["deleted_files"] == 7
    assert deletions[0]["unit"] == "detected deletions, by day (UTC)"
    ((size, parts),) = asked(populated_lake.folder, "SELECT sum(bytes), count(*) FROM physical.parts")
    assert tiles["Size"] == (format_bytes(size), f"{parts} parts in this snapshot")
    for words in (
        f"Files {POPULATED_FILES} {data.page['deleted_files']} files deleted in the service",
        f"Uploads {data.page['uploads']:,} ",
        f"{sum(row['part'] for row in rows_of(data, 'workflows')):,} workflow runs are open",
        "1 of the last 5 runs did not finish",
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
    assert "2 of the last 4 runs did not finish, the latest 2h before this page was created" in text
    assert "The last run" not in text
    assert "The last run (sync) did not finish: error 2." in text_of(made_up[:3])
    assert "The one run did not fail" in text_of(made_up[1:2])


def test_the_most_frequent_and_the_others(tmp_path: Path) -> None:
    """Beyond the first names the rest is one line with its sum, and nothing is lost from the total.

    Deletions further apart than the days that are shown come by month.
    """
    kinds, at = [f"type {place:02}" for place in range(40)], int(NOW.timestamp() * 1_000_000)
    uploads = [
        {"file_id": 0, "id": 100 * place + each, "position": 0, "upload_type": kind, "has_damage": each % 2 == 0,
         "damage_type_desc": kind, "created_at": NOW.replace(tzinfo=None)}
        for place, kind in enumerate(kinds) for each in range(40 - place)
    ]  # fmt: skip
    with Lake(tmp_path / "lake", doing="the test") as lake:
        commit(lake, dict.fromkeys(range(5), 0), {"uploads": uploads})
        commit(lake, {}, gone=[1], stamp=-400 * 86_400_000_000)
        commit(lake, {}, gone=[2, 3])
        lake.publish("r1", at=at, complete=True, watermark=at)
    data = load_data(tmp_path / "lake")
    damage, deletions, text = _damage_of(data), rows_of(data, "deletions"), _read_text(data)
    assert sum(with_flag for with_flag, _ in damage.values()) == len(uploads) == 820
    assert [kind for kind, _ in damage] == [*kinds[:5], "35 other types"]
    assert "35 other types" in text
    rest = sum(-(-(40 - place) // 2) for place in range(12, 40))
    assert f"28 other kinds: {rest:,}" in text
    assert (deletions[0]["unit"], len(deletions)) == ("detected deletions, by month (UTC)", MONTHS)
    months = {row["since"]: row["value"] for row in deletions if row["value"]}
    assert months == {date(2025, 10, 1): 1, date(2026, 11, 1): 2}
    assert "most were detected in Nov 2026 (2)" in text


def test_headlines_name_what_there_is(tmp_path: Path) -> None:
    """A kind without a name is no headline, nor is the rarest of questions that are always answered.

    A workflow run that was deleted is not open.
    """
    at = NOW.replace(tzinfo=None) - timedelta(days=40)
    uploads = [
        {"file_id": 1, "id": key, "position": key, "upload_type": "snap", "has_damage": True, "damage_type_desc": kind,
         "created_at": at}
        for key, kind in enumerate((None, None, " ", "Dent"))
    ]  # fmt: skip
    answers = [{"file_id": 1, "form_submit_id": "a", "form_id": 1, "position": 0, "label": "Seal?", "value": "yes"}]
    forms = [{"file_id": 1, "id": "a", "form_id": 1, "position": 0}]
    runs = [
        {"file_id": 1, "id": key, "position": key, "workflow_id": 3, "created_at": at, "deleted_at": deleted_at}
        for key, deleted_at in enumerate((None, at))
    ]
    rows: dict[str, list[Row]] = {
        "uploads": uploads,
        "form_submits": forms,
        "form_answers": answers,
        "workflow_runs": runs,
    }
    build_lake(tmp_path / "lake", {1: 1}, rows)
    text = _read_text(load_data(tmp_path / "lake"))
    assert "“Dent” is the most frequent kind: 25.0 % of 4 damaged uploads" in text
    assert "Every question is always answered" in text
    assert "1 workflow run is open" in text
    assert "100 % of the uploads of these months show damage" in text
