"""Parts: Parquet files that are written once, and are durable and hashed before the ledger names them."""

from __future__ import annotations

import hashlib
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import LakeCorruptedError
from pipeline.lake.storage.atomic_files import sha256_file
from pipeline.lake.storage.layout import LakeLayout, Part, is_part_name, translate_os_errors, write_read_only
from schemas.tables import BY_NAME, COMMIT_SEQ_COLUMN, FETCHED, FILES, RAW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from schemas.file_versions import FileVersion
    from schemas.tables import Table

RAW_TABLE: Final = "documents"
ROW_GROUP_ROWS: Final = 51_200  # 25 of DuckDB's vectors; point look-ups take half the time of its own 122,880
READ_BATCH_ROWS: Final = ROW_GROUP_ROWS // 5
ROW_GROUP_BYTES: Final = 16 * 1024 * 1024
MAX_PART_ROWS: Final = 1_000_000
RAW_ROW_GROUP_FILES: Final = 250  # reading one document reads the documents of this many files
WRITE_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "write_page_checksum": True,
    "store_schema": False,
    # One page per column and row group: DuckDB decodes it in whole vectors, which makes an aggregate a sixth faster.
    "max_rows_per_page": ROW_GROUP_ROWS,
    "data_page_size": 1 << 26,
}
RAW_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "write_page_checksum": True,
    "store_schema": False,
    "use_dictionary": ["_run_id", COMMIT_SEQ_COLUMN, "fetch_signature", "kind"],  # no two documents are equal
}
_MAX_DICTIONARY_RATIO: Final = 0.5  # distinct values per row, up to which a dictionary makes the file smaller
_REPEATED_VALUE_BYTES: Final = 12  # in memory, of a value that the file's dictionary holds once
_MAX_FILES: Final = 16_384  # 200,000 files are 13 part groups; a run after a kill flattens at most so many again
_MAX_PENDING_BYTES: Final = 4 * 1024 * 1024  # of a table, as Arrow; a row group of so many is sorted and encoded
_SAMPLE_ROWS: Final = 4_096  # of the first row group; ten thousand choose the same columns and take three times as long
_WRITER_THREADS: Final = 4  # each waits for the disk twice


def part_schema(table_name: str) -> pa.Schema:
    """Return the schema of a table's parts, with field ids. Writers take it from here, not from the rows."""
    return RAW if table_name == RAW_TABLE else BY_NAME[table_name].arrow


def write_part(layout: LakeLayout, table_name: str, rows: pa.Table, *, run_id: str, seq: int) -> Part:
    """Write `rows` as a run's part of commit `seq`."""
    target = _part_path(layout.table_dir(table_name), run_id, seq)
    content = _encode_tables([rows], part_schema(table_name), WRITE_OPTIONS)
    return _write_content(layout, target, table_name, content, rows=rows.num_rows, seqs=(seq, seq))


def write_raw_part(
    layout: LakeLayout,
    versions: Sequence[FileVersion],
    digests: Sequence[bytes],
    *,
    run_id: str,
    seq: int,
    texts_from_list: bool = False,
) -> Part:
    """Write the documents of some versions as a run's raw part of commit `seq`; `digests` are those of `versions`."""
    target = _part_path(layout.documents_dir, run_id, seq)
    content = encode_documents(versions, digests, run_id=run_id, seq=seq, texts_from_list=texts_from_list)
    return _write_content(layout, target, RAW_TABLE, content, rows=len(versions), seqs=(seq, seq))


def write_raw_rows(layout: LakeLayout, batches: Iterable[pa.Table], *, run_id: str, seq: int) -> Part:
    """Write rows as a raw part of commit `seq`, beside the part of its versions; columns may be missing.

    Each batch becomes a row group: reading one document reads those of its row group.
    """
    complete = (
        pa.table([rows[name] if name in rows.column_names else pa.nulls(len(rows)) for name in RAW.names], RAW.names)
        for rows in batches
    )
    target = _part_path(layout.documents_dir, run_id, seq, number=1)
    return write_batches(layout, target, RAW_TABLE, complete, seqs=(seq, seq))


