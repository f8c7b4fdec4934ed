"""DuckDB connections for the lake's own work, and what that work has in common."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.atomic_files import temp_name
from pipeline.lake.duckdb_files import open_instance, read_database, translate_duckdb_errors
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.sql import sql_comment, sql_identifier, sql_literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from schemas.tables import Table

STORAGE_VERSION: Final = "v1.4.0"
"""Format of the database files that scanlake writes. DuckDB clients before 2.0 open it too."""

_BLOCK_BYTES: Final = 64 * 1024
"""Size of the blocks of a database file.

Every table takes at least a block, and every update of one another, so small blocks make a small database. Below 64 KiB
DuckDB does not compress integers. With its default of 256 KiB a catalog is larger, and scans take the same time.
"""
_ROW_GROUP_ROWS: Final = 61_440
"""Rows of a row group, half of DuckDB's default.

A build has a row group of every column in memory: 24 MB less in a first sync. Scans take the same time, look-ups a
tenth less; a large file is a tenth larger.
"""
MEMORY_LIMIT: Final = "250MB"  # of DuckDB; the process as a whole stays under 600 MB
BUILD_MEMORY_LIMIT: Final = "130MB"
"""For a new catalog, which a sync builds beside all else that it has in memory."""
UPDATE_MEMORY_LIMIT: Final = "100MB"
"""For an update of a catalog, which takes no less time with more."""
LARGE_MEMORY_LIMIT: Final = "1GB"
"""For work that failed with less: parts of very wide rows need it."""
_MIN_CHUNK_BYTES: Final = 32 * 1024 * 1024
_MAX_CHUNK_BYTES: Final = 96 * 1024 * 1024
"""Bytes in memory of the rows that one query sorts. Small ones take less memory, but each query reads every part."""
_CHEAP_CHUNKS: Final = 8


@contextmanager
def open_worker_connection(spill: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB for work that must not grow with the lake: one thread, little memory, sorts spill below `spill`.

    Raises `StorageError` if the disk is full, `LakeCorruptedError` if a part is not readable.
    """
    with translate_duckdb_errors("The lake", reads_parts=True), open_instance() as db:
        _limit_resources(db, spill)
        yield db


@contextmanager
def write_database(
    path: Path, *, spill: Path, memory_limit: str = MEMORY_LIMIT, settings: Sequence[str] = ()
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection to the database at `path`, new or not, in a transaction. Sorts may spill below `spill`."""
    with _attach_database(path, spill, memory_limit) as db:
        for setting in settings:
            db.execute(f"SET {setting}")
        db.execute("BEGIN")
        yield db
        db.execute("COMMIT")


def copy_database(source: Path, target: Path, *, spill: Path) -> None:
    """Write the contents of a database, comments included, to the new file `target`, without deleted rows and waste."""
    with _attach_database(target, spill, BUILD_MEMORY_LIMIT) as db:
        db.execute(f"ATTACH {sql_literal(str(source))} AS former (READ_ONLY)")
        db.execute("COPY FROM DATABASE former TO lake")
        db.execute("DETACH former")


@contextmanager
def halve_memory(db: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Leave half of DuckDB's memory to others in the block: it gives back blocks that it only keeps for later."""
    ((former,),) = db.execute("SELECT current_setting('memory_limit')").fetchall()
    size, unit = former.split()
    with suppress(duckdb.OutOfMemoryException):  # it needs more; nothing has changed then
        db.execute(f"SET memory_limit = '{float(size) / 2:.1f} {unit}'")
    try:
        yield
    finally:
        db.execute(f"SET memory_limit = '{former}'")


def count_used_bytes(path: Path) -> int:
    """Return the bytes of the blocks of a database that are in use."""
    with read_database(path) as db:
        sql = "SELECT block_size * used_blocks FROM pragma_database_size() WHERE database_name = current_database()"
        used: int = db.execute(sql).fetchall()[0][0]
        return used


@contextmanager
def _attach_database(path: Path, spill: Path, memory_limit: str) -> Iterator[duckdb.DuckDBPyConnection]:
    options = (
        f"STORAGE_VERSION '{STORAGE_VERSION}'",
        f"ROW_GROUP_SIZE {_ROW_GROUP_ROWS}",
        f"BLOCK_SIZE {_BLOCK_BYTES}",
    )
    with open_instance() as db:
        _limit_resources(db, spill, memory_limit)
        db.execute(f"ATTACH {sql_literal(str(path))} AS lake ({', '.join(options)})")
        db.execute("USE lake")
        yield db
        db.execute("USE memory")
        db.execute("DETACH lake")  # writes the log into the file


def _limit_resources(db: duckdb.DuckDBPyConnection, spill: Path, memory_limit: str = MEMORY_LIMIT) -> None:
    db.execute(f"SET memory_limit = '{memory_limit}'")
    with translate_os_errors(spill):
        spill.mkdir(exist_ok=True)
    db.execute(f"SET temp_directory = {sql_literal(str(spill / temp_name('duckdb')))}")


def create_table(
    db: duckdb.DuckDBPyConnection, name: str, comment: str, columns: Sequence[tuple[str, str, str]]
) -> None:
    """Create a table without rows; `columns` has (name, SQL type, comment) of each column."""
    definitions = ", ".join(f"{sql_identifier(column)} {sql_type}" for column, sql_type, _ in columns)
    db.execute(f"CREATE TABLE {name} ({definitions})")
    write_comments(db, "TABLE", name, comment, [(column, text) for column, _, text in columns])


def fill_table(db: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    """Write all rows of a table, instead of those that it has."""
    db.execute(f"DELETE FROM {name}")
    if rows.num_rows:
        db.register("incoming", rows)
        db.execute(f"INSERT INTO {name} FROM incoming")
        db.unregister("incoming")


def write_comments(
    db: duckdb.DuckDBPyConnection, kind: str, name: str, comment: str, columns: Iterable[tuple[str, str]]
) -> None:
    """Comment a table or view and its columns, given as (name, comment)."""
    db.execute(sql_comment(kind, name, comment, columns))


def split_sorted_query(db: duckdb.DuckDBPyConnection, source: str, table: Table, *, size: int) -> Iterator[str]:
    """Yield queries that together return the rows of `source`, sorted by file; `size` estimates their bytes in memory.

    Each sorts one range of files, so small that it fits. DuckDB's own sort spills, but fails on many wide rows when it
    has little memory.
    """
    if not table.is_per_file:
        yield f"SELECT * FROM ({source})"
        return
    bounds: list[int] = []
    chunk_bytes = min(max(size // _CHEAP_CHUNKS, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)
    if (chunks := -(-size // chunk_bytes)) > 1:
        quantiles = [number / chunks for number in range(1, chunks)]
        ((values,),) = db.execute(f"SELECT approx_quantile(file_id, {quantiles}) FROM ({source})").fetchall()
        bounds = sorted(set(values or ()))
    order = "file_id, position" if "position" in table.arrow.names else "file_id"
    for low, high in pairwise([None, *bounds, None]):
        conditions = [f"file_id >= {low}"] * (low is not None) + [f"file_id < {high}"] * (high is not None)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        yield f"SELECT * FROM ({source}){where} ORDER BY {order}"
