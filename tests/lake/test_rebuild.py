"""A rebuild makes every table again from the documents, without the service."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pytest

from pipeline.errors import LakeCorruptedError, ScanlakeError
from pipeline.lake import ray_tasks
from pipeline.lake.catalog import current_rows, documents
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.ledger import record_drift
from pipeline.lake.ledger.queries import Commit
from pipeline.lake.rebuild import RebuildResult, rebuild
from pipeline.lake.storage import parts
from pipeline.processes import worker as worker_process
from schemas import tables
from tests.lake.corruption import checked, flip
from tests.lake.lake_builder import AT, commit, undeclared_parts
from tests.lake.operations import told
from tests.lake_copies import copy_lake
from tests.oracle import differences
from tests.rows import every
from tests.sync.sync_harness import check_equal, opened, synced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.lake.catalog.current_rows import FlattenedRows, FlattenTask, RunTasks
    from schemas.file_versions import FileVersion
    from tests.lake.history import History


@pytest.fixture
def lake(history: History, tmp_path: Path) -> Path:
    """A copy of a lake with changes, deletions and parts of before and after a compaction."""
    return copy_lake(history.old.lake, tmp_path / "lake")


def rebuilt(lake: Path, run_tasks: RunTasks | None = None) -> RebuildResult:
    """Rebuild as the command does."""
    with Lake(lake, doing="rebuild") as held:
        return rebuild(held, run_tasks)


def rows(lake: Path) -> dict[str, list[str]]:
    """Every row of every table, `_seq` left out."""
    with opened(lake) as db:
        return {
            table.name: sorted(map(str, db.execute(f"SELECT * EXCLUDE (_seq) FROM {table.qualified_name}").fetchall()))
            for table in tables.TABLES
        }


def run_elsewhere(tasks: Iterator[FlattenTask]) -> Iterator[FlattenedRows]:
    """Run tasks out of order in threads, each one twice, as a cluster may after a lost worker.

    Each task and each result crosses a border of processes.
    """
    waiting = [pickle.dumps(task) for task in tasks]
    assert len(waiting) >= 3

    def run(task: bytes) -> bytes:
        return pickle.dumps(pickle.loads(task).flatten())  # noqa: S301 - this test's own bytes

    with ThreadPoolExecutor(4) as pool:
        first = [pool.submit(run, task) for task in reversed(waiting)]
        again = [pool.submit(run, task) for task in waiting]
        for lost, result in zip(reversed(first), again, strict=True):
            assert lost.result() == result.result()
            yield pickle.loads(result.result())  # noqa: S301


def run_and_fail(tasks: Iterator[FlattenTask]) -> Iterator[FlattenedRows]:
    """Fail after the first task."""
    yield next(tasks).flatten()
    raise ScanlakeError("Ray (ray): the cluster is gone.")


def test_every_row_is_the_same(history: History, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuild without the service gives every table row by row, here or elsewhere; one that fails changes nothing.

    Tasks that run elsewhere may run in any order and more than once.
    """
    before = rows(lake)
    assert len(before["deleted_files"]) == 3
    done = rebuilt(lake)
    assert (done.files, rows(lake)) == (len(before["files"]), before)
    with opened(lake) as db:
        assert differences(db, history.old.truth) == []
    assert undeclared_parts(lake) == []
    monkeypatch.setattr(current_rows, "_TASK_FILES", 3)
    monkeypatch.setattr(documents, "_DOCUMENTS_PER_BATCH", 5)
    elsewhere = rebuilt(lake, run_elsewhere)
    assert rows(lake) == before
    assert (elsewhere.files, elsewhere.rows, elsewhere.parts_after) == (done.files, done.rows, done.parts_after)
    monkeypatch.setattr(parts, "ROW_GROUP_ROWS", 7)
    monkeypatch.setattr(parts, "MAX_PART_ROWS", 7)
    assert rebuilt(lake).parts_after > done.parts_after
    assert rows(lake) == before
    with Lake(lake, doing="test"):  # which deletes what was replaced
        files = sorted(lake.glob("tables/*/*"))
    with pytest.raises(ScanlakeError, match="the cluster is gone"):
        rebuilt(lake, run_and_fail)
    assert (rows(lake), sorted(lake.glob("tables/*/*"))) == (before, files)
    assert checked(lake, read_data=True).damage == []


