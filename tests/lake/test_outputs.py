"""Outputs: the catalog's rows as Parquet files, folded by size classes."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.emulator import Emulator
from pipeline.lake import compaction
from pipeline.lake.catalog import duckdb as worker
from pipeline.lake.catalog import outputs
from pipeline.lake.compaction import find_expired_documents
from pipeline.lake.lake import Lake
from pipeline.lake.rebuild import rebuild
from pipeline.lake.storage.parts import RAW_TABLE
from pipeline.settings.settings import Settings
from tests.lake.corruption import checked
from tests.lake.lake_builder import AT, commit, undeclared_parts
from tests.lake.operations import compact_all, fold_all
from tests.lake_copies import copy_lake
from tests.made_once import make_once
from tests.soaking import sample
from tests.sync.sync_harness import SEED, asked, check_equal, opened, synced

if TYPE_CHECKING:
    from pathlib import Path


def _publish(lake: Lake, stamp: int) -> None:
    lake.publish("run", at=AT + stamp, complete=True, watermark=AT)


def _names(lake: Lake, table: str = "files") -> list[str]:
    return [part.name for part in lake.ledger.parts() if part.table_name == table]


async def test_a_fold_changes_nothing_for_readers(tmp_path: Path) -> None:
    """After rounds of changes a fold leaves every table as it was, in one output each and without rows of before.

    An output is sorted by file, and its pages bear checksums.
    """
    lake = tmp_path / "lake"
    async with Emulator(30, seed=SEED) as emulator:
        for _ in range(3):
            await synced(emulator, lake, commit_every_files=10)
            emulator.world.update(emulator.world.pick_random(20))
            emulator.world.create(3)
        await synced(emulator, lake)
        counts = "SELECT count(*), sum(row_count) FROM part WHERE table_name = 'uploads'"
        [(before, rows)] = asked(lake, counts)
        assert before > 2
        with Lake(lake, doing="test") as held:
            fold_all(held)
        check_equal(lake, emulator)
        [(after, rows_after)] = asked(lake, counts)
        assert (after, rows_after < rows) == (1, True)
        (name,) = asked(lake, "SELECT name FROM part WHERE table_name = 'uploads'")[0]
        ids = pq.read_table(lake / name, page_checksum_verification=True).column("file_id").to_pylist()
        assert ids == sorted(ids)
        assert (lake / name).stat().st_mode & 0o777 == 0o444
    assert undeclared_parts(lake) == []
    assert checked(lake, read_data=True, mend=False).damage == []


def test_a_publish_writes_what_has_changed(tmp_path: Path) -> None:
    """Only changed rows are written, of the tables that have some; records alone write nothing."""
    uploads = [{"file_id": key, "id": key, "position": 0} for key in (1, 2)]
    with Lake(tmp_path, doing="test") as lake:
        commit(lake, {1: 1, 2: 1}, {"uploads": uploads})
        _publish(lake, 1)
        commit(lake, {1: 7}, {"uploads": uploads[:1]}, stamp=1)
        _publish(lake, 2)
        new = [part for part in lake.ledger.parts() if part.first_commit_seq == 2]
        assert {part.table_name: part.row_count for part in new if part.table_name != "documents"} == {
            "files": 1,
            "uploads": 1,
        }
        names = lake.ledger.part_names()
        lake.republish(at=AT + 3)
        assert lake.ledger.part_names() == names


def test_what_is_missing_is_written_again(tmp_path: Path) -> None:
    """An output that is away, or cut short, is written again by the next publish, with those after it."""
    with Lake(tmp_path, doing="test") as lake:
        for stamp in range(3):
            commit(lake, {stamp: stamp}, stamp=stamp)
            _publish(lake, stamp)
        first, second, third = _names(lake)
        lake.layout.part_path(second).unlink()
        lake.republish(at=AT + 9)
        kept, again = _names(lake)
        assert (kept, again in {second, third}) == (first, False)
        ids = [pq.read_table(lake.layout.part_path(name))["file_id"].to_pylist() for name in (kept, again)]
        assert ids == [[0], [1, 2]]
    assert checked(tmp_path, mend=False).damage == []


def test_size_classes() -> None:
    """Over years a row is seldom written again, there are few outputs, and no publish folds more than a class."""
    rng, rows = random.Random(SEED), [1_000_000]
    written = largest = 0
    for _ in range(3_000):
        new = rng.randrange(50, 150)
        folded = outputs._count_foldable(rows, new)
        merged = sum(rows[len(rows) - folded :]) + new
        rows = [*rows[: len(rows) - folded], merged]
        written += merged
        largest = max(largest, merged)
        assert len(rows) <= 25
    assert written < 12 * 3_000 * 100
    assert largest < 1_000_000
    assert rows[0] == 1_000_000, "what is large is not written again for so few"


COMMITS = 22
_LARGE = 1_000_000  # bytes: all raw parts are small


def documents(held: Lake) -> dict[int, list[int]]:
    """The commits whose documents of each file are kept, oldest first."""
    found = defaultdict(list)
    paths = [str(held.layout.part_path(part.name)) for part in held.ledger.parts() if part.table_name == RAW_TABLE]
    sql = f"SELECT file_id, _seq FROM read_parquet({paths}) WHERE kind = 'fetched' ORDER BY ALL"
    for file_id, seq in duckdb.execute(sql).fetchall():
        found[file_id].append(seq)
    return dict(found)


def _grow(lake: Path) -> Path:
    """Make a lake: file 1 came in once, file 2 with every commit, file 3 was deleted, file 4 came last."""
    with Lake(lake, doing="test") as held:
        for number in range(COMMITS):
            files = {2: number} | ({1: 0} if number == 0 else {}) | ({3: 0} if number < 5 else {})
            commit(held, files, gone=[3] if number == 5 else [])
        held.publish("", at=AT, complete=True, watermark=None)
        commit(held, {4: 0})
        held.publish("", at=AT, complete=True, watermark=None)
    return lake


@pytest.fixture
def lake(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of that lake."""
    return copy_lake(make_once(tmp_path_factory, "raw", lambda folder: _grow(folder / "lake")), tmp_path / "lake")


