"""Parts: Parquet files that are written once, and are durable and hashed before the ledger names them."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import LakeCorruptedError
from pipeline.lake.storage.atomic_files import sha256_file
from pipeline.lake.storage.layout import LakeLayout, Part, is_part_name, translate_os_errors, write_read_only
from schemas.tables import COMMIT_SEQ_COLUMN, FETCHED, RAW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
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
    with write_read_only(target) as temp:
        temp.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    return Part(layout.part_name(target), RAW_TABLE, seq, seq, len(versions), len(content), sha256)


def write_raw_rows(layout: LakeLayout, batches: Iterable[pa.Table], *, run_id: str, seq: int) -> Part:
    """Write rows as a raw part of commit `seq`, beside the part of its versions; columns may be missing.

    Each batch becomes a row group: reading one document reads those of its row group.
    """
    complete = (
        pa.table([rows[name] if name in rows.column_names else pa.nulls(len(rows)) for name in RAW.names], RAW.names)
        for rows in batches
    )
    target = _part_path(layout.documents_dir, run_id, seq, number=1)
    return write_batches(layout, target, complete, seqs=(seq, seq))


def write_batches(
    layout: LakeLayout, target: Path, batches: Iterable[pa.RecordBatch | pa.Table], *, seqs: tuple[int, int]
) -> Part:
    """Write batches of documents to `target` as they come, and return the part's entry for the ledger."""
    with write_read_only(target) as temp, pq.ParquetWriter(temp, RAW, **RAW_OPTIONS) as writer:
        for batch in batches:
            writer.write(batch.cast(RAW))
    return describe_part(layout, target, RAW_TABLE, seqs)


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
        yield describe_part(layout, target, table.name, seqs)
        number += 1


def merged_part_name(seqs: tuple[int, int], name_suffix: str, number: int) -> str:
    """Return the file name of a part of several commits; `number` counts the parts of its table."""
    return f"{seqs[1]:012d}-{name_suffix}-{number:04d}.parquet"


def describe_part(layout: LakeLayout, path: Path, table_name: str, seqs: tuple[int, int]) -> Part:
    """Return the ledger's entry for a part, as it is."""
    rows: int = pq.read_metadata(path).num_rows
    return Part(layout.part_name(path), table_name, *seqs, rows, path.stat().st_size, sha256_file(path))


def check_parts_exist(layout: LakeLayout, parts: Iterable[Part]) -> None:
    """Raise `LakeCorruptedError` when a part is missing or has another size. Takes 3 us per part."""
    root = str(layout.root)  # Path objects would double the time
    with translate_os_errors(layout.root):
        lost = [part.name for part in parts if _size(f"{root}/{part.name}") != part.bytes]
    if lost:
        more = f" (and {len(lost) - 1:,} more)" if len(lost) > 1 else ""
        raise LakeCorruptedError(f"{lost[0]}{more} is missing or has another size.")


def check_documents_exist(layout: LakeLayout, parts: Iterable[Part]) -> None:
    """Raise `LakeCorruptedError` when a part of documents is missing or has another size."""
    check_parts_exist(layout, (part for part in parts if part.table_name == RAW_TABLE))


def is_part_there(layout: LakeLayout, part: Part) -> bool:
    """Return whether the file of a part has its size."""
    return _size(str(layout.part_path(part.name))) == part.bytes


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

    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, RAW, **RAW_OPTIONS) as writer:
        for rows in map(build_rows, range(0, len(versions), RAW_ROW_GROUP_FILES)):
            # A reader has the pages of a row group in memory, several times over.
            wide = rows.num_rows * ROW_GROUP_BYTES // max(rows.nbytes, 1)
            writer.write_table(rows, row_group_size=max(1, min(ROW_GROUP_ROWS, wide)))
    return memoryview(sink.getvalue()).cast("B")  # Arrow's buffer has signed bytes, which equal no `bytes`


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


def is_own_part(path: Path) -> bool:
    """Return whether a file has the name of a part and its columns: a part is whole from when it has its name."""
    if not is_part_name(path.name) or path.is_symlink():
        return False
    try:
        return COMMIT_SEQ_COLUMN in pq.read_schema(path).names
    except (OSError, pa.ArrowException):
        return False
