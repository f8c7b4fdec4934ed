"""Outputs: the catalog's rows as Parquet files, folded by size classes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from pipeline.emulator import Emulator
from pipeline.lake.catalog import outputs
from pipeline.lake.lake import Lake
from tests.lake.corruption import checked
from tests.lake.lake_builder import AT, commit, undeclared_parts
from tests.lake.operations import fold_all
from tests.sync.sync_harness import SEED, asked, check_equal, synced

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


@pytest.mark.parametrize("stop", ["before", "after"])
def test_a_kill_beside_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str) -> None:
    """Killed before or after the catalog and its outputs are recorded, the next publish has both."""
    with Lake(tmp_path, doing="test") as lake:
        commit(lake, {1: 1}, stamp=1)
        _publish(lake, 1)
        commit(lake, {2: 1}, stamp=2)
        real = lake.ledger.record_catalog

        def record(*arguments: object, **options: object) -> None:
            if stop == "after":
                real(*arguments, **options)  # type: ignore[arg-type]
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(lake.ledger, "record_catalog", record)
            with pytest.raises(KeyboardInterrupt):
                _publish(lake, 2)
    with Lake(tmp_path, doing="test") as lake:
        lake.republish(at=AT + 3)
        read = [pq.read_table(lake.layout.part_path(name))["file_id"].to_pylist() for name in _names(lake)]
        assert sorted(file_id for ids in read for file_id in ids) == [1, 2]
    assert checked(tmp_path, mend=False).damage == []
