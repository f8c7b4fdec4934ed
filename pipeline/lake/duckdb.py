"""DuckDB connections for the lake's own work, and what that work has in common."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import duckdb

from pipeline.lake.duckdb_errors import translate_duckdb_errors
from pipeline.lake.parts import READ_BATCH_ROWS
from pipeline.lake.sql import sql_identifier, sql_literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from schemas.tables import Table

STORAGE_VERSION: Final = "v1.4.0"
"""Format of the database files that scanlake writes. DuckDB clients before 2.0 open it too."""

MEMORY_LIMIT: Final = "250MB"  # of DuckDB; the process as a whole stays under 600 MB
_SORT_CHUNK_BYTES: Final = 96 * 1024 * 1024


@contextmanager
def open_worker_connection(spill: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB for work that must not grow with the lake: one thread, little memory, sorts spill below `spill`.

    Raises `StorageError` if the disk is full, `LakeCorruptedError` if a part is not readable.
    """
    with translate_duckdb_errors("The lake", reads_parts=True), duckdb.connect(":memory:") as db:
        db.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        db.execute("SET threads = 1")
        db.execute(f"SET temp_directory = {sql_literal(str(spill))}")
        db.execute("SET enable_progress_bar = false")  # DuckDB prints it to standard output, where --json goes
        yield db


def bind_empty_read_parquet(db: duckdb.DuckDBPyConnection, columns: Mapping[str, str]) -> None:
    """Shadow `read_parquet` by a macro that returns no rows of these columns, given as {name: SQL type}.

    DuckDB binds a view when it is created. With the macro it does so although the parts may be at a path that only
    readers see.
    """
    values = ", ".join(f"NULL::{sql_type} AS {sql_identifier(name)}" for name, sql_type in columns.items())
    macro = f"read_parquet(paths, union_by_name := true) AS TABLE SELECT {values} WHERE false"
    db.execute(f"CREATE OR REPLACE TEMP MACRO {macro}")


def read_sorted_batches(
    db: duckdb.DuckDBPyConnection, source: str, table: Table, *, size: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query, sorted by file; `size` estimates their bytes in memory.

    One range of files is sorted at a time, each so small that it fits. DuckDB's own sort spills, but fails on many
    wide rows when it has little memory.
    """
    bounds: list[int] = []
    chunks = -(-size // _SORT_CHUNK_BYTES)
    if table.is_per_file and chunks > 1:
        quantiles = [number / chunks for number in range(1, chunks)]
        ((values,),) = db.execute(f"SELECT approx_quantile(file_id, {quantiles}) FROM ({source})").fetchall()
        bounds = sorted(set(values or ()))
    order = " ORDER BY file_id" + (", position" if "position" in table.arrow.names else "")
    for low, high in pairwise([None, *bounds, None]):
        conditions = [f"file_id >= {low}"] * (low is not None) + [f"file_id < {high}"] * (high is not None)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        rows: Any = db.sql(f"SELECT * FROM ({source}){where}{order if table.is_per_file else ''}")
        yield from rows.to_arrow_reader(READ_BATCH_ROWS)
