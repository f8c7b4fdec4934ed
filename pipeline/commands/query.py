"""`scanlake query`: SQL on the published catalog, read-only, with a streamed result."""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Final, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pipeline.commands._output_file import open_output, resolve_output
from pipeline.context import CommandContext
from pipeline.csv_rows import escape_formula
from pipeline.errors import ExitCode, SettingsError
from pipeline.formatting import pluralize
from pipeline.lake.reader import open_catalog, run_interruptibly
from pipeline.lake.sql import sql_escape_formula, sql_identifier
from pipeline.lake.user_query import check_query, translate_query_errors
from pipeline.logs import to_one_line

_BATCH_ROWS: Final = 20_000
_TABLE_ROWS: Final = 1_000
_PLAIN_TYPE: Final = re.compile(
    r"U?(HUGE|BIG|SMALL|TINY)?INT|U?INTEGER|BOOLEAN|DECIMAL\(\d+,\d+\)|DOUBLE|FLOAT|DATE|TIME(STAMP)?\b[^\[]*|UUID"
)
"""Types whose text is a number or a date to a spreadsheet. An INTERVAL such as -1 day is a formula to it."""
_UNLIMITED_WIDTH: Final = 100_000  # characters; without a terminal lines are not wrapped
_CSV_TYPES: Final = frozenset(
    {"BIGINT", "INTEGER", "SMALLINT", "TINYINT", "BOOLEAN", "DOUBLE", "VARCHAR", "TIMESTAMP", "DATE"}
)