def write_batches(
    layout: LakeLayout,
    target: Path,
    table_name: str,
    batches: Iterable[pa.RecordBatch | pa.Table],
    *,
    seqs: tuple[int, int],
) -> Part:
    """Write the batches of a part to `target` as they come, and return its entry for the ledger."""
    schema, rows = part_schema(table_name), 0
    options = RAW_OPTIONS if table_name == RAW_TABLE else WRITE_OPTIONS
    with write_read_only(target) as temp, pq.ParquetWriter(temp, schema, **options) as writer:
        for batch in batches:
            writer.write(batch.cast(schema))
            rows += batch.num_rows
    return describe_part(layout, target, table_name, rows, seqs)


def write_parts(
    layout: LakeLayout, table: Table, batches: Iterator[pa.RecordBatch], *, seqs: tuple[int, int], name_suffix: str
) -> Iterator[Part]:
    """Write batches to as many parts as their rows need; the memory holds one row group at a time."""
    schema, folder = table.arrow, layout.table_dir(table.name)
    groups = row_groups(batches, schema)
    pending = next(groups, None)
    number = 0
    while pending is not None:
        target = folder / merged_part_name(seqs, name_suffix, number)
        rows = 0
        with write_read_only(target) as temp, pq.ParquetWriter(temp, schema, **_writer_options(pending)) as writer:
            while pending is not None and rows < MAX_PART_ROWS:
                writer.write_table(pending, row_group_size=ROW_GROUP_ROWS)
                rows += pending.num_rows
                pending = next(groups, None)
        yield describe_part(layout, target, table.name, rows, seqs)
        number += 1


def merged_part_name(seqs: tuple[int, int], name_suffix: str, number: int) -> str:
    """Return the file name of a part of several commits; `number` counts the parts of its table."""
    return f"{seqs[1]:012d}-{name_suffix}-{number:04d}.parquet"


def describe_part(layout: LakeLayout, path: Path, table_name: str, rows: int, seqs: tuple[int, int]) -> Part:
    """Return the ledger's entry for a part that was just written."""
    return Part(layout.part_name(path), table_name, *seqs, rows, path.stat().st_size, sha256_file(path))


def check_parts_exist(layout: LakeLayout, parts: Iterable[Part]) -> None:
    """Raise `LakeCorruptedError` when a part is missing or has another size. Takes 3 us per part."""
    root = str(layout.root)  # Path objects would double the time
    with translate_os_errors(layout.root):
        lost = [part.name for part in parts if _size(f"{root}/{part.name}") != part.bytes]
    if lost:
        more = f" (and {len(lost) - 1:,} more)" if len(lost) > 1 else ""
        raise LakeCorruptedError(f"{lost[0]}{more} is missing or has another size.")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - see `check_parts_exist`
    except (FileNotFoundError, NotADirectoryError):
        return -1


def check_part_intact(layout: LakeLayout, part: Part) -> None:
    """Raise `LakeCorruptedError` if a part is not what was written.

    Call it before its rows are written to another part, which would get a hash of its own: DuckDB does not compare
    the checksums of pages.
    """
    try:
        is_intact = sha256_file(layout.part_path(part.name)) == part.sha256
    except OSError as error:
        raise LakeCorruptedError(f"{part.name} cannot be read.") from error
    if not is_intact:
        raise LakeCorruptedError(f"{part.name} has changed since it was written.")


def _part_path(folder: Path, run_id: str, seq: int, number: int = 0) -> Path:
    name_suffix = run_id.rpartition("-")[2]  # the parts of a killed run and of the next one have different names
    return folder / f"{seq:012d}-{name_suffix}{f'-{number:04d}' if number else ''}.parquet"


def _write_content(
    layout: LakeLayout, target: Path, table_name: str, content: memoryview, *, rows: int, seqs: tuple[int, int]
) -> Part:
    """Write the content of a part to `target`, durably and read-only, and return its entry for the ledger."""
    with write_read_only(target) as temp:
        temp.write_bytes(content)
    return Part(layout.part_name(target), table_name, *seqs, rows, len(content), hashlib.sha256(content).hexdigest())


