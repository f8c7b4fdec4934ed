"""The documents as received: how many versions of a file are kept, and what folding many wide rows takes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline.lake import compaction
from pipeline.lake.catalog import duckdb as worker
from pipeline.lake.compaction import find_expired_documents
from pipeline.lake.lake import Lake
from pipeline.lake.rebuild import rebuild
from pipeline.lake.storage.parts import RAW_TABLE
from pipeline.settings.settings import Settings
from tests.lake.corruption import checked
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import compact_all
from tests.lake_copies import copy_lake
from tests.made_once import make_once
from tests.soaking import sample
from tests.sync.sync_harness import opened

if TYPE_CHECKING:
    from pathlib import Path

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
