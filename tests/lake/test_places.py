"""A lake that is moved, or that readers see under another path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

from pipeline.errors import SettingsError
from pipeline.lake.lake import Lake
from pipeline.runs.upkeep import compact
from pipeline.settings import Settings
from tests.lake.made import AT, commit
from tests.lake.verbs import told

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COUNT = "SELECT count(*) AS n FROM files"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A published lake of two files."""
    with Lake(tmp_path / "lake", doing="test") as made:
        commit(made, {1: 0, 2: 0})
        made.publish("", at=AT, complete=True, horizon=None)
    return tmp_path / "lake"


def count(catalog: Path) -> int:
    """The number of files that a reader finds."""
    with duckdb.connect(str(catalog), read_only=True) as db:
        return int(db.execute(COUNT).fetchall()[0][0])


def test_a_moved_lake(lake: Path) -> None:
    """A lake whose folder was moved says so when asked, and after `publish` answers again."""
    moved = lake.rename(lake.with_name("it's moved"))
    with pytest.raises(duckdb.IOException):
        count(moved / "catalog.duckdb")
    assert "scanlake publish" in told(moved, "query", COUNT, code=9)
    assert str(moved) in told(moved, "publish")
    assert count(moved / "catalog.duckdb") == 2
    assert told(moved, "query", COUNT, "--format", "csv").split() == ['"n"', "2"]
    assert told(moved, "changes", "--since", "1").startswith("0 added")  # also of snapshots made before


def test_any_run_notices_a_move(lake: Path) -> None:
    """A run on a lake that was moved publishes it anew, also when there is nothing else to do."""
    moved = lake.rename(lake.with_name("moved"))
    with Lake(moved, doing="compact") as held:
        assert compact(held, Settings(lake=moved)) is None
        assert not held.is_behind
    assert count(moved / "catalog.duckdb") == 2


def test_another_spelling_is_no_move(lake: Path) -> None:
    """The same folder by a symbolic link is no reason to publish."""
    link = lake.with_name("link")
    link.symlink_to(lake)
    with Lake(link, doing="look") as held:
        assert not held.is_behind


def test_an_anchor_is_remembered(lake: Path) -> None:
    """Readers see the lake under the anchor, later publishes keep it, and naming the lake's own folder ends it."""
    mount = lake.with_name("mount")
    mount.symlink_to(lake)
    told(lake, "publish", "--anchor", str(mount))
    with duckdb.connect(str(mount / "catalog.duckdb"), read_only=True) as db:
        assert db.execute("SELECT anchor FROM meta.freshness").fetchall() == [(str(mount),)]
        assert db.execute("SELECT count(*) FROM duckdb_views() WHERE sql LIKE ?", [f"%{lake}/%"]).fetchall() == [(0,)]
    with Lake(lake, doing="test") as held:
        assert not held.is_behind
        commit(held, {3: 0}, gone=[1])
        held.publish("", at=AT, complete=True, horizon=None)
        assert held.anchor == mount
    assert told(lake, "query", COUNT, "--format", "csv").split() == ['"n"', "2"]
    told(lake, "publish", "--anchor", str(lake))
    mount.unlink()
    assert count(lake / "catalog.duckdb") == 2


def test_an_anchor_out_of_sight(lake: Path) -> None:
    """An anchor that this machine does not see is believed: the lake goes on, and only reading here is refused."""
    assert "does not see" in told(lake, "publish", "--anchor", "/mnt/elsewhere/lake")
    with Lake(lake, doing="test") as held:
        commit(held, {1: 1}, gone=[2])
        held.publish("", at=AT, complete=True, horizon=None)
    assert "/mnt/elsewhere/lake" in told(lake, "query", COUNT, code=9)


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.touch()])
def test_a_wrong_anchor_is_refused(lake: Path, make: Callable[[Path], object]) -> None:
    """An anchor where something else lies is refused, and readers keep what they have."""
    other = lake.with_name("other")
    make(other)
    with Lake(lake, doing="publish") as held, pytest.raises(SettingsError, match="does not show this lake"):
        held.move_readers_to(other)
    assert count(lake / "catalog.duckdb") == 2
