"""Rows of commits that are not in parts yet: in memory, and compressed as soon as there is a row group of them.

A commit needs only its documents to be durable. The rows of many commits become one part per table, sorted by file:
fewer, larger parts cost less processor time and fewer syncs of the disk, and no compaction has to merge them. After a
kill or a rollback they are made from the documents of these commits.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.flatten.flatten import flatten
from pipeline.lake.duckdb_errors import first_line
from pipeline.lake.part_rows import DefinitionIndex, iter_commits, iter_raw_batches, select_tombstones
from pipeline.lake.parts import RAW_TABLE, ROW_GROUP_ROWS, write_content, write_row_groups, writer_options
from pipeline.logs import get_logger
from schemas.tables import BY_NAME, DELETED_FILES, FILES
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.flatten.flatten import FlattenResult
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.models import Part
    from pipeline.lake.part_rows import RawCommit
    from schemas.tables import Table

_REASON = "the documents were damaged before their rows were written; the next sync fetches the file again"
_log = get_logger()
_MAX_FILES: Final = 16_384  # 200,000 files are 13 part groups; a run after a kill flattens at most so many again
_MAX_PENDING_BYTES: Final = 4 * 1024 * 1024  # of a table, as Arrow; a row group of so many is sorted and encoded
_SAMPLE_ROWS: Final = 4_096  # of the first row group; ten thousand choose the same columns and take three times as long
_WRITER_THREADS: Final = 4  # each waits for the disk twice


def write_pending_rows(
    layout: LakeLayout, ledger: Ledger, on_commit: Callable[[RawCommit, FlattenResult], None] | None = None
) -> None:
    """Write the pending rows of the lake as parts, if there are any; show each commit to `on_commit`.

    Raises `StorageError`. A file whose documents cannot be read leaves the tables, and the next sync fetches it again.
    """
    first = ledger.properties.pending_rows_from
    if first is None:
        return
    raw = [part for part in ledger.parts() if part.table_name == RAW_TABLE and part.first_commit_seq >= first]
    definitions = DefinitionIndex(ledger)
    buffer = RowBuffer(layout, span=(first, ledger.next_commit_seq() - 1))
    flattened: set[tuple[int, int]] = set()
    written: list[Part] = []
    for part in raw:
        try:
            for batch in iter_raw_batches(layout, [part.name]):
                buffer.add({DELETED_FILES.name: select_tombstones(batch)}, run_id=_name_parts(), seq=first)
                for commit in iter_commits(batch):
                    flat = flatten(
                        commit.versions,
                        run_id=commit.run_id,
                        seq=commit.seq,
                        known_definitions=definitions.select_known(commit.seq),
                        texts_from_list=commit.texts_from_list,
                    )
                    definitions.written |= flat.definitions
                    if on_commit is not None:
                        on_commit(commit, flat)
                    buffer.add(flat.tables, run_id=_name_parts(), seq=commit.seq)
                    if (files := flat.tables.get(FILES.name)) is not None:
                        flattened.update((file_id, commit.seq) for file_id in files["file_id"].to_pylist())
        except (OSError, pa.ArrowException) as error:
            _log.warning("raw.read_failed", part=part.name, error=first_line(error))
        if buffer.is_full:
            written += buffer.write()
    written += buffer.write()
    # Before the rows count: a run that is killed in between finds the same files again.
    _forget_lost_files(ledger, set(ledger.file_commit_seqs((first, ledger.next_commit_seq()))) - flattened)
    lost_definitions = {name for name, seq in definitions.all.items() if seq >= first} - definitions.written
    if lost_definitions:
        ledger.delete_definitions(sorted(lost_definitions))
    ledger.add_rows(written)
    _log.info("rows.written", versions=len(flattened))


def _name_parts() -> str:
    """Return a run's id from which parts get a name of their own."""
    return f"rows-{secrets.token_hex(3)}"


def _forget_lost_files(ledger: Ledger, lost: set[tuple[int, int]]) -> None:
    if lost:
        run = ledger.last_run()
        documents = {file_id: b'{"id": %d}' % file_id for file_id, _ in sorted(lost)}
        run_id = "" if run is None else run.run_id
        ledger.queue_refetch(documents, incomplete=set(documents), reason=_REASON, run_id=run_id, at=now_us())


# Buffer of rows


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

    def add(self, tables: Mapping[str, pa.Table], *, run_id: str, seq: int) -> None:
        """Add the rows of a commit, by table. Commits come in order; a commit may come in pieces."""
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

        def write_table(name: str) -> Part:
            target = self._layout.table_dir(name) / f"{span[1]:012d}-{run_id.rpartition('-')[2]}-0000.parquet"
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
