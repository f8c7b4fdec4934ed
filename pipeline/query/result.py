"""A query's result as JSON, streamed row by row through Arrow. Each writer returns the number of rows."""

from __future__ import annotations

import itertools
import json
import re
from typing import IO, TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from pipeline.lake.catalog.sql import sql_literal

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

BATCH_ROWS: Final = 20_000
_NOT_FINITE: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|(-?(?:NaN|Infinity))')
"""A string of JSON, or a number that DuckDB writes although JSON has none."""
_INSTANT_TYPE: Final = re.compile(r"TIMESTAMP[^\[]*")


def write_json(result: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    """Write one JSON object with `columns`, `rows` and `count`, a line for each row."""
    columns = [{"name": name, "type": str(kind)} for name, kind in zip(_name_keys(result), result.types, strict=True)]
    target.write(b'{"columns": ' + json.dumps(columns).encode() + b', "rows": [')
    count = 0
    for line in _json_rows(result):
        target.write((b",\n" if count else b"\n") + line)
        count += 1
    target.write(b'\n], "count": %d, "ok": true, "exit_code": 0}\n' % count)
    return count


def write_jsonl(result: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    """Write each row as a JSON object on a line of its own."""
    count = 0
    for line in _json_rows(result):
        target.write(line + b"\n")
        count += 1
    return count


def _json_rows(result: duckdb.DuckDBPyRelation) -> Iterator[bytes]:
    """Yield each row as a JSON object; instants are ISO-8601 in UTC, values of type JSON as they are."""
    members = (
        f"{sql_literal(json.dumps(name, ensure_ascii=False) + ':')} || coalesce({_to_json(index, str(kind))}, 'null')"
        for index, (name, kind) in enumerate(zip(_name_keys(result), result.types, strict=True), start=1)
    )
    for (line,) in iter_rows(result.project(f"concat('{{', concat_ws(',', {', '.join(members)}), '}}') AS line")):
        text = line.encode()
        yield _NOT_FINITE.sub(_quote_number, text) if b"NaN" in text or b"Infinity" in text else text


def _name_keys(result: duckdb.DuckDBPyRelation) -> list[str]:
    """Return the names of the columns, with a number if an earlier one is equal: an object has each key once."""
    names = dict[str, str]()
    for name in result.columns:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        unique = next(key for key in itertools.chain([name], numbered) if key.lower() not in names)
        names[unique.lower()] = unique
    return list(names.values())


def _to_json(index: int, kind: str) -> str:
    """Return the SQL of a column's value as JSON text."""
    if kind == "JSON":  # as it is, on one line: `to_json` would round its numbers, and a string has no end of line
        return f"translate(#{index}::VARCHAR, chr(10) || chr(13), '  ')"
    if not _INSTANT_TYPE.fullmatch(kind):
        return f"to_json(#{index})::VARCHAR"
    instant = f"CAST(#{index} AS TIMESTAMP)" if "ZONE" in kind else f"#{index}"  # the type with a zone is UTC here
    text = f"CAST({instant} AS VARCHAR)"
    return f"to_json(CASE WHEN isfinite({instant}) THEN replace({text}, ' ', 'T') || 'Z' ELSE {text} END)::VARCHAR"


def _quote_number(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] is None else b'"' + match[1] + b'"'


def read_batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches. Raises `duckdb.Error` if the query fails while they are read."""
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as error:  # Arrow wraps DuckDB's errors during the query
            raise duckdb.Error(str(error)) from None
        yield batch


def iter_rows(result: duckdb.DuckDBPyRelation) -> Generator[tuple[Any, ...]]:
    """Yield the rows one by one. Raises `duckdb.Error` if the query fails while they are read.

    Close it after an error: a result that is still read keeps the catalog open, and in this process nothing else can.
    """
    with result.to_arrow_reader(BATCH_ROWS) as reader:
        for batch in read_batches(reader):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
