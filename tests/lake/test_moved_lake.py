"""A lake that is moved."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Final

import duckdb
import pytest

from pipeline.lake.lake import Lake
from schemas.tables import TABLES
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import republish, told
from tests.processes import DUCKDB_CLIENT

if TYPE_CHECKING:
    from pathlib import Path

COUNT: Final = "SELECT count(*) AS n FROM files"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A published lake of two files."""
    with Lake(tmp_path / "lake", doing="test") as made:
        commit(made, {1: 0, 2: 0})
        made.publish("", at=AT, complete=True, watermark=None)
    return tmp_path / "lake"


def count(catalog: Path) -> int:
    """The number of files that a reader finds."""
    with duckdb.connect(str(catalog), read_only=True) as db:
        return int(db.execute(COUNT).fetchall()[0][0])


def test_a_moved_lake(lake: Path) -> None:
    """A lake whose folder was moved answers every client at once: no catalog has a path of its own."""
    assert str(lake).encode() not in (lake / "catalog.duckdb").read_bytes()
    moved = lake.rename(lake.with_name("it's moved"))
    assert count(moved / "catalog.duckdb") == 2
    assert told(moved, "query", COUNT, "--format", "csv").split() == ['"n"', "2"]
    assert told(moved, "changes", "--since", "1").startswith("0 added")
    with Lake(moved, doing="look") as held:
        assert not held.needs_publish


def test_snapshots_move_along(lake: Path) -> None:
    """Snapshots from before a move show what they showed, in this client and in older ones, and can be restored."""
    with Lake(lake, doing="test") as made:
        children = {"fields": [{"file_id": 1, "name": "it's", "value": "v", "position": 0}]}
        commit(made, {1: 1, 3: 0}, children, gone=[2])
        made.publish("", at=AT, complete=True, watermark=None)
        commit(made, {1: 0})
        made.publish("", at=AT, complete=True, watermark=None)
    before = [_shown(path) for path in sorted((lake / "snapshots").iterdir())]
    moved = lake.rename(lake.with_name("it's moved"))
    republish(moved)
    after = sorted((moved / "snapshots").iterdir())
    assert [_shown(path) for path in after][: len(before)] == before
    for path in after:
        views = "; ".join(f"SELECT count(*) FROM (FROM {name})" for name in before[0])
        done = subprocess.run(
            [DUCKDB_CLIENT, "-readonly", str(path), views], capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
    assert json.loads(told(moved, "check", "--json", "--read-data"))["ok"]
    told(moved, "rollback", "2", "--yes")
    assert count(moved / "catalog.duckdb") == 2


def _shown(path: Path) -> dict[str, list[str]]:
    with duckdb.connect(str(path), read_only=True) as db:
        names = [table.name for table in TABLES if table.schema == "main"] + ["fields_wide", "file_summary"]
        return {name: sorted(map(repr, db.execute(f"FROM {name}").fetchall())) for name in names}
