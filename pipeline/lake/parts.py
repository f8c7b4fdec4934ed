"""Parts: write-once Parquet files, on disk and checksummed before anything names them."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.lake.files import Layout, written_aside
from pipeline.lake.records import Part
from schemas.tables import FIELDS, FORM_ANSWERS, RAW, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from schemas.versions import Version

RAW_TABLE: Final = "raw"
NAMED: Final = {FIELDS.name: "name", FORM_ANSWERS.name: "label"}
"""Tables whose rows go by names that people want as columns, and the column that holds them."""
ROW_GROUP: Final = 51_200  # rows, 25 of DuckDB's vectors; halves point look-ups against its own 122,880
BATCH: Final = ROW_GROUP // 5  # rows that are asked of a query at once
GROUP_BYTES: Final = 16 * 1024 * 1024
_DOCUMENTS: Final = 250  # files whose documents make a row group; who asks for one reads no more than these
WRITE_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "write_page_checksum": True,
    "store_schema": False,
    # One page a column and row group: DuckDB decodes it in whole vectors, which takes a sixth off an aggregate.
    "max_rows_per_page": ROW_GROUP,
    "data_page_size": 1 << 26,
}
RAW_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "write_page_checksum": True,
    "store_schema": False,
    "use_dictionary": ["_run_id", "_seq"],  # no two documents are the same
}
_REPEATS: Final = 0.5  # distinct values a row, up to which a dictionary pays


def names_in(tables: Mapping[str, pa.Table]) -> Counter[tuple[str, str]]:
    """How often each name occurs in rows, by (table, name): what the wide views have columns for."""
    found: Counter[tuple[str, str]] = Counter()
    for table, rows in tables.items():
        if (column := NAMED.get(table)) is not None:
            for each in rows.column(column).drop_null().value_counts().to_pylist():
                found[table, each["values"]] += each["counts"]
    return found


def write_part(layout: Layout, table_name: str, rows: pa.Table, *, run_id: str, seq: int) -> Part:
    """Write `rows` as a run's part of commit `seq`."""
    return write_file(layout, _place(layout.parts(table_name), run_id, seq), table_name, rows, (seq, seq))


def write_documents(layout: Layout, versions: Sequence[Version], *, run_id: str, seq: int) -> Part:
    """Write the documents of some versions as a run's raw part of commit `seq`."""
    content = encode_documents(versions, run_id=run_id, seq=seq)
    name, size, hash_ = _keep(layout, _place(layout.raw, run_id, seq), content)
    return Part(name, RAW_TABLE, seq, seq, len(versions), size, hash_)


def write_file(layout: Layout, target: Path, table_name: str, rows: pa.Table, seqs: tuple[int, int]) -> Part:
    """Write `rows` to `target`, durably, and say what stands in it."""
    content = encode(rows, RAW_OPTIONS if table_name == RAW_TABLE else WRITE_OPTIONS)
    name, size, hash_ = _keep(layout, target, content)
    return Part(name, table_name, *seqs, rows.num_rows, size, hash_)


def _place(folder: Path, run_id: str, seq: int) -> Path:
    mark = run_id.rpartition("-")[2]  # keeps apart the parts of a killed run and the next
    return folder / f"{seq:012d}-{mark}.parquet"


def _keep(layout: Layout, target: Path, content: memoryview) -> tuple[str, int, str]:
    """Put a part on disk, durably: its name, size and hash."""
    with written_aside(target) as aside:
        aside.write_bytes(content)
    return target.relative_to(layout.root).as_posix(), len(content), sha256(content).hexdigest()


def encode(rows: pa.Table, options: Mapping[str, Any] = WRITE_OPTIONS) -> memoryview:
    """The Parquet file, in memory: a part is bounded by its commit, and a full disk leaves nothing half written."""
    return _encoded([rows], rows.schema, options)


def encode_documents(versions: Sequence[Version], *, run_id: str, seq: int) -> memoryview:
    """The Parquet file of some versions' documents. Few at a time are in memory a second time."""
    some = (versions[first : first + _DOCUMENTS] for first in range(0, len(versions), _DOCUMENTS))
    return _encoded((_raw_rows(each, run_id=run_id, seq=seq) for each in some), RAW, RAW_OPTIONS)


def _encoded(chunks: Iterable[pa.Table], schema: pa.Schema, options: Mapping[str, Any]) -> memoryview:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, **options) as writer:
        for rows in chunks:
            writer.write_table(rows, row_group_size=ROW_GROUP)
    return memoryview(sink.getvalue()).cast("B")  # as bytes: signed ones equal no file


def row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Batches gathered to row groups: as many rows as read best, fewer where they are so wide that memory ends."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch.cast(schema))
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROW_GROUP or size >= GROUP_BYTES:
            gathered = pa.Table.from_batches(held)
            yield gathered.slice(0, ROW_GROUP)
            # What is too much begins the next one: row groups are the same however the rows came.
            held = gathered.slice(ROW_GROUP).to_batches()
            rows, size = max(rows - ROW_GROUP, 0), 0
    if rows:
        yield pa.Table.from_batches(held)


def options_for(sample: pa.Table) -> dict[str, Any]:
    """How to write rows like these for years of reading: a dictionary where values repeat, and nowhere else.

    Arrow alone begins a dictionary for every column, and gives up in the middle of those that never repeat.
    """
    first = sample.slice(0, BATCH)
    few = _REPEATS * first.num_rows
    repeating = [name for name in first.schema.names if pc.count_distinct(first.column(name)).as_py() < few]
    return {**WRITE_OPTIONS, "use_dictionary": repeating or False, "dictionary_pagesize_limit": 1 << 26}


def empty_part(layout: Layout, table_name: str) -> Path:
    """The path of a table's empty part. It leads every list of parts and so declares the columns."""
    return layout.parts(table_name) / "empty.parquet"


def write_empty_parts(layout: Layout) -> None:
    """Write each table's empty part, anew when its columns have changed."""
    for table in TABLES:
        target = empty_part(layout, table.name)
        content = encode(table.arrow.empty_table())
        if not target.exists() or target.read_bytes() != content:
            with written_aside(target) as aside:
                aside.write_bytes(content)


def _raw_rows(versions: Sequence[Version], *, run_id: str, seq: int) -> pa.Table:
    """The documents of some versions, as received."""
    columns = {
        "file_id": [version.file_id for version in versions],
        "list_item": [version.list_item for version in versions],
        "detail": [version.detail for version in versions],
        "updated_at": [version.updated_at for version in versions],
        "_fetched_at": [version.fetched_at for version in versions],
        "_run_id": [run_id] * len(versions),
        "_seq": [seq] * len(versions),
    }
    return pa.table(columns, schema=RAW)
