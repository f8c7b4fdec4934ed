"""A publish that is killed at any step: readers have the former or the new catalog, and the next publish is whole."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

import duckdb
import pytest

from pipeline.lake.lake import Lake
from tests.conftest import ROOT
from tests.lake.corruption import checked
from tests.lake.lake_builder import AT, commit
from tests.lake.publish_killer import WORK
from tests.lake.test_crash import litter
from tests.soaking import SOAKING, draw_seed, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Kill = Callable[[Path, str, int], list[str]]

_NAMES: Final = (
    "files",
    "uploads",
    "deleted_files",
    "meta.snapshots",
    "meta._freshness",
    "physical.superseded_versions",
)


@pytest.fixture(scope="module")
def kill() -> Iterator[Kill]:
    """Return the function that publishes a lake and is killed at a step; it returns the steps that were reached."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.lake.publish_killer"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    request, answer = process.stdin, process.stdout

    def kill_publish(lake: Path, work: str, step: int) -> list[str]:
        request.write(f"{json.dumps([str(lake), work, step])}\n")
        request.flush()
        return list(json.loads(answer.readline()))

    with process:
        yield kill_publish
        request.close()
    assert process.returncode == 0


def _grow(root: Path) -> None:
    uploads = [{"file_id": key, "id": key, "position": 0} for key in range(1, 41)]
    with Lake(root, doing="test") as lake:
        commit(lake, dict.fromkeys(range(1, 41), 1), {"uploads": uploads}, stamp=1)
        lake.publish("run", at=AT + 1, complete=True, watermark=AT + 1)


def _copy(source: Path, target: Path) -> None:
    """Copy a lake by links, so that the catalog is the file that was published. Only the ledger is ever changed."""
    shutil.copytree(source, target, copy_function=os.link)
    (target / "ledger.sqlite").unlink()
    shutil.copyfile(source / "ledger.sqlite", target / "ledger.sqlite")


def _read(catalog: Path, names: tuple[str, ...] = _NAMES) -> dict[str, Counter[str]]:
    with duckdb.connect(str(catalog), read_only=True) as db:
        return {name: Counter(map(repr, db.execute(f"FROM {name}").fetchall())) for name in names}


def _choose_steps(names: list[str], *, after: str) -> list[int]:
    """Return two steps after one, or one of all steps where it is not; in a soak all steps."""
    steps = range(1, len(names) + 1)
    if SOAKING:
        return list(steps)
    if after in names:
        return sample(steps[names.index(after) + 1 :], 2)
    seed = draw_seed(__name__)
    return [random.Random(seed).choice(steps)]


@pytest.mark.parametrize("work", WORK)
def test_a_publish_that_is_killed(tmp_path: Path, work: str, kill: Kill) -> None:
    """Killed at any step of a publish: no reader sees a mixture, check finds no damage, the next publish is whole."""
    lake, grown = tmp_path / "lake", tmp_path / "grown"
    catalog = lake / "catalog.duckdb"
    _grow(lake)
    former = _read(catalog)
    lake.rename(grown)
    _copy(grown, lake)
    names = kill(lake, work, 0)
    new = _read(catalog)
    for step in _choose_steps(names, after="before rename to 000002.duckdb"):
        shutil.rmtree(lake)
        _copy(grown, lake)
        assert kill(lake, work, step) == names[:step]
        place = f"step {step}: {names[step - 1]}"
        found = _read(catalog)
        assert found in (former, new), place
        assert checked(lake, mend=False).damage == [], place
        with Lake(lake, doing="test") as held:
            held.publish("run", at=AT + 3, complete=True, watermark=AT + 3)
        assert _read(catalog) == _read(max(lake.glob("snapshots/*"))), place
        assert not [path for path in lake.rglob("*") if ".tmp" in path.name or path.name.endswith(".wal")], place
        assert litter(lake) == [], place
