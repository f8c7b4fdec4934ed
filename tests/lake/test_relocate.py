"""A lake that is moved."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

import duckdb
import pytest

from pipeline.lake.lake import Lake
from pipeline.maintenance.compact import run_compaction as compact
from pipeline.settings import Settings
from tests.lake.corruption import checked
from tests.lake.fault_injection import Disk, ProcessKilled, failing
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import republish, told

CLIENT: Final = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "duckdb"
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
    """A lake whose folder was moved answers every client at once."""
    moved = lake.rename(lake.with_name("it's moved"))
    assert count(moved / "catalog.duckdb") == 2
    documents = "SELECT count(*) AS n FROM file_history"
    assert told(moved, "query", documents, "--format", "csv").split() == ['"n"', "2"]
    assert told(moved, "changes", "--since", "1").startswith("0 added")


def test_snapshots_move_along(lake: Path) -> None:
    """Snapshots from before a move show what they showed, in this client and in older ones."""
    with Lake(lake, doing="test") as made:
        own = {"_definition_hash": "a"}
        children = {
            "uploads": [{"file_id": 1, "position": 0, "geocoding": '{"a": 1}'}],
            "fields": [{"file_id": 1, "name": "it's", "value": "v", "position": 0}],
            "workflow_definitions": [{"id": 1, "name": "w", "updated_at": AT, **own}],
            "workflow_definition_steps": [{"id": 2, "workflow_id": 1, "position": 0, **own}],
        }
        commit(made, {1: 1, 3: 0}, children, gone=[2])
        made.publish("", at=AT, complete=True, watermark=None)
        commit(made, {1: 0})
        made.publish("", at=AT, complete=True, watermark=None)
    snapshots = sorted((lake / "snapshots").iterdir())
    before = [_shown(path) for path in snapshots]
    since = [path.stat().st_mtime_ns for path in snapshots]
    moved = lake.rename(lake.with_name("it's moved"))
    republish(moved)
    after = sorted((moved / "snapshots").iterdir())[: len(snapshots)]
    assert [_shown(path) for path in after] == before
    assert [path.stat().st_mtime_ns for path in after[:-1]] == since[:-1]  # the newest is published again
    for path in after:
        views = "; ".join(f"SELECT count(*) FROM (FROM {name})" for name in before[0] if "." in name)
        done = subprocess.run([CLIENT, "-readonly", str(path), views], capture_output=True, text=True, check=False)
        assert done.stderr == ""
    assert json.loads(told(moved, "check", "--json", "--read-data"))["ok"]
    told(moved, "rollback", "2", "--yes")
    assert count(moved / "catalog.duckdb") == 2


def _shown(path: Path) -> dict[str, object]:
    with duckdb.connect(str(path), read_only=True) as db:
        found = db.execute("SELECT schema_name || '.' || view_name FROM duckdb_views() WHERE NOT internal").fetchall()
        shown: dict[str, object] = {
            name: sorted(map(repr, db.execute(f"FROM {name}").fetchall()))
            for (name,) in found
            if name != "meta.freshness"
        }
        for kind in ("views", "tables", "columns"):
            said = db.execute(f"SELECT COLUMNS('_name$|comment') FROM duckdb_{kind}() WHERE NOT internal").fetchall()
            shown[kind] = sorted(map(repr, said))
        return shown


def test_a_killed_publish_moves_the_rest_next_time(lake: Path) -> None:
    """Killed at any file operation while snapshots follow a move, the next publish finishes it."""
    with Lake(lake, doing="test") as made:
        for number in (5, 6):
            commit(made, {number: 0})
            made.publish("", at=AT, complete=True, watermark=None)
    for at in range(9, 200, 8):
        moved = lake.with_name(f"moved {at}")
        shutil.copytree(lake, moved)
        with failing(Disk(at, None)) as disk, suppress(ProcessKilled), Lake(moved, doing="publish") as held:
            held.republish(at=AT)
        with Lake(moved, doing="publish") as held:
            if held.needs_publish:
                held.republish(at=AT)
            assert not held.needs_publish
        for path in (moved / "snapshots").glob("*.duckdb"):
            with duckdb.connect(str(path), read_only=True) as db:
                assert db.execute("SELECT parts_root FROM meta.freshness").fetchall() == [(str(moved),)]
        if not disk.struck:
            break
    assert 25 < at < 190
    assert checked(moved).damage == []


def test_any_run_notices_a_move(lake: Path) -> None:
    """A run on a lake that was moved publishes it anew, also when there is nothing else to do."""
    moved = lake.rename(lake.with_name("moved"))
    with Lake(moved, doing="compaction") as held:
        assert not compact(held, Settings(lake=moved))
        assert not held.needs_publish
    assert count(moved / "catalog.duckdb") == 2


def test_another_spelling_is_no_move(lake: Path) -> None:
    """The same folder by a symbolic link is no reason to publish."""
    link = lake.with_name("link")
    link.symlink_to(lake)
    with Lake(link, doing="look") as held:
        assert not held.needs_publish
