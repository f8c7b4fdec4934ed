"""Parts: write-once Parquet files, on disk and checksummed before anything names them."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.lake.files import Layout, written_aside
from pipeline.lake.records import Part
from schemas.tables import RAW, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from schemas.versions import Version

RAW_TABLE: Final = "raw"
ROW_GROUP: Final = 50_000  # rows; halves point look-ups against DuckDB's own 122,880
WRITE_OPTIONS: Final[dict[str, Any]] = {"compression": "zstd", "write_page_checksum": True, "store_schema": False}


def write_part(layout: Layout, table_name: str, rows: pa.Table, *, seq: int, mark: str) -> Part:
    """Write `rows` as the part of commit `seq`; `mark` keeps apart the parts of a killed run and the next."""
    folder = layout.raw if table_name == RAW_TABLE else layout.parts(table_name)
    target = folder / f"{seq:012d}-{mark}.parquet"
    return write_file(layout, target, table_name, rows, (seq, seq))


def write_file(layout: Layout, target: Path, table_name: str, rows: pa.Table, seqs: tuple[int, int]) -> Part:
    """Write `rows` to `target`, durably, and say what stands in it."""
    content = encode(rows)
    with written_aside(target) as aside:
        aside.write_bytes(content)
    name = target.relative_to(layout.root).as_posix()
    return Part(name, table_name, *seqs, rows.num_rows, len(content), sha256(content).hexdigest())


def encode(rows: pa.Table) -> memoryview:
    """The Parquet file, in memory: a part is bounded by its commit, and a full disk leaves nothing half written."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=ROW_GROUP, **WRITE_OPTIONS)
    return memoryview(sink.getvalue()).cast("B")  # as bytes: signed ones equal no file


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


def raw_rows(versions: Sequence[Version], *, run_id: str, seq: int) -> pa.Table:
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