@pytest.mark.parametrize(("keep", "small"), sample([(1, 0), (3, 0), (1, _LARGE), (None, _LARGE), (3, _LARGE)], 3))
def test_the_newest_versions_stay(lake: Path, monkeypatch: pytest.MonkeyPatch, keep: int | None, small: int) -> None:
    """keep_raw_versions leaves the newest versions of each file, and the current one; a rebuild gives all rows."""
    monkeypatch.setattr(compaction, "SMALL_RAW_PART_BYTES", small)
    made, rows = Settings(lake=lake, keep_raw_versions=keep), "SELECT file_id, snap_count FROM files ORDER BY ALL"
    with Lake(lake, doing="test") as held:
        before = documents(held)
        assert [len(before[key]) for key in (1, 2, 3, 4)] == [1, COMMITS, 5, 1]
        assert compact_all(held, made)
        last = COMMITS if keep is None else keep
        assert documents(held) == {key: seqs[-last:] for key, seqs in before.items()}
        assert rebuild(held).files == 3
        assert not compact_all(held, made)
    with opened(lake) as db:
        assert db.execute(rows).fetchall() == [(1, 0), (2, COMMITS - 1), (4, 0)]
    assert checked(lake, read_data=True, mend=False).damage == []


def test_the_current_version_keeps_its_documents(lake: Path) -> None:
    """The current version keeps its documents however old it is; others expire before their rows are compacted."""
    with Lake(lake, doing="test") as held:
        going = find_expired_documents(held.layout, held.ledger, 1)
        assert {version for some in going.values() for version in some} == {
            *((2, seq) for seq in range(1, COMMITS)),
            *((3, seq) for seq in range(1, 5)),
        }
        with held.ledger.transaction() as db:
            db.execute("UPDATE file_version SET commit_seq = 4 WHERE file_id = 2")
        going = find_expired_documents(held.layout, held.ledger, 1)
        assert (2, 4) not in {version for some in going.values() for version in some}


@pytest.mark.soak
def test_sorting_goes_a_range_of_files_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding wide rows with less memory than they take at once succeeds, and the base is sorted by file."""
    monkeypatch.setattr(worker, "MEMORY_LIMIT", "40MB")
    monkeypatch.setattr(worker, "_MIN_CHUNK_BYTES", 8_000_000)
    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as held:
        for number in range(4):
            keys = range(number, 2_000, 4)
            wide = [
                {"file_id": key, "position": place, "comment": f"{key}-{place} " * 1_000}
                for key in keys
                for place in (1, 0)
            ]
            commit(held, dict.fromkeys(keys, 2), {"uploads": wide})
        commit(held, {5: 0})
        assert compact_all(held, Settings(lake=lake))
        parts = [part for part in held.ledger.parts() if part.table_name == "uploads"]
    read = [pq.read_table(lake / part.name, columns=["file_id", "position"]).to_pylist() for part in parts]
    rows = [(row["file_id"], row["position"]) for part in read for row in part]
    assert rows == [(key, place) for key in range(2_000) for place in (0, 1) if key != 5]
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        assert db.execute("SELECT sum(length(comment)) FROM uploads WHERE file_id = 7").fetchall() == [(8_000,)]
