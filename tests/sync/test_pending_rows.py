"""Rows that are written after their documents: none is lost, none is published early, whatever ends the run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ScanlakeError, StorageError
from pipeline.lake import documents
from pipeline.lake.lake import Lake
from pipeline.lake.ledger import Ledger
from pipeline.lake.parts import RowBuffer
from pipeline.sync import batch_sink, batch_writer
from pipeline.sync.batch_writer import BatchWriter
from schemas.tables import TABLES
from schemas.timestamps import now_us
from tests.lake.fault_injection import ProcessKilled
from tests.sync.sync_harness import SEED, asked, check_equal, opened, synced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pipeline.lake.ledger_queries import Commit


class Worker:
    """The writer process in this one, which spares the half second of its start."""

    exchange: Callable[[Any], Any]

    def __init__(self, _name: str, _code: str, root: str, **_: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batch_writer, "serve", partial(setattr, self, "exchange"))
            batch_writer.main(root)

    def close(self) -> None:
        """End without what is pending."""


@pytest.fixture(autouse=True)
def _keeps_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let even a small sync use the writer process, which keeps rows."""
    monkeypatch.setattr(batch_sink, "BatchWriter", partial(BatchWriter, min_files=1))
    monkeypatch.setattr(batch_writer, "WorkerProcess", Worker)


def fail(error: BaseException, *_: Any, **__: Any) -> None:
    """End the run with an error: `ProcessKilled` is a kill, for all that the lake shows."""
    raise error


async def killed_sync(emulator: Emulator, lake: Path) -> None:
    """Sync, and be killed when all batches are committed and their rows are not written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchWriter, "flush", partial(fail, ProcessKilled()))
        with pytest.raises(ProcessKilled):
            await synced(emulator, lake, commit_every_files=12)


def count_parts(folder: Path) -> int:
    """Return the number of parts in a folder, without the empty one."""
    return len(list(folder.glob("0*.parquet")))


def read_rows(lake: Path) -> dict[str, list[Any]]:
    """Return the rows of all tables in an order that does not depend on the parts, without the run and its times."""
    shown = "COLUMNS(lambda name: NOT regexp_matches(name, '^(_run_id|_fetched_at)$'))"
    with opened(lake) as db:
        return {
            table.name: db.execute(f"SELECT {shown} FROM {table.qualified_name} ORDER BY ALL").fetchall()
            for table in TABLES
        }


async def test_rows_after_a_kill(lake: Path, tmp_path: Path) -> None:
    """The rows of many commits are one part per table, sorted by file; their documents are a part per commit.

    Rows of a run that was killed are flattened from the documents: the same rows, without a call for a detail.
    """
    whole = tmp_path / "whole"
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, whole, commit_every_files=12)
        assert [count_parts(whole / name) for name in ("tables/files", "tables/uploads")] == [1, 1]
        assert count_parts(whole / "documents") > 3
        with opened(whole) as db:
            ids = [file_id for (file_id,) in db.execute("SELECT file_id FROM uploads").fetchall()]
        assert ids == sorted(ids)
        await killed_sync(emulator, lake)
        calls = emulator.counts["detail"]
        with Lake(lake, doing="test") as held:
            assert held.ledger.properties.pending_rows_from is None
            assert held.ledger.count_files() == 60
            held.republish(at=now_us())
        assert count_parts(lake / "tables/files") == 1
        check_equal(lake, emulator)
        assert read_rows(lake) == read_rows(whole)
        await synced(emulator, lake)
        assert emulator.counts["detail"] < calls + 20  # those of the checks that every run makes


async def test_killed_again_and_again(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails while it writes rows, or is killed while it recovers them, leaves them to the next one."""
    monkeypatch.setattr(documents, "RowBuffer", partial(RowBuffer, max_files=12))  # it is full in between
    async with Emulator(40, seed=SEED) as emulator:
        await synced(emulator, lake)
        emulator.world.update(emulator.world.pick_random(30))
        emulator.world.clock.advance(3)
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "add_rows", partial(fail, StorageError("No space left on device.")))
            with pytest.raises(StorageError):
                await synced(emulator, lake, commit_every_files=10)
            patch.setattr(Ledger, "add_rows", partial(fail, ProcessKilled()))
            with pytest.raises(ProcessKilled), Lake(lake, doing="test"):
                pass
        calls = emulator.counts["detail"]
        await killed_sync(emulator, lake)
        await synced(emulator, lake)
        assert emulator.counts["detail"] < calls + 20
        check_equal(lake, emulator)


