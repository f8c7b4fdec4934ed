"""A rebuild makes every table again from the documents, without the service."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pipeline.cli import main
from pipeline.errors import LakeCorruptedError, ScanlakeError
from pipeline.findings import Severity
from pipeline.flatten import flatten as flattening
from pipeline.lake import catalog_meta, catalog_sql, catalog_tables, catalog_views, parts, views
from pipeline.lake.lake import Lake
from pipeline.lake.view_definitions import WORKFLOWS
from pipeline.maintenance import ray_tasks
from pipeline.maintenance import rebuild as rebuild_module
from pipeline.maintenance.rebuild import FlattenedRows, FlattenTask, RebuildResult, rebuild
from pipeline.progress import NullProgress
from pipeline.settings import Settings
from pipeline.sync.verify import VerifyMode, verify
from schemas import tables
from tests.findings import lines_of
from tests.lake.corruption import checked, grown
from tests.lake.fault_injection import Disk, ProcessKilled, failing
from tests.lake.operations import compact_all
from tests.oracle import differences
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from schemas.tables import Table


def rebuilt(lake: Path) -> RebuildResult:
    """Rebuild as the command does."""
    with Lake(lake, doing="rebuild") as held:
        return rebuild(held)


def rows(lake: Path) -> dict[str, list[str]]:
    """Every row of every table, `_seq` left out."""
    with opened(lake) as db:
        return {
            table.name: sorted(map(str, db.execute(f"SELECT * FROM {table.qualified_name}").fetchall()))
            for table in tables.TABLES
        }


@pytest.mark.parametrize("folded", [False, True])
async def test_every_row_is_the_same(tmp_path: Path, folded: bool) -> None:  # noqa: FBT001
    """After changes, deletions and compactions a rebuild gives every table row for row, without one request."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        emulator.world.delete(emulator.world.pick_random(2))
        made = Settings(base_url=emulator.base_url, lake=lake)
        with Lake(lake, doing="verify") as held:
            await verify(held, made, emulator.token, VerifyMode(), NullProgress())
        if folded:
            with Lake(lake, doing="compaction") as held:
                compact_all(held, Settings(lake=lake))
        emulator.world.update(emulator.world.pick_random(4))
        await synced(emulator, lake)
        before, requests = rows(lake), emulator.requests
        done = rebuilt(lake)
        assert emulator.requests == requests
        assert rows(lake) == before
        assert len(before["deleted_files"]) == 2
        assert done.files == len(before["files"])
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
            assert db.execute("SELECT count(*) FROM physical.superseded_versions").fetchall() == [(0,)]
        assert (await synced(emulator, lake)).details_fetched == 0
        emulator.world.update(emulator.world.pick_random(4))
        await synced(emulator, lake)
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
    assert checked(lake, read_data=True).damage == []


@pytest.mark.parametrize(("name", "column"), [("uploads", "comment"), ("workflow_definitions", "type")])
async def test_a_column_declared_later_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, column: str
) -> None:
    """A lake written by a version that did not know a column shows it empty, and filled after a rebuild."""
    lake = tmp_path / "lake"
    known = tables.BY_NAME[name]
    columns = tuple(each for each in known.columns if each.name != column)
    with monkeypatch.context() as patch:
        _declare(patch, replace(known, columns=columns))
        async with grown(lake, rounds=1) as emulator:
            truth = list(emulator.truth())
    with opened(lake) as db:
        assert column not in {row[0] for row in db.execute(f"DESCRIBE {name}").fetchall()}
    with Lake(lake, doing="publish") as held:
        held.republish(at=1)
    with opened(lake) as db:
        assert db.execute(f"SELECT count({column}) FROM {name}").fetchall() == [(0,)]
    rebuilt(lake)
    with opened(lake) as db:
        assert differences(db, truth) == []
        assert db.execute(f"SELECT count({column}) > 0 FROM {name}").fetchall() == [(True,)]


def _declare(patch: pytest.MonkeyPatch, table: Table) -> None:
    declared = tuple(table if each.name == table.name else each for each in tables.TABLES)
    for module in (tables, catalog_meta, catalog_sql, catalog_tables, catalog_views, parts, rebuild_module):
        if hasattr(module, "TABLES"):
            patch.setattr(module, "TABLES", declared)
        if hasattr(module, "BY_NAME"):
            patch.setattr(module, "BY_NAME", {each.name: each for each in declared})
    if hasattr(catalog_sql, table.name.upper()):
        patch.setattr(catalog_sql, table.name.upper(), table)
    if table.name == "workflow_definitions":
        listed = ", ".join(f'"{column.name}"' for column in table.columns)
        latest = WORKFLOWS.sql.partition(" FROM ")[2]
        patch.setattr(views, "WORKFLOWS", replace(WORKFLOWS, columns=(), sql=f"SELECT {listed} FROM {latest}"))
    patch.setattr(flattening, "_FLATTENED", tuple(each for each in declared if each.from_wire))


