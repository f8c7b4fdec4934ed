"""The lake's past: snapshots, changes between them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lake.catalog.snapshots import diff_snapshots
from pipeline.lake.lake import Lake
from pipeline.lake.retention import expire_snapshots, select_kept
from pipeline.lake.storage.layout import list_part_files, list_snapshots
from pipeline.settings.settings import Settings
from schemas.timestamps import SECOND, from_datetime, to_datetime
from tests.lake.corruption import flip
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import compact_all, told
from tests.lake_copies import copy_lake

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lake.history import History


def test_changes_between_snapshots(history: History) -> None:
    """Changes lists exactly the files that were added, changed or deleted, with reference and stamp."""
    for since, until in ((history.yesterday, history.today), (history.today, history.old)):
        before, after = ({true["key"]: true for true in day.truth} for day in (since, until))
        catalogs = [day.lake / "catalog.duckdb" for day in (since, until)]
        found = list(diff_snapshots(*catalogs))
        assert {(each.file_id, each.change) for each in found} == {
            *((key, "added") for key in after.keys() - before.keys()),
            *((key, "deleted") for key in before.keys() - after.keys()),
            *((key, "changed") for key in after.keys() & before if after[key]["updated"] != before[key]["updated"]),
        }
        assert len(found) == len({each.file_id for each in found}) > 4
        for each in found:
            if each.change != "deleted":
                assert each.updated_at is not None
                assert from_datetime(each.updated_at) == after[each.file_id]["updated"]
                assert each.scan_code == after[each.file_id]["item"]["scan_code"]
        assert list(diff_snapshots(catalogs[0], catalogs[0])) == []


def test_the_verbs(history: History, tmp_path: Path) -> None:
    """snapshots, changes and rollback tell people and programs what there is and what they did."""
    lake = copy_lake(history.old.lake, tmp_path / "lake")
    listed = json.loads(told(lake, "snapshots", "--json"))["snapshots"]
    assert [row["state"] for row in listed] == ["deleted"] * (len(listed) - 3) + ["kept"] * 3
    shown = told(lake, "snapshots").splitlines()
    assert len(shown) == 5, "years of a watch are many deleted snapshots"
    assert shown[-1] == f"{len(listed) - 3} snapshots deleted; --json lists them"
    assert listed[-1]["bytes"] > 1_000
    number = str(listed[-2]["snapshot"])
    found = json.loads(told(lake, "changes", "--since", number, "--json"))
    assert found["counts"] == {"added": 0, "changed": 0, "deleted": 1}
    assert "0 added, 0 changed, 1 deleted" in told(lake, "changes", "--since", number)
    assert json.loads(told(lake, "rollback", number, "--yes", "--json"))["files"] == len(history.old.truth) + 1
    refused = told(lake, "sync", "--set", "base_url=http://127.0.0.1:1", code=2, SCANLAKE_TOKEN="t")
    assert "scanlake rollback --undo" in refused
    assert f"from snapshot {number}" in told(lake, "rollback", "--undo")
    assert told(lake, "rollback", "--undo") == "nothing to undo\n"
    flip(lake / "snapshots" / f"{int(number):06}.duckdb", 0)
    listed = json.loads(told(lake, "snapshots", "--json"))["snapshots"]
    assert [row["snapshot"] for row in listed if row["state"] == "damaged"] == [int(number)]


def _change_of(lake: Path, *options: str) -> list[dict[str, Any]]:
    """Return the changes that the command prints."""
    listed: list[dict[str, Any]] = json.loads(told(lake, "changes", *options, "--json"))["files"]
    return listed


def test_changes_name_the_columns_that_differ(tmp_path: Path) -> None:
    """A changed file comes with the columns that differ, and with the tables in which it has more or fewer rows."""
    lake, before = tmp_path / "lake", {"file_id": 1, "id": 5, "position": 0, "comment": "a", "latitude": 1.0}
    with Lake(lake, doing="test") as made:
        commit(made, {1: 1, 2: 0, 3: 0}, {"uploads": [before]})
        made.publish("", at=AT, complete=True, watermark=AT)
        shifted = before | {"comment": "b", "position": 1}
        fields = [{"file_id": 1, "field_id": 9, "position": 0, "value": "new"}]
        commit(made, {1: 1, 2: 1}, {"uploads": [shifted], "fields": fields}, gone=[3], stamp=1)
        made.publish("", at=AT + 1, complete=True, watermark=AT)
    assert {row["file_id"]: row["columns"] for row in _change_of(lake, "--since", "1")} == {
        1: ["files.updated_at", "uploads.comment", "fields"],
        2: ["files.snap_count", "files.updated_at"],
        3: [],
    }
    text = told(lake, "changes", "--since", "1")
    assert "files.updated_at uploads.comment fields\n" in text
    assert "ref 1" in text
    assert "2026-11-18T11:06:40.000001Z" in text


def test_changes_leave_out_files_with_equal_content(tmp_path: Path) -> None:
    """A file that was only fetched again, in other order or not, is no change."""
    lake = tmp_path / "lake"
    rows = [{"file_id": 1, "id": number, "position": place} for place, number in enumerate((5, 6))]
    with Lake(lake, doing="test") as made:
        for stamp, uploads in enumerate((rows, rows, rows[::-1])):
            commit(made, {1: 1, 2: 0} | ({3: 0} if stamp else {}), {"uploads": uploads})
            made.publish("", at=AT + stamp, complete=True, watermark=AT)
    assert [(row["file_id"], row["change"]) for row in _change_of(lake, "--since", "1")] == [(3, "added")]
    assert told(lake, "changes", "--since", "2") == "0 added, 0 changed, 0 deleted from snapshot 2 to 3\n"


def test_changes_between_two_snapshots(tmp_path: Path) -> None:
    """The numbers of two kept snapshots, the newest by default, in their order; another number is refused."""
    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as made:
        for number in (1, 2, 3):
            commit(made, {number: 0})
            made.publish("", at=AT + number, complete=True, watermark=AT)
    assert [row["file_id"] for row in _change_of(lake, "--since", "2")] == [3]
    assert [row["file_id"] for row in _change_of(lake, "--since", "1", "--until", "2")] == [2]
    assert "--until is before --since." in told(lake, "changes", "--since", "2", "--until", "1", code=2)
    assert "'soon' is not a valid whole number." in told(lake, "changes", "--since", "soon", code=2)
    (lake / "snapshots" / "000001.duckdb").rename(tmp_path / "not-kept")
    assert "is not kept" in told(lake, "changes", "--since", "1", code=2)


_DAY = 24 * 3_600
_START = from_datetime(datetime(2026, 1, 1, tzinfo=UTC)) // SECOND
_NOW = _START + 800 * _DAY
_COUNTS = st.integers(0, 9)
_RULES = st.builds(
    Settings,
    keep_snapshots=st.integers(1, 9),
    keep_daily=_COUNTS,
    keep_weekly=_COUNTS,
    keep_monthly=_COUNTS,
)
_HISTORIES = st.lists(st.integers(_START, _NOW), max_size=40, unique=True).map(
    lambda seconds: [(number, at * SECOND) for number, at in enumerate(sorted(seconds), 1)]
)


@given(_HISTORIES, _RULES)
def test_the_rules_keep_what_they_say(history: list[tuple[int, int]], rules: Settings) -> None:
    """The newest stay, and the newest of each period."""
    kept, newest = select_kept(history, rules), rules.keep_snapshots
    assert list(kept) == sorted(kept)
    assert all(kept.values())
    assert {number for number, why in kept.items() if "newest" in why} == {n for n, _ in history[-newest:]}
    assert {number for number, why in kept.items() if "current" in why} == {n for n, _ in history[-1:]}
    for reason, spelled, count in (
        ("daily", "%Y-%m-%d", rules.keep_daily),
        ("weekly", "%G-%V", rules.keep_weekly),
        ("monthly", "%Y-%m", rules.keep_monthly),
    ):
        last_of = {f"{to_datetime(at):{spelled}}": number for number, at in history}
        expected = sorted(last_of.values(), reverse=True)[:count]
        assert {number for number, why in kept.items() if reason in why} == set(expected)


@given(_HISTORIES, _RULES, st.integers(0, 40))
def test_a_snapshot_that_went_is_not_missed_later(history: list[tuple[int, int]], rules: Settings, end: int) -> None:
    """Deleting early changes nothing: what the rules keep of the rest is what they would keep of all."""
    early = history[:end]
    kept_early = select_kept(early, rules)
    rest = [item for item in history if item[0] in kept_early or item not in early]
    assert set(select_kept(rest, rules)) == set(select_kept(history, rules))


@given(_HISTORIES, _RULES)
def test_more_to_keep_deletes_nothing(history: list[tuple[int, int]], rules: Settings) -> None:
    """Calendar rules only add to what stays without them."""
    plain = Settings(keep_snapshots=rules.keep_snapshots, keep_daily=0)
    assert set(select_kept(history, plain)) <= set(select_kept(history, rules))


def test_the_newest_of_days_and_months_can_be_read_and_purged(tmp_path: Path) -> None:
    """Daily and monthly snapshots stay, the parts that only they name go, and a purge removes all."""
    lake, day = tmp_path / "lake", _DAY * SECOND
    october = from_datetime(datetime(2026, 10, 12, 12, tzinfo=UTC))
    with Lake(lake, doing="test") as made:
        for number, days in enumerate((0, 0.1, 20, 20.1, 40, 40.1), 1):
            commit(made, {9: number, number: 0})
            made.publish("", at=int(october + days * day), complete=True, watermark=AT)
            compact_all(made, Settings(keep_snapshots=99, keep_raw_versions=1))
        rules = Settings(keep_snapshots=1, retention_hours=0, keep_daily=2, keep_monthly=3)
        expire_snapshots(made.layout, made.ledger, rules)
        layout = made.layout
        kept = [number for number, _ in list_snapshots(layout)]
        assert kept == [2, 4, 6]  # the newest of October 12, November 1 and November 21
        named = {part.name for part in made.ledger.parts()}
        for number in kept:
            with duckdb.connect(str(layout.snapshot_path(number)), read_only=True) as db:
                assert db.sql("SELECT count(*) FROM files").fetchall() == [(number + 1,)]
    with Lake(lake, doing="test") as made:  # which deletes what was replaced
        assert {layout.part_name(path) for path in list_part_files(layout)} == named == made.ledger.part_names()
    rules_now: dict[str, Any] = {
        "SCANLAKE_KEEP_MONTHLY": "2",
        "SCANLAKE_KEEP_SNAPSHOTS": "1",
        "SCANLAKE_KEEP_DAILY": "0",
    }
    listed = json.loads(told(lake, "snapshots", "--json", **rules_now))["snapshots"]
    reasons = {row["snapshot"]: row["kept_as"] for row in listed}
    assert reasons == {1: None, 2: ["monthly"], 3: None, 4: [], 5: None, 6: ["current", "newest", "monthly"]}
    words = told(lake, "snapshots", COLUMNS="100", **rules_now)
    assert re.search(r"^ *2 .* kept +monthly ", words, re.MULTILINE)
    assert re.search(r"^ *4 .* kept +until the next sync ", words, re.MULTILINE)
    assert re.search(r"^ *6 .* kept +current, monthly ", words, re.MULTILINE)
    told(lake, "purge", "9", "--yes", SCANLAKE_KEEP_MONTHLY="2")
    assert len(list_snapshots(layout)) == 1
    assert named.isdisjoint(layout.part_name(path) for path in list_part_files(layout))
