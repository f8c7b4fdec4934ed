"""Rows of commits that are not in parts yet: in memory, and compressed as soon as there is a row group of them.

A commit needs only its documents to be durable. The rows of many commits become one part per table, sorted by file:
fewer, larger parts cost less processor time and fewer syncs of the disk, and no compaction has to merge them.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.lake.parts import ROW_GROUP_ROWS, merged_part_name, write_content, write_row_groups, writer_options
from schemas.tables import BY_NAME, FILES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.models import Part
    from schemas.tables import Table

_MAX_FILES: Final = 16_384  # 200,000 files are 13 part groups; a run after a kill flattens at most so many again
_MAX_PENDING_BYTES: Final = 4 * 1024 * 1024  # of a table, as Arrow; a row group of so many is sorted and encoded
_SAMPLE_ROWS: Final = 4_096  # of the first row group; ten thousand choose the same columns and take three times as long
_WRITER_THREADS: Final = 4  # each waits for the disk twice


class RowBuffer:
    """The pending rows of consecutive commits of one run. They are lost with the process; their documents are not."""

    def __init__(self, layout: LakeLayout, *, max_files: int = _MAX_FILES, span: tuple[int, int] | None = None) -> None:
        """Create an empty buffer for the parts of a lake. `span`: all parts have these commits, not those of the rows.

        It is full with `max_files` files.
        """
        self._layout, self._max_files, self._span = layout, max_files, span
        self._tables: dict[str, _TableBuffer] = {}
        self._run_id = ""
        self._seqs: list[int] = []
        self._files = 0

    @property
    def has_rows(self) -> bool:
        """Whether rows are pending."""
        return bool(self._tables)

    @property
    def is_full(self) -> bool:
        """Whether the rows are enough for parts."""
        return self._files >= self._max_files

    def add(self, tables: Mapping[str, pa.Table], *, run_id: str = "", seq: int = 0) -> None:
        """Add the rows of a commit, by table. Commits come in order; a commit may come in pieces.

        A buffer with a span needs neither run nor commit.
        """
        self._run_id = run_id
        self._seqs.append(seq)
        for name, rows in tables.items():
            if not rows.num_rows:
                continue
            if name not in self._tables:
                self._tables[name] = _TableBuffer(BY_NAME[name])
            self._tables[name].add(rows)
        if FILES.name in tables:
            self._files += tables[FILES.name].num_rows

    def write(self) -> tuple[Part, ...]:
        """Write the rows as one part per table, durably, and empty the buffer. Raises `StorageError`."""
        tables, seqs, run_id = self._tables, self._seqs, self._run_id
        self._tables, self._seqs, self._files = {}, [], 0
        if not tables:
            return ()
        span = self._span or (seqs[0], seqs[-1])
        suffix = secrets.token_hex(3) if self._span else run_id.rpartition("-")[2]  # parts of one span differ by it

        def write_table(name: str) -> Part:
            target = self._layout.table_dir(name) / merged_part_name(span, suffix, 0)
            buffered = tables[name]
            return write_content(self._layout, target, name, buffered.finish(), rows=buffered.rows, seqs=span)

        with ThreadPoolExecutor(_WRITER_THREADS, thread_name_prefix="disk") as disk:
            return tuple(disk.map(write_table, tables))


class _TableBuffer:
    """Rows of one table: the last ones as Arrow, the earlier ones as row groups of a Parquet file in memory."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._sink = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0
        self.rows = 0

    def add(self, rows: pa.Table) -> None:
        self._pending.append(rows)
        self._pending_rows += rows.num_rows
        self._pending_bytes += rows.nbytes
        if self._pending_rows >= ROW_GROUP_ROWS or self._pending_bytes >= _MAX_PENDING_BYTES:
            self._write_row_group()

    def _write_row_group(self) -> None:
        group = pa.concat_tables(self._pending)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        if self._table.is_per_file:
            group = group.sort_by("file_id")  # a stable sort: the rows of a file keep their order
        if self._writer is None:
            options = writer_options(group.slice(0, _SAMPLE_ROWS))
            self._writer = pq.ParquetWriter(self._sink, self._table.arrow, **options)
        write_row_groups(self._writer, group)
        self.rows += group.num_rows

    def finish(self) -> memoryview:
        if self._pending:
            self._write_row_group()
        if self._writer is not None:
            self._writer.close()
        return memoryview(self._sink.getvalue()).cast("B")  # Arrow's buffer has signed bytes, which equal no `bytes`