async def test_rows_of_a_commit_that_failed(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed run publishes the rows of its commits, each once, and none of a batch that was not committed."""
    commit = Ledger.commit
    commits = 0

    def fail_fourth(ledger: Ledger, made: Commit) -> None:
        nonlocal commits
        commits += bool(made.versions)
        if commits == 4:
            raise ScanlakeError("The fourth commit fails.")
        commit(ledger, made)

    async with Emulator(60, seed=SEED) as emulator:
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "commit", fail_fourth)
            with pytest.raises(ScanlakeError, match="fourth"):
                await synced(emulator, lake, commit_every_files=10)
        with Lake(lake, doing="test") as held:
            stored = [file_id for file_id, _ in held.ledger.iter_files()]
        assert 0 < len(stored) < 60
        with opened(lake) as db:
            assert [row[0] for row in db.execute("SELECT file_id FROM files ORDER BY ALL").fetchall()] == stored
            others = "SELECT count(*) FROM uploads WHERE file_id NOT IN (FROM (SELECT file_id FROM files))"
            assert db.execute(others).fetchall() == [(0,)]
        await synced(emulator, lake)
        check_equal(lake, emulator)


async def test_publishes_during_a_run(lake: Path) -> None:
    """A publish during a run shows whole commits: it waits for the batch that leaves no rows pending."""
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, lake, commit_every_files=4, publish_every_seconds=0)
        check_equal(lake, emulator)
    assert count_parts(lake / "tables/files") > 2
    assert asked(lake, "SELECT count(*) FROM snapshot WHERE NOT complete")[0][0] > 2


async def test_damaged_documents_without_rows(lake: Path) -> None:
    """Files whose documents are damaged before their rows are written are fetched again; all others are there."""
    async with Emulator(60, seed=SEED) as emulator:
        await killed_sync(emulator, lake)
        part = sorted((lake / "documents").glob("0*.parquet"))[1]
        part.chmod(0o600)
        part.write_bytes(b"PAR1" + bytes(part.stat().st_size - 8) + b"PAR1")
        with Lake(lake, doing="test") as held:
            assert held.ledger.count_refetch_requests() > 0
            held.republish(at=now_us())
            assert held.ledger.count_files() < 60
        with opened(lake) as db:
            files = {file_id for (file_id,) in db.execute("SELECT file_id FROM files").fetchall()}
            uploads = {file_id for (file_id,) in db.execute("SELECT file_id FROM uploads").fetchall()}
        assert uploads <= files
        assert 40 < len(files) < 60
        await synced(emulator, lake)
        check_equal(lake, emulator)


async def test_what_a_killed_run_left_is_published_with_the_next_commit(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run does not end before readers see what a killed one has committed: its first commit publishes that."""
    incomplete = "SELECT count(*) FROM snapshot WHERE NOT complete"
    async with Emulator(40, seed=SEED) as emulator:
        with monkeypatch.context() as patch:
            patch.setattr(Lake, "publish", partial(fail, ProcessKilled()))
            with pytest.raises(ProcessKilled):
                await synced(emulator, lake)
        emulator.world.update(emulator.world.pick_random(20))
        await synced(emulator, lake, commit_every_files=4)
        assert asked(lake, incomplete) == [(1,)]
        emulator.world.update(emulator.world.pick_random(20))
        await synced(emulator, lake, commit_every_files=4)
        assert asked(lake, incomplete) == [(1,)], "nothing was left"
        check_equal(lake, emulator)
