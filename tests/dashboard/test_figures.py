"""Every figure of the page, held against the service's own truth, read by another reader, and against plain SQL."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.dashboard.page import render_page
from pipeline.dashboard.queries import AGE_BUCKETS, DAYS, MAX_NAMES, MONTHS
from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from tests.dashboard.dashboard_lakes import NOW, ParsedPage, asked, build_lake, load_data, page_of
from tests.lake.lake_builder import commit
from tests.oracle import expected
from tests.reports.report_harness import run_report
from tests.sync.sync_harness import synced

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dashboard.conftest import PopulatedLake

    Row = dict[str, Any]


@pytest.fixture(scope="session")
def truth(populated_lake: PopulatedLake) -> dict[str, list[Row]]:
    """Every row of every table, as the naive reader of the interface finds it."""
    return expected(populated_lake.truth)


def _now() -> datetime:
    return datetime.now(UTC)


def test_totals(populated_lake: PopulatedLake, truth: dict[str, list[Row]]) -> None:
    """Files and uploads are those of the service."""
    totals = load_data(populated_lake.folder).totals
    assert (totals.files, totals.uploads) == (302, len(truth["uploads"]))
    assert totals.first_file == min(row["created_at"] for row in truth["files"])


def test_days(populated_lake: PopulatedLake, truth: dict[str, list[Row]]) -> None:
    """Each of the last ninety days shows what was registered on it, days without anything included."""
    days = load_data(populated_lake.folder).days
    assert [each.day for each in days] == [days[0].day + timedelta(place) for place in range(DAYS)]
    for name in ("files", "uploads"):
        counts = Counter(row["created_at"].date() for row in truth[name])
        assert [getattr(each, name) for each in days] == [counts[each.day] for each in days]
    assert sum(each.files for each in days) > 9


def test_damage_by_type_and_month(populated_lake: PopulatedLake, truth: dict[str, list[Row]]) -> None:
    """Each type and month shows the uploads that say whether they show damage, and those that do."""
    data = load_data(populated_lake.folder)
    shown = {(each.kind, each.month): (each.with_flag, each.damaged) for each in data.damage}
    last = data.days[-1].day
    first = date(last.year - MONTHS // 12, last.month, 1) + timedelta(31)
    told: Counter[tuple[str, date]] = Counter()
    damaged: Counter[tuple[str, date]] = Counter()
    for row in truth["uploads"]:
        taken = (row["scan_date_time"] or row["created_at"]).date().replace(day=1)
        if taken >= first.replace(day=1) and row["has_damage"] is not None:
            told[row["upload_type"], taken] += 1
            damaged[row["upload_type"], taken] += row["has_damage"]
    assert shown == {key: (told[key], damaged[key]) for key in told}
    assert sum(damaged.values()) > 20


def test_damage_counts_when_it_was_taken_and_told(tmp_path: Path) -> None:
    """An upload counts in the month it was taken, not registered, and only if it says whether it shows damage."""
    taken, registered = datetime(2026, 9, 30, 23), datetime(2026, 10, 1, 1)  # noqa: DTZ001 - UTC without saying so
    marks = (True, False, False, None)
    uploads = [
        {"file_id": 1, "id": key, "position": key, "upload_type": "snap", "has_damage": mark,
         "scan_date_time": None if key == 1 else taken, "created_at": registered}
        for key, mark in enumerate(marks)
    ]  # fmt: skip
    build_lake(tmp_path / "lake", {1: 4}, {"uploads": uploads})
    shown = {(each.month, each.with_flag, each.damaged) for each in load_data(tmp_path / "lake").damage}
    assert shown == {(date(2026, 9, 1), 2, 1), (date(2026, 10, 1), 1, 0)}


def test_kinds_of_damage(populated_lake: PopulatedLake, truth: dict[str, list[Row]]) -> None:
    """Kinds of damage are counted over all uploads."""
    counts = Counter(row["damage_type_desc"] for row in truth["uploads"] if row["has_damage"])
    shown = load_data(populated_lake.folder).damage_kinds
    assert {each.name: each.number for each in shown} == dict(counts)
    assert {each.total for each in shown} == {counts.total()}


def _started(row: Row) -> datetime:
    at = row["started_on_device_at"] or row["submit_date_time"] or row["created_at"]
    assert isinstance(at, datetime)
    return at


def test_open_runs_by_age(populated_lake: PopulatedLake, truth: dict[str, list[Row]]) -> None:
    """Open workflow runs fall into the class of their age, and are those of the view open_workflow_runs."""
    now = _now()
    data = load_data(populated_lake.folder, now)
    still = [row for row in truth["workflow_runs"] if row["completed_at"] is None and row["deleted_at"] is None]
    ages = [(now.replace(tzinfo=None) - _started(row)) / timedelta(days=1) for row in still]
    classes = Counter(sum(age >= bound for bound, _ in AGE_BUCKETS) for age in ages)
    assert {each.bucket: each.runs for each in data.open_ages} == dict(classes)
    assert asked(populated_lake.folder, "SELECT count(*) FROM open_workflow_runs") == [(classes.total(),)]
    by_name = dict(asked(populated_lake.folder, "SELECT workflow, count(*) FROM open_workflow_runs GROUP BY ALL"))
    assert {each.name: each.number for each in data.open_workflows} == by_name
    oldest = asked(populated_lake.folder, "SELECT started_at FROM open_workflow_runs ORDER BY age_days DESC LIMIT 12")
    assert [(each.started_at,) for each in data.open_oldest] == oldest


def _says(value: str | None) -> bool:
    return value is not None and value.strip(" ") != ""


def test_fields(populated_lake: PopulatedLake, truth: dict[str, list[Row]]) -> None:
    """A field counts once a file, however often it was scanned, and only where it holds a value."""
    holders: dict[str, set[int]] = {}
    for row in truth["fields"]:
        files = holders.setdefault(row["name"], set())
        if _says(row["value"]):
            files.add(row["file_id"])
    shown = load_data(populated_lake.folder).fields
    counts = sorted(((-len(files), name) for name, files in holders.items()))[:MAX_NAMES]
    assert [(-each.filled, each.name) for each in shown] == counts
    assert {(each.asked, each.names) for each in shown} == {(302, len(holders))}


def test_forms_and_questions(populated_lake: PopulatedLake, truth: dict[str, list[Row]]) -> None:
    """Forms and questions show how many of their questions are answered."""
    data = load_data(populated_lake.folder)
    by_label = Counter(row["label"] for row in truth["form_answers"])
    answered = Counter(row["label"] for row in truth["form_answers"] if _says(row["value"]))
    assert {each.name: (each.filled, each.asked) for each in data.questions} == {
        each.name: (answered[each.name], by_label[each.name]) for each in data.questions
    }
    assert len(data.questions) == min(MAX_NAMES, len(by_label))
    numbers = Counter(row["form_id"] for row in truth["form_answers"])
    filled = Counter(row["form_id"] for row in truth["form_answers"] if _says(row["value"]))
    sent = Counter(row["form_id"] for row in truth["form_submits"])
    every = {(sent[key], numbers[key], filled[key]) for key in sent}
    assert [each.sent for each in data.forms] == sorted(sent.values(), reverse=True)[:MAX_NAMES]
    assert {(each.sent, each.asked, each.filled) for each in data.forms} <= every


def test_what_the_catalog_says_of_itself(populated_lake: PopulatedLake) -> None:
    """Runs, verifies, drift, deletions, snapshots and size are those of the catalog."""
    data = load_data(populated_lake.folder, _now())
    runs = asked(populated_lake.folder, "SELECT run_id, state, error FROM meta.runs ORDER BY started_at")
    assert [(each.run_id, each.state, each.error) for each in data.runs] == runs
    assert [each.state for each in data.runs].count("failed") == 1
    assert sum(each.runs for each in data.run_counts) == len(runs) == 5
    assert [each.consistent for each in data.verifications] == [True]
    assert asked(populated_lake.folder, "SELECT count(*) FROM meta.schema_drift") == [(data.drift[0].keys,)]
    assert sum(each.files for each in data.deletions) == data.freshness.deleted_files == 7
    assert data.deletions_by_month is False
    assert asked(populated_lake.folder, "SELECT snapshot, files FROM meta.snapshots ORDER BY 1") == [
        (each.snapshot, each.files) for each in data.snapshots
    ]
    assert asked(populated_lake.folder, "SELECT sum(bytes), count(*) FROM physical.parts") == [
        (sum(each.bytes for each in data.table_sizes), sum(each.parts for each in data.table_sizes))
    ]


def test_the_page_says_these_numbers(populated_lake: PopulatedLake) -> None:
    """The numbers reach the page, with thousands separators."""
    data = load_data(populated_lake.folder)
    text = ParsedPage(page_of(populated_lake.folder)).text
    for words in (
        f"Files 302 {data.freshness.deleted_files} files deleted in the service",
        f"Uploads {data.totals.uploads:,} ",
        f"{sum(each.runs for each in data.open_ages):,} workflow runs are open",
        "1 of the last 5 runs did not finish",
        "At the last verification the lake is consistent with the service",
        "7 files are deleted in the service",
    ):
        assert words in text
    assert "," in f"{data.totals.uploads:,}"


async def test_rejects_and_reports(tmp_path: Path) -> None:
    """Rejects count by reason, whatever the file; of a report job the last order of each batch counts."""
    lake = tmp_path / "lake"
    async with Emulator(105, seed=5) as emulator:
        bad = emulator.world.pick_random(2)
        emulator.set_faults(poison=tuple(bad))
        await synced(emulator, lake, max_attempts=1)
        await run_report(emulator, lake, tmp_path / "audit")
        await synced(emulator, lake, max_attempts=1)
    data = load_data(lake, _now())
    (reason,) = data.reject_reasons
    assert (reason.rejects, reason.reasons, data.freshness.rejects) == (2, 1, 2)
    assert "/files/(id): HTTP 500" in reason.reason
    (job,) = data.jobs
    assert (job.files, job.files_delivered, job.batches, job.failed) == (105, 105, 2, 0)
    assert job.bytes == sum(path.stat().st_size for path in (tmp_path / "audit").rglob("*.pdf"))
    text = ParsedPage(page_of(lake, _now())).text
    assert "2 files or documents could not be stored" in text
    assert "2 PDFs delivered in 1 job, none failed" in text


def test_runs_that_did_not_finish(populated_lake: PopulatedLake) -> None:
    """All runs that failed or were interrupted count; the latest of them is told, and the last run if it is one."""
    data = load_data(populated_lake.folder)
    (first, *_) = data.runs
    hours = [timedelta(hours=each) for each in (9, 5, 2, 1)]
    states = ("failed", "done", "interrupted", "done")
    made_up = [
        replace(first, run_id=f"r{place}", started_at=data.now - each, state=state, error=f"error {place}")
        for place, (each, state) in enumerate(zip(hours, states, strict=True))
    ]
    text = ParsedPage(render_page(replace(data, runs=tuple(made_up)))).text
    assert "2 of the last 4 runs did not finish, the latest 2h before this page was created" in text
    assert "The last run" not in text
    text = ParsedPage(render_page(replace(data, runs=tuple(made_up[:3])))).text
    assert "The last run (sync) did not finish: error 2." in text


def test_the_most_frequent_and_the_others(tmp_path: Path) -> None:
    """Beyond the first names the rest is one line with its sum, and nothing is lost from the total."""
    kinds = [f"type {place:02}" for place in range(40)]
    uploads = [
        {"file_id": 1, "id": 100 * place + each, "position": 0, "upload_type": kind, "has_damage": each % 2 == 0,
         "damage_type_desc": kind, "created_at": NOW.replace(tzinfo=None)}
        for place, kind in enumerate(kinds) for each in range(40 - place)
    ]  # fmt: skip
    build_lake(tmp_path / "lake", {1: 1}, {"uploads": uploads})
    data = load_data(tmp_path / "lake")
    assert sum(each.with_flag for each in data.damage) == len(uploads) == 820
    assert [each.kind for each in data.damage] == [*kinds[:5], None]
    text = ParsedPage(page_of(tmp_path / "lake")).text
    assert "35 other types" in text
    rest = sum(-(-(40 - place) // 2) for place in range(12, 40))
    assert f"28 other kinds: {rest:,}" in text


def test_a_file_from_the_future_hides_nothing(tmp_path: Path) -> None:
    """A stamp far ahead or long ago neither stretches the axis nor counts on a wrong day."""
    at = [datetime(9999, 12, 31), datetime(2026, 11, 20), datetime(1, 1, 1)]  # noqa: DTZ001 - UTC without saying so
    uploads = [{"file_id": 1, "id": key, "position": key, "created_at": each} for key, each in enumerate(at)]
    build_lake(tmp_path / "lake", {1: 3}, {"uploads": uploads})
    data = load_data(tmp_path / "lake")
    assert [each.uploads for each in data.days if each.uploads] == [1]
    assert data.days[-1].day == NOW.date()
    assert ParsedPage(page_of(tmp_path / "lake")).tags


def test_headlines_name_what_there_is(tmp_path: Path) -> None:
    """A kind without a name is no headline, nor is the rarest of questions that are always answered."""
    at = NOW.replace(tzinfo=None) - timedelta(days=40)
    uploads = [
        {"file_id": 1, "id": key, "position": key, "upload_type": "snap", "has_damage": True, "damage_type_desc": kind,
         "created_at": at}
        for key, kind in enumerate((None, None, " ", "Dent"))
    ]  # fmt: skip
    answers = [{"file_id": 1, "form_submit_id": "a", "form_id": 1, "position": 0, "label": "Seal?", "value": "yes"}]
    forms = [{"file_id": 1, "id": "a", "form_id": 1, "position": 0}]
    build_lake(tmp_path / "lake", {1: 1}, {"uploads": uploads, "form_submits": forms, "form_answers": answers})
    data = load_data(tmp_path / "lake")
    text = ParsedPage(render_page(data)).text
    assert "“Dent” is the most frequent kind: 25.0 % of 4 damaged uploads" in text
    assert "Every question is always answered" in text
    assert "100 % of the uploads of these months show damage" in text
    unnamed = tuple(kind for kind in data.damage_kinds if kind.name != "Dent")
    assert "No damaged upload names its kind" in ParsedPage(render_page(replace(data, damage_kinds=unnamed))).text


def test_deletions_over_years_are_by_month(tmp_path: Path) -> None:
    """Deletions further apart than the days that are shown come by month."""
    at = int(NOW.timestamp() * 1_000_000)
    with Lake(tmp_path / "lake", doing="the test") as lake:
        commit(lake, dict.fromkeys(range(5), 0))
        commit(lake, {}, gone=[1], stamp=-400 * 86_400_000_000)
        commit(lake, {}, gone=[2, 3])
        lake.publish("r1", at=at, complete=True, watermark=at)
    data = load_data(tmp_path / "lake")
    assert data.deletions_by_month
    assert len(data.deletions) == MONTHS
    assert {each.since: each.files for each in data.deletions if each.files} == {
        date(2025, 10, 1): 1,
        date(2026, 11, 1): 2,
    }
    assert "most were detected in Nov 2026 (2)" in ParsedPage(page_of(tmp_path / "lake")).text
