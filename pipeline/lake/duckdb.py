"""DuckDB connections for the lake's own work, and what that work has in common."""

from __future__ import annotations

from contextlib import closing, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import duckdb

from pipeline.lake.duckdb_errors import translate_duckdb_errors
from pipeline.lake.parts import READ_BATCH_ROWS
from pipeline.lake.sql import UTC_NOW_SQL, sql_comment, sql_identifier, sql_literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from schemas.tables import Table

STORAGE_VERSION: Final = "v1.4.0"
"""Format of the database files that scanlake writes. DuckDB clients before 2.0 open it too."""

SMALL_BLOCKS: Final = 16 * 1024
LARGE_BLOCKS: Final = 256 * 1024
"""Sizes of the blocks of a database file. Scans of many rows are faster with large ones."""
MEMORY_LIMIT: Final = "250MB"  # of DuckDB; the process as a whole stays under 600 MB
LARGE_MEMORY_LIMIT: Final = "1GB"
"""For work that failed with `MEMORY_LIMIT`: parts of very wide rows need it."""
_NO_CHECKPOINT: Final = "1TB"  # size of the log that starts a checkpoint
_SORT_CHUNK_BYTES: Final = 96 * 1024 * 1024


@contextmanager
def open_worker_connection(spill: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB for work that must not grow with the lake: one thread, little memory, sorts spill below `spill`.

    Raises `StorageError` if the disk is full, `LakeCorruptedError` if a part is not readable.
    """
    with translate_duckdb_errors("The lake", reads_parts=True), duckdb.connect(":memory:") as db:
        _limit_resources(db, spill)
        yield db


@contextmanager
def create_database(
    path: Path, *, block_size: int = SMALL_BLOCKS, spill: Path | None = None, memory_limit: str = MEMORY_LIMIT
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Create a database at `path`, and yield a connection to it in a transaction. Sorts may spill below `spill`.

    Every table takes at least a block, so small blocks (in bytes) make a small database.
    """
    with _attach_database(path, spill, f", BLOCK_SIZE {block_size}", memory_limit) as db:
        db.execute("BEGIN")
        db.execute(f"CREATE MACRO main.utc_now() AS ({UTC_NOW_SQL})")
        yield db
        db.execute("COMMIT")


@contextmanager
def update_database(path: Path, *, spill: Path, keeps_row_groups: bool) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection to the database at `path`, in a transaction.

    `keeps_row_groups`: no row group is written again to merge it with new rows. That takes a constant second of CPU
    time less, and makes the file larger with every update.
    """
    with _attach_database(path, spill) as db:
        db.execute(f"SET checkpoint_threshold = '{_NO_CHECKPOINT}'")
        db.execute("BEGIN")
        yield db
        db.execute("COMMIT")
        if keeps_row_groups:
            with closing(db.cursor()) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT 1 FROM lake.meta._freshness").fetchall()
                db.execute("CHECKPOINT lake")  # beside another transaction it only adds


@contextmanager
def _attach_database(
    path: Path, spill: Path | None, options: str = "", memory_limit: str = MEMORY_LIMIT
) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as db:
        _limit_resources(db, spill, memory_limit)
        db.execute(f"ATTACH {sql_literal(str(path))} AS lake (STORAGE_VERSION '{STORAGE_VERSION}'{options})")
        db.execute("USE lake")
        yield db
        db.execute("USE memory")
        db.execute("DETACH lake")  # writes the log into the file


def _limit_resources(db: duckdb.DuckDBPyConnection, spill: Path | None, memory_limit: str = MEMORY_LIMIT) -> None:
    db.execute("SET threads = 1")
    db.execute("SET enable_progress_bar = false")  # DuckDB prints it to standard output, where --json goes
    if spill is not None:
        db.execute(f"SET memory_limit = '{memory_limit}'")
        db.execute(f"SET temp_directory = {sql_literal(str(spill))}")


def fill_table(
    db: duckdb.DuckDBPyConnection,
    name: str,
    comment: str,
    columns: Iterable[tuple[str, str]],
    rows: pa.Table,
    *,
    exists: bool,
) -> None:
    """Replace the rows of a table that exists, or create it with its comment and those of its columns."""
    db.register("incoming", rows)
    if exists:
        db.execute(f"DELETE FROM {name}")
        db.execute(f"INSERT INTO {name} FROM incoming")
    else:
        db.execute(f"CREATE TABLE {name} AS FROM incoming")
        db.execute(sql_comment("TABLE", name, comment, columns))
    db.unregister("incoming")


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
