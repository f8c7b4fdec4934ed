"""A compaction by tasks, which run anywhere, gives the rows of a compaction in one process."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.errors import LakeCorruptedError, ScanlakeError
from pipeline.lake.lake import Lake
from pipeline.maintenance.compact import run_compaction
from pipeline.maintenance.executors import LocalContent, LocalExecutor
from pipeline.settings import Settings
from schemas.tables import TABLES
from tests.lake.corruption import checked, flip, grown, parts
from tests.lake.executors import ShuffledExecutor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.lake.compaction import CompactionResult
    from pipeline.maintenance.executors import Executor, Result, SharedContent, Task


def compact(lake: Path, executor: Executor | None = None) -> CompactionResult:
    """Compact everything."""
    with Lake(lake, doing="compact") as held:
        result = run_compaction(held, Settings(lake=lake), everything=True, executor=executor)
    assert result is not None
    return result


def list_differences(lake: Path, other: Path) -> list[str]:
    """Return the tables whose rows, `_seq` included, differ between the parts of two lakes, counted."""
    differences = []
    with duckdb.connect() as db:
        for table in TABLES:
            mine, theirs = (
                f"SELECT * FROM read_parquet('{root}/parts/{table.name}/*.parquet', union_by_name = true)"
                for root in (lake, other)
            )
            lost = len(db.execute(f"{mine} EXCEPT ALL {theirs}").fetchall())
            surplus = len(db.execute(f"{theirs} EXCEPT ALL {mine}").fetchall())
            if lost or surplus:
                differences.append(f"{table.name}: {lost} lost, {surplus} surplus")
    return differences


def sweep(lake: Path) -> None:
    """Delete the parts that were replaced."""
    with Lake(lake, doing="compact") as held:
        run_compaction(held, Settings(lake=lake, keep_snapshots=1, retention_hours=0))


def registered(lake: Path) -> set[str]:
    """Return the names of the parts that the ledger has."""
    with Lake(lake, doing="check") as held:
        return {part.name for part in held.ledger.parts()}


async def test_every_row_is_that_of_a_local_compaction(tmp_path: Path) -> None:
    """Tasks of few rows, in any order and twice, leave every table row by row as a local compaction does."""
    lake, local = tmp_path / "lake", tmp_path / "local"
    async with grown(lake, files=60):
        pass
    before = {name for name in registered(lake) if not name.startswith("raw/")}
    shutil.copytree(lake, local)
    done = compact(local)
    executor = ShuffledExecutor()
    elsewhere = compact(lake, executor)
    assert executor.tasks > 20
    assert executor.shares == len(before)
    assert (elsewhere.parts_before, elsewhere.superseded) == (done.parts_before, done.superseded)
    sweep(lake)
    sweep(local)
    assert list_differences(lake, local) == []
    assert checked(lake, read_data=True).damage == []
    uploads = [path for path in parts(lake) if path.parent.name == "uploads"]
    ids = [file_id for path in uploads for file_id in pq.read_table(path)["file_id"].to_pylist()]
    assert len(uploads) > 3
    assert ids == sorted(ids)


class FailingExecutor(LocalExecutor):
    """Fails after three tasks."""

    task_rows = 40

    def map(self, tasks: Iterator[Task[Result]]) -> Iterator[Result]:
        """Yield three results."""
        for _ in range(3):
            yield next(tasks).run()
        raise ScanlakeError("Ray (ray): the cluster is gone.")


async def test_a_cluster_that_fails_registers_nothing(tmp_path: Path) -> None:
    """After a failure in the middle the ledger has the parts of before, and the next run deletes the new files."""
    lake = tmp_path / "lake"
    async with grown(lake):
        pass
    before, files = registered(lake), parts(lake)
    with pytest.raises(ScanlakeError, match="the cluster is gone"):
        compact(lake, FailingExecutor())
    assert len(parts(lake)) > len(files)
    assert registered(lake) == before
    assert parts(lake) == files
    assert compact(lake, ShuffledExecutor()).parts_after
    assert checked(lake, read_data=True).damage == []


async def test_a_damaged_part_is_not_compacted(tmp_path: Path) -> None:
    """A part with one other bit ends the compaction, and nothing has changed."""
    lake = tmp_path / "lake"
    async with grown(lake):
        pass
    before = registered(lake)
    damaged = next(path for path in parts(lake) if path.parent.name == "uploads")
    flip(damaged)
    with pytest.raises(LakeCorruptedError, match=f"{damaged.name} has changed since it was written"):
        compact(lake, ShuffledExecutor())
    assert registered(lake) == before


class DamagingExecutor(LocalExecutor):
    """Loses a byte of everything that is shared."""

    def share(self, content: bytes) -> SharedContent:
        """Return a handle of other bytes."""
        return LocalContent(content[:-1])


async def test_what_changes_on_its_way_is_not_used(tmp_path: Path) -> None:
    """A part that arrives with other bytes ends the compaction, and nothing has changed."""
    lake = tmp_path / "lake"
    async with grown(lake):
        pass
    before = registered(lake)
    with pytest.raises(ScanlakeError, match="has changed on its way"):
        compact(lake, DamagingExecutor())
    assert registered(lake) == before
