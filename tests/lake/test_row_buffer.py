"""The row buffer: many commits become one part per table, and no row is lost, changed or moved within its file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lake.storage import parts
from pipeline.lake.storage.atomic_files import sha256_file
from pipeline.lake.storage.layout import LakeLayout
from pipeline.lake.storage.parts import RowBuffer
from schemas.tables import TABLES
from tests.lake.lake_builder import rows

if TYPE_CHECKING:
    from pathlib import Path

RUN = "20261121T000000Z-abc123"


def make_tables(file_ids: list[int], seq: int) -> dict[str, pa.Table]:
    """Return a row of two tables for each file; the upload's comment says where it was."""
    files = [{"file_id": file_id} for file_id in file_ids]
    uploads = [{"file_id": file_id, "comment": f"{seq}.{place}"} for place, file_id in enumerate(file_ids)]
    return {
        "files": rows("files", files, run_id=RUN, seq=seq),
        "uploads": rows("uploads", uploads, run_id=RUN, seq=seq),
    }


@given(
    group_bytes=st.sampled_from([1, 1_000, 2**23]),
    commits=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=6),
)
def test_rows_keep_their_order(
    tmp_path_factory: pytest.TempPathFactory, group_bytes: int, commits: list[list[int]]
) -> None:
    """Within a row group rows are sorted by file, those of one file in the order of commits and places."""
    layout = LakeLayout(tmp_path_factory.mktemp("lake"))
    layout.create_dirs(layout.folders(table.name for table in TABLES))
    buffer = RowBuffer(layout)
    sent = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.lake.storage.parts._MAX_PENDING_BYTES", group_bytes)
        for seq, file_ids in enumerate(commits, 7):
            buffer.add(make_tables(file_ids, seq), run_id=RUN, seq=seq)
            sent += [(file_id, f"{seq}.{place}") for place, file_id in enumerate(file_ids)]
        had_rows = buffer.has_rows
        parts = {part.table_name: part for part in buffer.write()}
    assert (had_rows, buffer.has_rows) == (True, False)
    assert buffer.write() == ()
    assert set(parts) == {"files", "uploads"}
    part = parts["uploads"]
    path = layout.part_path(part.name)
    assert (part.span, part.row_count) == ((7, 6 + len(commits)), len(sent))
    assert (part.bytes, part.sha256) == (path.stat().st_size, sha256_file(path))
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    found = [(row["file_id"], row["comment"]) for group in groups for row in group.to_pylist()]
    start = 0
    for group in groups:
        expected = sorted(sent[start : start + group.num_rows], key=lambda row: row[0])
        assert found[start : start + group.num_rows] == expected
        start += group.num_rows
    assert start == len(sent)
    assert len(groups) in {1: [len(commits)], 2**23: [1]}.get(group_bytes, range(1, len(commits) + 1))


def test_it_is_full(tmp_path: Path) -> None:
    """The buffer is full after so many files, and empty after a write."""
    layout = LakeLayout(tmp_path)
    layout.create_dirs(layout.folders(table.name for table in TABLES))
    buffer = RowBuffer(layout, max_files=5)
    found = []
    for seq, file_ids in enumerate(([1, 2, 3, 4], [5], [6, 7, 8, 9], [10]), 1):
        buffer.add(make_tables(file_ids, seq), run_id=RUN, seq=seq)
        found.append(buffer.is_full)
        if buffer.is_full:
            buffer.write()
            found.append(buffer.is_full)
    assert found == [False, True, False] * 2


def test_row_groups_do_not_depend_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of any size become row groups without a lost, doubled or moved row."""
    monkeypatch.setattr(parts, "ROW_GROUP_ROWS", 5)
    table = pa.table({"n": range(20)})
    batches = [table.slice(start, length).to_batches()[0] for start, length in ((0, 3), (3, 4), (7, 12), (19, 1))]
    groups = [group["n"].to_pylist() for group in parts.row_groups(batches, table.schema)]
    assert [number for group in groups for number in group] == list(range(20))
    assert [len(group) for group in groups[:2]] == [5, 5]