def encode_documents(
    versions: Sequence[FileVersion], digests: Sequence[bytes], *, run_id: str, seq: int, texts_from_list: bool = False
) -> memoryview:
    """Return the documents of some versions as a Parquet file in memory, built a few at a time."""

    def build_rows(start: int) -> pa.Table:
        chunk = versions[start : start + RAW_ROW_GROUP_FILES]
        columns = {
            "file_id": [version.file_id for version in chunk],
            "list_item": [version.list_item for version in chunk],
            "detail": [version.detail for version in chunk],
            "updated_at": [version.updated_at for version in chunk],
            "_fetched_at": [version.fetched_at for version in chunk],
            "_run_id": [run_id] * len(chunk),
            COMMIT_SEQ_COLUMN: [seq] * len(chunk),
            "digest": digests[start : start + RAW_ROW_GROUP_FILES],
            "fetch_signature": [version.fetch_signature for version in chunk],
            "is_stable": [version.is_stable for version in chunk],
            "instance_id": [version.instance for version in chunk],
            "texts_from_list": [texts_from_list] * len(chunk),
            "kind": [FETCHED] * len(chunk),
            "evidence": [None] * len(chunk),
            "scan_code": [None] * len(chunk),
        }
        return pa.table(columns, schema=RAW)

    return _encode_tables(map(build_rows, range(0, len(versions), RAW_ROW_GROUP_FILES)), RAW, RAW_OPTIONS)


def _encode_tables(chunks: Iterable[pa.Table], schema: pa.Schema, options: Mapping[str, Any]) -> memoryview:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, **options) as writer:
        for rows in chunks:
            _write_row_groups(writer, rows)
    return memoryview(sink.getvalue()).cast("B")  # Arrow's buffer has signed bytes, which equal no `bytes`


def _write_row_groups(writer: pq.ParquetWriter, rows: pa.Table) -> None:
    """Append rows to a part, in row groups of at most `ROW_GROUP_ROWS` rows and about `ROW_GROUP_BYTES`."""
    # A reader has the pages of a row group in memory, several times over.
    wide = rows.num_rows * ROW_GROUP_BYTES // max(rows.nbytes, 1)
    writer.write_table(rows, row_group_size=max(1, min(ROW_GROUP_ROWS, wide)))


def row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Collect batches to row groups of `ROW_GROUP_ROWS` rows, or of fewer rows that take `ROW_GROUP_BYTES`."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch.cast(schema))
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            group = pa.Table.from_batches(pending)
            yield group.slice(0, ROW_GROUP_ROWS)
            # The surplus begins the next group, so that groups do not depend on the size of the batches.
            pending = group.slice(ROW_GROUP_ROWS).to_batches()
            rows, size = max(rows - ROW_GROUP_ROWS, 0), 0
    if rows:
        yield pa.Table.from_batches(pending)


def _writer_options(sample: pa.Table) -> dict[str, Any]:
    """Return the options for rows like these: a dictionary for columns whose values repeat, for no others.

    By default Arrow starts a dictionary for every column, and stops in the middle of those that do not repeat.
    """
    first = sample.slice(0, READ_BATCH_ROWS)
    max_distinct = _MAX_DICTIONARY_RATIO * first.num_rows
    # `pyarrow.compute` would have a function that counts, but takes as long as pyarrow to import, in every command.
    repeating = [name for name in first.schema.names if len(first.column(name).drop_null().unique()) < max_distinct]
    return {**WRITE_OPTIONS, "use_dictionary": repeating or False, "dictionary_pagesize_limit": 1 << 26}


def estimate_memory(path: Path) -> int:
    """Estimate the bytes that a part's rows take in memory; the file holds a repeated value only once."""
    metadata = pq.read_metadata(path)
    size: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return size + int(metadata.num_rows * metadata.num_columns) * _REPEATED_VALUE_BYTES


def is_own_part(path: Path) -> bool:
    """Return whether a file has the name of a part and its columns: a part is whole from when it has its name."""
    if not is_part_name(path.name) or path.is_symlink():
        return False
    try:
        return COMMIT_SEQ_COLUMN in pq.read_schema(path).names
    except (OSError, pa.ArrowException):
        return False


# Rows that are not in parts yet


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
            return _write_content(self._layout, target, name, buffered.finish(), rows=buffered.rows, seqs=span)

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
            options = _writer_options(group.slice(0, _SAMPLE_ROWS))
            self._writer = pq.ParquetWriter(self._sink, self._table.arrow, **options)
        _write_row_groups(self._writer, group)
        self.rows += group.num_rows

    def finish(self) -> memoryview:
        if self._pending:
            self._write_row_group()
        if self._writer is not None:
            self._writer.close()
        return memoryview(self._sink.getvalue()).cast("B")  # Arrow's buffer has signed bytes, which equal no `bytes`
