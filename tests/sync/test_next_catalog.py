"""The next catalog, to which rows are applied as they come: only a cache, whatever becomes of it."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import duckdb
import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ScanlakeError
from pipeline.lake.catalog import catalog, current_rows, next_catalog
from pipeline.lake.catalog.current_rows import iter_current_rows, run_here
from pipeline.lake.catalog.next_catalog import NextCatalog, choose_base
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.ledger import Ledger
from pipeline.sync import batch_sink
from pipeline.sync.batch_writer import BatchWriter
from schemas.timestamps import now_us
from tests.lake.corruption import checked, flip
from tests.lake.fault_injection import ProcessKilled
from tests.lake.lake_builder import AT, commit
from tests.sync.sync_harness import SEED, asked, check_equal, opened, synced

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.lake.catalog.catalog import AppliedCommits
    from pipeline.lake.ledger.queries import Commit

pytestmark = pytest.mark.usefixtures("published")
both = pytest.mark.parametrize("min_files", [1, 10_000], ids=["writer process", "one process"])


@pytest.fixture(autouse=True)
def _process(monkeypatch: pytest.MonkeyPatch, min_files: int) -> None:
    """Let a process of its own write from so many files on."""
    monkeypatch.setattr(batch_sink, "BatchWriter", partial(BatchWriter, min_files=min_files))


@pytest.fixture
def min_files() -> int:
    """By default it does."""
    return 1


def fail(error: BaseException, *_: object, **__: object) -> NoReturn:
    """Raise the error."""
    raise error


async def killed_sync(emulator: Emulator, lake: Path) -> None:
    """Sync, and be killed when all batches are committed and nothing is published."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lake, "publish", partial(fail, ProcessKilled()))
        with pytest.raises(ProcessKilled):
            await synced(emulator, lake, commit_every_files=12)


