"""The lake's past: snapshots, changes between them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb

from pipeline.lake.catalog.snapshots import diff_snapshots
from pipeline.lake.lake import Lake
from pipeline.settings.settings import Settings
from schemas.timestamps import from_datetime
from tests.lake.corruption import flip
from tests.lake.history import differing_rows
from tests.lake.lake_builder import commit
from tests.lake.operations import compact_all, told
from tests.lake.test_rollback import AT, differences, snapshot_of
from tests.lake_copies import copy_lake

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lake.history import History


def test_time_travel(history: History, tmp_path: Path) -> None:
    """A kept snapshot opens as any catalog does, and shows the service as it was then, compactions or not."""
    lake, number = copy_lake(history.today.lake, tmp_path / "lake"), snapshot_of(history.yesterday.lake)
    with Lake(lake, doing="compaction") as held:
        assert compact_all(held, Settings(lake=lake))
    with duckdb.connect(str(lake / "snapshots" / f"{number:06d}.duckdb"), read_only=True) as db:
        assert differences(db, history.yesterday.truth) == []
    assert differing_rows(history.today.lake, lake) == []


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
