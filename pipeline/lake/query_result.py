"""Rows of a query's result: streamed, as text, and as CSV that a spreadsheet reads without running it."""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.csv

from pipeline.csv_rows import escape_formula
from pipeline.lake.sql import sql_escape_formula, sql_identifier

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH_ROWS: Final = 20_000
_PLAIN_TYPE: Final = re.compile(
    r"U?(HUGE|BIG|SMALL|TINY)?INT|U?INTEGER|BOOLEAN|DECIMAL\(\d+,\d+\)|DOUBLE|FLOAT|DATE|TIME(STAMP)?\b[^\[]*|UUID"
)
"""Types whose text is a number or a date to a spreadsheet. An INTERVAL such as -1 day is a formula to it."""
_CSV_TYPES: Final = frozenset(
    {"BIGINT", "INTEGER", "SMALLINT", "TINYINT", "BOOLEAN", "DOUBLE", "VARCHAR", "TIMESTAMP", "DATE"}
)


def write_csv(result: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    """Write the rows as CSV in which no cell is a formula, and return their number."""
    columns = (
        f"{f'#{index}' if _PLAIN_TYPE.fullmatch(str(kind)) else sql_escape_formula(f'CAST(#{index} AS VARCHAR)')}"
        f" AS {sql_identifier(escape_formula(name))}"
        for index, (name, kind) in enumerate(zip(result.columns, result.types, strict=True), start=1)
    )
    return write_exact_csv(result.project(", ".join(columns)), target)


def write_exact_csv(result: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    """Write the rows as CSV with their values unchanged, and return their number."""
    reader = cast_to_text(result, _CSV_TYPES).to_arrow_reader(BATCH_ROWS)
    with pyarrow.csv.CSVWriter(target, reader.schema) as writer:
        return copy_batches(reader, writer)


def copy_batches(reader: pa.RecordBatchReader, writer: Any) -> int:
    """Pass every batch to a writer of Arrow, and return the number of rows."""
    count = 0
    for batch in _batches(reader):
        writer.write_batch(batch)
        count += batch.num_rows
    return count


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as error:  # Arrow wraps DuckDB's errors during the query
            raise duckdb.Error(str(error)) from None
        yield batch


def iter_rows(result: duckdb.DuckDBPyRelation) -> Iterator[tuple[Any, ...]]:
    """Yield the rows one by one. Raises `duckdb.Error` if the query fails while they are read."""
    for batch in _batches(result.to_arrow_reader(BATCH_ROWS)):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def cast_to_text(result: duckdb.DuckDBPyRelation, unchanged_types: frozenset[str]) -> duckdb.DuckDBPyRelation:
    """Return the rows with every column cast to DuckDB's text, except for columns of `unchanged_types`."""
    columns = (
        f"#{index}" if str(kind) in unchanged_types else f"CAST(#{index} AS VARCHAR)"
        for index, kind in enumerate(result.types, start=1)
    )
    names = map(sql_identifier, result.columns)
    return result.project(", ".join(f"{column} AS {name}" for column, name in zip(columns, names, strict=True)))