@both
async def test_rows_of_a_commit_that_failed(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed run publishes the rows of its commits, each once, and none of a batch that was not committed."""
    real, commits = Ledger.commit, 0

    def fail_fourth(ledger: Ledger, made: Commit) -> None:
        nonlocal commits
        commits += bool(made.versions)
        if commits == 4:
            raise ScanlakeError("The fourth commit fails.")
        real(ledger, made)

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


@both
async def test_publishes_during_a_run(lake: Path) -> None:
    """A publish during a run shows whole commits, and the next ones are applied to what it has published."""
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, lake, commit_every_files=4, publish_every_seconds=0)
        check_equal(lake, emulator)
        emulator.world.update(emulator.world.pick_random(20))
        await synced(emulator, lake, commit_every_files=4, publish_every_seconds=0)
        check_equal(lake, emulator)
    assert asked(lake, "SELECT count(*) FROM snapshot WHERE NOT complete")[0][0] > 2
    assert checked(lake, mend=False).damage == []


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["damaged", "gone"])
@pytest.mark.parametrize("begins", [True, False], ids=["first sync", "later sync"])
async def test_damaged_documents_without_rows(lake: Path, damage: Callable[[Path], object], *, begins: bool) -> None:
    """Files whose documents are damaged before they are published are rejects; all others are there at once.

    The next sync needs no repair: it fetches just those files, and ends with everything.
    """
    async with Emulator(60, seed=SEED) as emulator:
        if not begins:
            await synced(emulator, lake)
            emulator.world.update(emulator.world.pick_random(40))
        emulator.world.clock.advance(3)  # past their second: else the next sync reads them again
        await killed_sync(emulator, lake)
        shutil.copytree(lake, other := lake.with_name("other"))
        for killed in (lake, other):
            damage(max((killed / "documents").glob("0*.parquet")))
        with Lake(lake, doing="test") as held:
            lost = {request.file_id for request in held.ledger.refetch_requests()}
            assert lost
            held.republish(at=now_us())
            assert held.ledger.count_files() == 60 - len(lost)
        with opened(lake) as db:
            files = {file_id for (file_id,) in db.execute("SELECT file_id FROM files").fetchall()}
            uploads = {file_id for (file_id,) in db.execute("SELECT file_id FROM uploads").fetchall()}
            named = {file_id for (file_id,) in db.execute("SELECT file_id FROM meta.rejects").fetchall()}
        assert uploads <= files
        assert (files & lost, named, len(files)) == (set(), lost, 60 - len(lost))
        assert checked(lake, mend=False).damage == []
        for killed in (lake, other):
            calls = emulator.counts["detail"]
            await synced(emulator, killed)
            check_equal(killed, emulator)
            assert emulator.counts["detail"] < calls + len(lost) + 20


@both
async def test_what_a_killed_run_left_is_published_with_the_next_commit(lake: Path) -> None:
    """A run does not end before readers see what a killed one has committed: its first commit publishes that."""
    incomplete = "SELECT count(*) FROM snapshot WHERE NOT complete"
    async with Emulator(40, seed=SEED) as emulator:
        await killed_sync(emulator, lake)
        emulator.world.update(emulator.world.pick_random(20))
        await synced(emulator, lake, commit_every_files=4)
        assert asked(lake, incomplete) == [(1,)]
        emulator.world.update(emulator.world.pick_random(20))
        await synced(emulator, lake, commit_every_files=4)
        assert asked(lake, incomplete) == [(1,)], "nothing was left"
        check_equal(lake, emulator)


def _apply(lake: Lake, next_one: NextCatalog, first: int) -> None:
    """Add the rows of the commits from one on, as a writer does."""
    base = choose_base(lake.layout, lake.ledger)
    for seq in range(first, lake.ledger.next_commit_seq()):
        skip = (seq + 1, 2**62)
        for rows in iter_current_rows(lake.layout, lake.ledger, since_seq=seq - 1, skip=skip, run_tasks=run_here):
            next_one.add(rows.tables, seq=seq, base=base)


def _shown(lake: Lake, applied: AppliedCommits | None, stamp: int) -> list[Any]:
    lake.publish("run", at=AT + stamp, complete=True, watermark=AT, applied=applied)
    with duckdb.connect(str(lake.layout.catalog), read_only=True) as db:
        return db.execute("SELECT file_id, snap_count FROM files ORDER BY 1").fetchall()


@pytest.mark.parametrize("fault", ["none", "full disk", "gone", "cut", "a commit is missing", "another base"])
def test_whatever_becomes_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A next catalog that is whole, damaged, away or of another catalog: the publish shows every commit once."""
    with Lake(tmp_path / "lake", doing="test") as lake:
        commit(lake, {1: 1, 2: 1})
        assert _shown(lake, None, 1) == [(1, 1), (2, 1)]
        first = commit(lake, {2: 2, 3: 2}, stamp=1)
        commit(lake, {3: 3}, stamp=2)
        next_one = NextCatalog(lake.layout)
        if fault == "full disk":
            monkeypatch.setattr(
                next_catalog, "apply_rows", partial(fail, duckdb.IOException("No space left on device"))
            )
        _apply(lake, next_one, first)
        if fault == "a commit is missing":
            next_one.add({}, seq=first + 7, base=choose_base(lake.layout, lake.ledger))
        applied = next_one.finish()
        assert (applied is None) == (fault in {"full disk", "a commit is missing"})
        if applied is not None and fault == "gone":
            applied.path.unlink()
        elif applied is not None and fault == "cut":
            os.truncate(applied.path, applied.path.stat().st_size // 2)
        elif fault == "another base":
            lake.republish(at=AT + 2)
        assert _shown(lake, applied, 3) == [(1, 1), (2, 2), (3, 3)]
        assert not list(lake.layout.root.glob(".*.tmp*")), "it is left lying about"
    assert checked(tmp_path / "lake", mend=False).damage == []


@pytest.mark.parametrize("has_writer", [True, False], ids=["of a writer", "of documents"])
def test_rows_of_a_first_sync_are_sorted_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_writer: bool
) -> None:
    """However commits come, rows of a large first sync lie in the order of their files, for look-ups by file.

    What is made of many documents is sorted by the next publish of rows.
    """
    for module, name, value in (
        (catalog, "_MIN_ROWS", 0),
        (catalog, "_MIN_WASTE", 1 << 40),
        (next_catalog, "_MIN_FILES", 1),
        (current_rows, "_TASK_FILES", 1),
        (current_rows, "run_beside", run_here),
    ):
        monkeypatch.setattr(module, name, value)
    with Lake(tmp_path / "lake", doing="test") as lake:
        for files in ({5: 2}, {1: 1, 9: 1}, {3: 1}):
            commit(lake, files, {"uploads": [{"file_id": key, "id": 1, "position": 0} for key in files]})
        applied = None
        if has_writer:
            _apply(lake, next_one := NextCatalog(lake.layout), 1)
            applied = next_one.finish()
            assert applied is not None
        _shown(lake, applied, 1)
        if not has_writer:
            commit(lake, {10: 1})
            _shown(lake, None, 2)
    for table in ("files", "uploads", "file_versions"):
        with opened(tmp_path / "lake") as db:
            ids = [row[0] for row in db.execute(f"SELECT file_id FROM {table} ORDER BY rowid").fetchall()]
        assert [key for key in ids if key < 10] == [1, 3, 5, 9]