class QueryFormat(StrEnum):
    """Output formats of a result."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    PARQUET = "parquet"


def run(
    context: CommandContext,
    *,
    sql: Annotated[str | None, typer.Argument(metavar="SQL", help="Query; - reads it from standard input.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the query from this file.")] = None,
    output_format: Annotated[
        QueryFormat | None,
        typer.Option("--format", help="Output format. Default: by the extension of --out, otherwise table."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the result to this file; - is standard output.")
    ] = None,
    no_formula_escape: Annotated[
        bool, typer.Option("--no-formula-escape", help="Write CSV values unchanged, also spreadsheet formulas.")
    ] = False,
) -> ExitCode:
    """Query the lake with SQL.

    The lake is opened read-only, and a query reads its tables only. In CSV NULL is empty, an empty text is two
    quotation marks, and text that a spreadsheet takes for a formula gets a leading '; --no-formula-escape leaves it
    unchanged. A table shows the first 1,000 rows; all other formats write all rows, exactly.
    """
    settings = context.settings()
    target = resolve_output(out, settings.lake)
    if target is None:
        out = None
    chosen_format = _choose_format(output_format, out, as_json=context.as_json)
    query = _read_sql(sql, file)
    write = _write_exact_csv if no_formula_escape and chosen_format is QueryFormat.CSV else _WRITERS[chosen_format]
    with open_catalog(settings) as lake, translate_query_errors("Run `scanlake tables` to list tables and columns."):
        count = run_interruptibly(lake, lambda: _write_result(lake, query, write, target))
    if context.as_json and out is not None:
        context.print_json({"out": str(out), "format": chosen_format.value, "rows": count})
    return ExitCode.OK


def _choose_format(requested: QueryFormat | None, out: Path | None, *, as_json: bool) -> QueryFormat:
    if requested is None and out is not None:
        requested = {f".{item}": item for item in QueryFormat}.get(out.suffix.lower())
    if as_json and out is None:
        if requested not in {None, QueryFormat.JSON}:
            raise SettingsError("--json and another --format exclude each other.", hint="Leave one out, or add --out.")
        return QueryFormat.JSON
    if requested is QueryFormat.PARQUET and out is None:
        raise SettingsError("Parquet needs a file.", hint="Add --out FILE.")
    return requested or QueryFormat.TABLE


def _read_sql(sql: str | None, file: Path | None) -> str:
    if (sql is None) == (file is None):
        hint = 'Use `scanlake query "SQL"`, - for standard input, or --file.'
        raise SettingsError("One query is required.", hint=hint)
    text = sql or ""
    try:
        if file is not None:
            text = file.read_text(encoding="utf-8")
        elif sql == "-":
            text = sys.stdin.read()
        text.encode()
    except OSError as error:
        raise SettingsError(f"--file {file}: {error.strerror}.", hint="Use a readable file.") from None
    except UnicodeError:
        raise SettingsError("The query is not UTF-8.", hint="Use UTF-8 for the file or the terminal.") from None
    text = _strip_trailing_semicolon(text)
    if not text.strip():
        raise SettingsError("The query is empty.", hint="Run `scanlake tables` to list the tables.")
    return text


def _strip_trailing_semicolon(query: str) -> str:
    """Return the query without its last semicolon: DuckDB puts the text into parentheses unchanged."""
    raw = query.encode()
    end = len(raw)
    for offset, kind in reversed(duckdb.tokenize(query)):  # offsets count bytes
        if kind != duckdb.token_type.comment and raw[offset : offset + 1] != b";":
            break
        end = offset
    return raw[:end].decode()


_Writer: TypeAlias = "Callable[[duckdb.DuckDBPyRelation, IO[bytes]], int]"


def _write_result(lake: "duckdb.DuckDBPyConnection", query: str, write: _Writer, out: Path | None) -> int:
    check_query(lake, query)
    result = lake.sql(query)
    with open_output(out) as target:
        return write(result, target)


# Writers: a result to bytes; each returns the number of rows


def _write_csv(result: "duckdb.DuckDBPyRelation", target: IO[bytes]) -> int:
    columns = (
        f"{f'#{index}' if _PLAIN_TYPE.fullmatch(str(kind)) else sql_escape_formula(f'CAST(#{index} AS VARCHAR)')}"
        f" AS {sql_identifier(escape_formula(name))}"
        for index, (name, kind) in enumerate(zip(result.columns, result.types, strict=True), start=1)
    )
    return _write_exact_csv(result.project(", ".join(columns)), target)


def _write_exact_csv(result: "duckdb.DuckDBPyRelation", target: IO[bytes]) -> int:
    reader = _cast_to_text(result, _CSV_TYPES).to_arrow_reader(_BATCH_ROWS)
    with pyarrow.csv.CSVWriter(target, reader.schema) as writer:
        return _copy_batches(reader, writer)


def _write_parquet(result: "duckdb.DuckDBPyRelation", target: IO[bytes]) -> int:
    reader = result.to_arrow_reader(_BATCH_ROWS)
    with pyarrow.parquet.ParquetWriter(target, reader.schema, compression="zstd") as writer:
        return _copy_batches(reader, writer)


def _copy_batches(reader: pa.RecordBatchReader, writer: Any) -> int:
    count = 0
    for batch in _batches(reader):
        writer.write_batch(batch)
        count += batch.num_rows
    return count


def _write_jsonl(result: "duckdb.DuckDBPyRelation", target: IO[bytes]) -> int:
    count = 0
    for line in _json_rows(result):
        target.write(line + b"\n")
        count += 1
    return count


def _write_json(result: "duckdb.DuckDBPyRelation", target: IO[bytes]) -> int:
    columns = [{"name": name, "type": str(kind)} for name, kind in zip(result.columns, result.types, strict=True)]
    target.write(b'{"columns": ' + json.dumps(columns).encode() + b', "rows": [')
    count = 0
    for line in _json_rows(result):
        target.write((b",\n" if count else b"\n") + line)
        count += 1
    target.write(b'\n], "count": ' + str(count).encode() + b"}\n")
    return count


def _write_table(result: "duckdb.DuckDBPyRelation", target: IO[bytes]) -> int:
    rows = _iter_rows(_cast_to_text(result, frozenset()))
    first_rows = list(islice(rows, _TABLE_ROWS))
    table = Table(*(escape(to_one_line(name)) for name in result.columns), box=None)
    for row in first_rows:
        table.add_row(*(Text("NULL", "dim") if cell is None else Text(to_one_line(cell)) for cell in row))
    note = ", the first rows of more; use --format for all rows" if next(rows, None) is not None else ""
    page = io.StringIO()
    on_screen = target is sys.stdout.buffer and sys.stdout.isatty()
    console = Console(file=page, force_terminal=True) if on_screen else Console(file=page, width=_UNLIMITED_WIDTH)
    console.print(table)
    console.print(Text(f"{pluralize(len(first_rows), 'row')}{note}", "dim"))
    target.write(page.getvalue().encode("utf-8", "backslashreplace"))
    return len(first_rows)


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as error:  # Arrow wraps DuckDB's errors during the query
            raise duckdb.Error(str(error)) from None
        yield batch


def _iter_rows(result: "duckdb.DuckDBPyRelation") -> Iterator[tuple[Any, ...]]:
    for batch in _batches(result.to_arrow_reader(_BATCH_ROWS)):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _json_rows(result: "duckdb.DuckDBPyRelation") -> Iterator[bytes]:
    # The alias is a name that no column has: to_json(x) would take a column x instead of the row.
    row = sql_identifier("scanlake row")
    for (line,) in _iter_rows(result.set_alias("scanlake row").project(f"to_json({row})::VARCHAR AS line")):
        yield line.encode()


def _cast_to_text(result: "duckdb.DuckDBPyRelation", unchanged_types: frozenset[str]) -> "duckdb.DuckDBPyRelation":
    """Return the rows with every column cast to DuckDB's text, except for columns of `unchanged_types`."""
    columns = (
        f"#{index}" if str(kind) in unchanged_types else f"CAST(#{index} AS VARCHAR)"
        for index, kind in enumerate(result.types, start=1)
    )
    names = map(sql_identifier, result.columns)
    return result.project(", ".join(f"{column} AS {name}" for column, name in zip(columns, names, strict=True)))


_WRITERS: Final[dict[QueryFormat, _Writer]] = {
    QueryFormat.TABLE: _write_table,
    QueryFormat.CSV: _write_csv,
    QueryFormat.JSON: _write_json,
    QueryFormat.JSONL: _write_jsonl,
    QueryFormat.PARQUET: _write_parquet,
}