async def test_gaps_in_raw_are_refused(tmp_path: Path) -> None:
    """Where raw documents are missing or damaged a rebuild changes nothing and sends to `scanlake check`."""
    lake = tmp_path / "lake"
    async with grown(lake, rounds=1):
        pass
    before = rows(lake)
    raw = min((lake / "raw").iterdir())
    raw.chmod(0o644)
    raw.write_bytes(raw.read_bytes()[:-3] + b"PAR")
    with pytest.raises(LakeCorruptedError):
        rebuilt(lake)
    assert checked(lake).files_to_fetch
    with pytest.raises(LakeCorruptedError, match="has the documents of"):
        rebuilt(lake)
    assert rows(lake) == before


async def test_a_killed_rebuild_changes_nothing(tmp_path: Path) -> None:
    """Killed anywhere, a rebuild leaves the tables as they were or as they are to be, which is the same."""
    lake = tmp_path / "lake"
    async with grown(lake, files=8, rounds=1):
        pass
    before, killed = rows(lake), 0
    for at in range(12, 400, 12):
        with failing(Disk(at, None)) as disk:
            try:
                rebuilt(lake)
            except ProcessKilled:
                killed += 1
        assert rows(lake) == before, f"torn at {at}"
        if not disk.struck:
            break
    assert killed > 3
    assert lines_of(checked(lake, read_data=True).findings, Severity.WARNING) == []


async def test_memory_does_not_grow_with_the_lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rebuild holds a batch of documents at a time, however many there are."""
    lake, peaks = tmp_path / "lake", []
    for files in (100, 400):
        async with grown(lake / str(files), files=files, rounds=0):
            pass
        tracemalloc.start()
        rebuilt(lake / str(files))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 2_000_000
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["rebuild", "--json", "--lake", str(lake / "100")])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["files"] == 100


def run_elsewhere(tasks: Iterator[FlattenTask]) -> Iterator[FlattenedRows]:
    """Run tasks out of order in threads, each one twice, as a cluster may after a lost worker.

    Each task and each result crosses a border of processes.
    """
    waiting = [pickle.dumps(task) for task in tasks]
    assert len(waiting) > 3

    def run(task: bytes) -> bytes:
        return pickle.dumps(pickle.loads(task).run())  # noqa: S301 - this test's own bytes

    with ThreadPoolExecutor(4) as pool:
        first = [pool.submit(run, task) for task in reversed(waiting)]
        again = [pool.submit(run, task) for task in waiting]
        for lost, result in zip(reversed(first), again, strict=True):
            assert lost.result() == result.result()
            yield pickle.loads(result.result())  # noqa: S301


async def test_tasks_elsewhere_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that run elsewhere, in any order and more than once, give every table row by row."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        emulator.world.delete(emulator.world.pick_random(2))
        made = Settings(base_url=emulator.base_url, lake=lake)
        with Lake(lake, doing="verify") as held:
            await verify(held, made, emulator.token, VerifyMode(), NullProgress())
    local = rebuilt(lake)
    before = rows(lake)
    monkeypatch.setattr(rebuild_module, "_TASK_FILES", 7)
    with Lake(lake, doing="rebuild") as held:
        done = rebuild(held, run_elsewhere)
    assert rows(lake) == before
    assert (done.files, done.rows, done.parts_after) == (local.files, local.rows, local.parts_after)
    assert checked(lake, read_data=True).damage == []


def run_and_fail(tasks: Iterator[FlattenTask]) -> Iterator[FlattenedRows]:
    """Fail after the first task."""
    yield next(tasks).run()
    raise ScanlakeError("Ray (ray): the cluster is gone.")


async def test_a_cluster_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure in the middle the lake has the parts and rows of before."""
    lake = tmp_path / "lake"
    async with grown(lake):
        before = rows(lake)
    monkeypatch.setattr(rebuild_module, "_TASK_FILES", 7)
    with Lake(lake, doing="rebuild") as held:
        parts_before = held.ledger.parts()
        with pytest.raises(ScanlakeError, match="the cluster is gone"):
            rebuild(held, run_and_fail)
        assert held.ledger.parts() == parts_before
    assert rows(lake) == before
    assert checked(lake, read_data=True).damage == []


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("dask", "--on dask: unknown kind of cluster."),
        ("ray://", "--on ray://: no address."),
        ("rayon", "--on rayon: unknown kind of cluster."),
        ("ray", "--on ray needs the library ray."),
    ],
)
def test_an_unusable_cluster_is_one_line(
    target: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cluster of another kind, an empty address and a missing library are refused with what to do."""
    monkeypatch.setattr(ray_tasks, "ray", None)
    with pytest.raises(SystemExit) as ended:
        main(["rebuild", "--on", target])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert says in told
    assert "ray://HOST:PORT" in told or "pip install 'ray[client]'" in told