def test_a_system_without_a_second_process(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system refuses a process one is enough, and nothing is said of the documents."""
    monkeypatch.setattr(current_rows, "_TASK_FILES", 3)
    monkeypatch.setattr(worker_process, "WorkerProcess", Mock(side_effect=BlockingIOError(11, "refused")))
    before = rows(lake)
    assert (rebuilt(lake).files, rows(lake)) == (len(before["files"]), before)


async def test_a_column_declared_later_is_filled(history: History, tmp_path: Path) -> None:
    """A lake without a column shows it empty, and after a rebuild filled, its key no unknown one; syncs go on."""
    lake, later = tmp_path / "lake", (("uploads", "comment"), ("workflow_definitions", "type"))
    keys = ("comment", "later")

    def filled() -> list[bool]:
        with opened(lake) as db:
            sql = "SELECT count({1}) > 0 FROM {0}"
            return [is_filled for of in later for (is_filled,) in db.execute(sql.format(*of)).fetchall()]

    def unknown_keys() -> set[str]:
        with opened(lake) as db:
            return {key for (key,) in db.execute("SELECT key FROM meta.schema_drift").fetchall()}

    async with history.yesterday.live_on(lake) as emulator:
        assert filled() == [True, True]
        with Lake(lake, doing="test") as held:
            held.layout.catalog.chmod(0o600)
            with duckdb.connect(str(held.layout.catalog)) as db:
                for table, column in later:
                    db.execute(f"UPDATE {table} SET {column} = NULL")
            status, record = held.layout.catalog.stat(), held.ledger.properties.catalog
            assert record is not None
            held.ledger.set_properties(catalog=record | {"file": [status.st_ino, status.st_size, status.st_mtime_ns]})
            with held.ledger.transaction() as ledger:
                record_drift(ledger, Commit(1, "run", AT, drift={("uploads", key, "unknown_key"): 1 for key in keys}))
            held.republish(at=1)
        assert filled() == [False, False]
        assert set(keys) <= unknown_keys()
        rebuilt(lake)
        assert filled() == [True, True]
        assert set(keys) & unknown_keys() == {"later"}
        emulator.world.update(emulator.world.pick_random(2))
        assert (await synced(emulator, lake)).details_fetched == 2
        check_equal(lake, emulator)
    assert checked(lake, read_data=True).damage == []


def test_gaps_in_raw_are_refused(lake: Path) -> None:
    """Where raw documents are missing or damaged a rebuild changes nothing and sends to `scanlake check`."""
    before = rows(lake)
    raw = min((lake / "documents").iterdir())
    raw.chmod(0o644)
    raw.write_bytes(raw.read_bytes()[:-3] + b"PAR")
    with pytest.raises(LakeCorruptedError):
        rebuilt(lake)
    assert checked(lake).files_to_fetch
    with pytest.raises(LakeCorruptedError, match="has the documents of"):
        rebuilt(lake)
    assert rows(lake) == before


def test_a_deletion_whose_documents_are_lost_stays_known(tmp_path: Path) -> None:
    """A rebuild names a deleted file also after the part with its tombstone was damaged, and says what was lost."""
    with Lake(tmp_path, doing="test") as held:
        commit(held, {1: 0, 2: 0})
        commit(held, {}, gone=[1])
        held.publish("", at=AT, complete=True, watermark=AT)
    flip(max((tmp_path / "documents").iterdir()))
    checked(tmp_path, read_data=True)
    rebuilt(tmp_path)
    with opened(tmp_path) as db:
        deleted = db.execute("SELECT file_id, evidence FROM deleted_files").fetchall()
    assert deleted == [(1, "lost with a damaged part")]


def test_memory_does_not_grow_with_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuild holds a task's documents at a time, however many there are."""
    monkeypatch.setattr(current_rows, "_TASK_FILES", 20)
    peaks = []

    def lengthen(made: FileVersion) -> FileVersion:
        document = b'{"id": %d}' % made.file_id + b" " * 20_000
        return made._replace(list_item=document, detail=document)

    for files in (40, 300):
        lake = tmp_path / str(files)
        with Lake(lake, doing="test") as held:
            for low in range(1, files, 20):
                commit(held, dict.fromkeys(range(low, low + 20), 0), change=lengthen)
        pool, former = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
        pa.set_memory_pool(pool)
        tracemalloc.start()
        try:
            rebuilt(lake)
        finally:
            pa.set_memory_pool(former)
            peaks.append(pool.max_memory() + tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert json.loads(told(lake, "rebuild", "--json"))["files"] == files
    assert peaks[1] < 1.5 * peaks[0], peaks


@every(
    "target, says",
    [
        ("dask", "--on dask: unknown kind of cluster."),
        ("ray://", "--on ray://: no address."),
        ("rayon", "--on rayon: unknown kind of cluster."),
        ("ray", "--on ray needs the library ray."),
    ],
)
def test_an_unusable_cluster_is_one_line(target: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of another kind, an empty address and a missing library are refused with what to do."""
    monkeypatch.setattr(ray_tasks, "ray", None)
    message = told(Path("lake"), "rebuild", "--on", target, code=2)
    assert says in message
    assert "ray://HOST:PORT" in message or "pip install 'ray[client]'" in message


def test_a_lake_without_files_is_rebuilt(tmp_path: Path) -> None:
    """A rebuild of the lake of an empty service ends well, with every table, typed and empty."""
    with Lake(tmp_path / "lake", doing="test") as lake:
        lake.publish("", at=AT, complete=True, watermark=1)
    types = "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns ORDER BY ALL"
    with opened(tmp_path / "lake") as db:
        before = db.execute(types).fetchall()
    result = json.loads(told(tmp_path / "lake", "rebuild", "--json"))
    assert (result["files"], result["rows"], result["parts_after"]) == (0, 0, 0)
    with opened(tmp_path / "lake") as db:
        assert db.execute(types).fetchall() == before
        assert db.execute("SELECT files, complete FROM meta.freshness").fetchall() == [(0, True)]
    assert not any(rows(tmp_path / "lake").values())
    assert "0 errors" in told(tmp_path / "lake", "check")


def test_a_lake_without_a_snapshot_is_not_rebuilt(tmp_path: Path) -> None:
    """Before its first sync has published anything there is nothing to rebuild."""
    with Lake(tmp_path / "lake", doing="test"):
        pass
    assert "The lake is empty. Run `scanlake sync` first." in told(tmp_path / "lake", "rebuild", code=2)
