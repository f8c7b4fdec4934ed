"""A query's result as CSV or Parquet, written by Arrow. Each writer returns the number of rows."""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow.csv
import pyarrow.parquet

from pipeline.lake.query_result import BATCH_ROWS, read_batches
from pipeline.lake.query_table import cast_to_text
from pipeline.lake.sql import sql_escape_formula, sql_identifier
from pipeline.text_tables import escape_formula

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_PLAIN_TYPE: Final = re.compile(
    r"U?(HUGE|BIG|SMALL|TINY)?INT|U?INTEGER|BOOLEAN|DECIMAL\(\d+,\d+\)|DOUBLE|FLOAT|DATE|TIME(STAMP)?\b[^\[]*|UUID"
)
"""Types whose text is a number or a date to a spreadsheet. An INTERVAL such as -1 day is a formula to it."""
_CSV_TYPES: Final = frozenset(
    {"BIGINT", "INTEGER", "SMALLINT", "TINYINT", "BOOLEAN", "DOUBLE", "VARCHAR", "TIMESTAMP", "DATE"}
)


def write_parquet(result: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    """Write the rows as Parquet."""
    reader = result.to_arrow_reader(BATCH_ROWS)
    with pyarrow.parquet.ParquetWriter(target, reader.schema, compression="zstd") as writer:
        return _copy_batches(reader, writer)


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
        return _copy_batches(reader, writer)


def _copy_batches(reader: pa.RecordBatchReader, writer: Any) -> int:
    """Pass every batch to a writer of Arrow, and return the number of rows."""
    count = 0
    for batch in read_batches(reader):
        writer.write_batch(batch)
        count += batch.num_rows
    return count
