"""`scanlake query`: SQL on the published catalog, read-only, with a streamed result."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final, TypeAlias

import pyarrow.parquet
import typer

from pipeline.commands._completeness import warn_if_incomplete
from pipeline.commands._open_sources import open_all_sources
from pipeline.commands._output_file import open_output, resolve_output
from pipeline.commands._query_shell import run_shell
from pipeline.commands._result_table import format_rows
from pipeline.config import lake_paths
from pipeline.context import CommandContext
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.query_result import BATCH_ROWS, cast_to_text, copy_batches, iter_rows, write_csv, write_exact_csv
from pipeline.lake.reader import open_catalog, run_interruptibly
from pipeline.lake.sql import sql_identifier
from pipeline.lake.user_query import check_query, strip_trailing_semicolon, translate_query_errors
from pipeline.lake.xlsx import check_xlsx_installed, is_excel_type, write_result_workbook
from pipeline.sources import refuse_options_of_one_source

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import duckdb

GROUP: Final = "Use the data"

_TABLE_ROWS: Final = 1_000
_NOT_FINITE: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|(-?(?:NaN|Infinity))')
"""A string of JSON, or a number that DuckDB writes although JSON has none."""


class QueryFormat(StrEnum):
    """Output formats of a result."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    PARQUET = "parquet"
    XLSX = "xlsx"


def run(
    context: CommandContext,
    *,
    sql: Annotated[
        str | None, typer.Argument(metavar="SQL", help="Query. -: standard input. Left out on a terminal: a shell.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the query from this file.")] = None,
    output_format: Annotated[
        QueryFormat | None,
        typer.Option("--format", help="Output format. Default: by the extension of --out, otherwise table."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write or replace this file; - is standard output."),
    ] = None,
    no_formula_escape: Annotated[
        bool, typer.Option("--no-formula-escape", help="Write CSV values unchanged, also spreadsheet formulas.")
    ] = False,
    union: Annotated[
        bool, typer.Option("--union", help="Query all sources at once: every table has a column _source.")
    ] = False,
) -> ExitCode:
    """Query the lake with SQL.

    Without a query it is a shell on a terminal, and reads standard input elsewhere. The lake is opened read-only, and
    a query reads its tables only. In CSV NULL is empty, an empty text is two quotation marks, and text that a
    spreadsheet takes for a formula gets a leading '; --no-formula-escape leaves it unchanged. A table shows the first
    1,000 rows, and on a narrow terminal one line per column or fewer columns; all other formats write all rows,
    exactly.
    """
    open_lake, lakes = _select_lakes(context, union=union)
    target = resolve_output(out, *lakes)
    if target is None:
        out = None
    chosen_format = _choose_format(output_format, out, as_json=context.as_json)
    if sql is None and file is None and target is None and sys.stdin.isatty() and sys.stdout.isatty():
        run_shell(open_lake, partial(_answer, open_lake, _WRITERS[chosen_format]))
        return ExitCode.OK
    if chosen_format is QueryFormat.XLSX:
        check_xlsx_installed()
    query = _read_sql(sql, file)
    write = write_exact_csv if no_formula_escape and chosen_format is QueryFormat.CSV else _WRITERS[chosen_format]
    count = _answer(open_lake, write, query, target)
    if context.as_json and out is not None:
        context.print_json({"out": str(out), "format": chosen_format.value, "rows": count})
    return ExitCode.OK


_OpenLake: TypeAlias = "Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]"


def _select_lakes(context: CommandContext, *, union: bool) -> tuple[_OpenLake, list[Path]]:
    """Return what opens the present catalog, of one lake or of all sources, and the folders of the lakes."""
    if not union:
        settings = context.settings()
        return partial(open_catalog, settings), [settings.lake]
    refuse_options_of_one_source(context)
    lakes = lake_paths(context.config)
    return partial(open_all_sources, lakes), list(lakes.values())


def _answer(open_lake: _OpenLake, write: "_Writer", query: str, target: Path | None = None) -> int:
    """Run a query on the present catalog and write its result. Return the number of rows."""
    with open_lake() as lake, translate_query_errors("Run `scanlake tables` to list tables and columns."):
        warn_if_incomplete(lake)
        return run_interruptibly(lake, lambda: _write_result(lake, query, write, target))


def _choose_format(requested: QueryFormat | None, out: Path | None, *, as_json: bool) -> QueryFormat:
    if requested is None and out is not None:
        requested = _format_of(out)
    if as_json and out is None:
        if requested not in {None, QueryFormat.JSON}:
            raise SettingsError("--json and another --format exclude each other.", hint="Leave one out, or add --out.")
        return QueryFormat.JSON
    if requested in {QueryFormat.PARQUET, QueryFormat.XLSX} and out is None:
        raise SettingsError(f"The format {requested} needs a file.", hint="Add --out FILE.")
    return requested or QueryFormat.TABLE


def _format_of(out: Path) -> QueryFormat | None:
    """Return the format that the name of a file asks for; None for text, for a device and for a pipe."""
    extension = out.suffix.lower().removeprefix(".")
    if extension in {"", "txt"} or (out.exists() and not out.is_file()):
        return None
    if extension not in set(QueryFormat):
        raise SettingsError(
            f"--out {out}: .{extension} is no format of a result.",
            hint="Use .csv, .json, .jsonl, .parquet, .xlsx or .txt, or add --format.",
        )
    return QueryFormat(extension)


def _read_sql(sql: str | None, file: Path | None) -> str:
    if sql is not None and file is not None:
        raise SettingsError("Two queries are given.", hint="Use SQL or --file.")
    text = sql or ""
    try:
        if file is not None:
            text = file.read_text(encoding="utf-8")
        elif sql in {None, "-"}:
            text = sys.stdin.read()
        text.encode()
    except OSError as error:
        raise SettingsError(f"--file {file}: {error.strerror}.", hint="Use a readable file.") from None
    except UnicodeError:
        raise SettingsError("The query is not UTF-8.", hint="Use UTF-8 for the file or the terminal.") from None
    text = strip_trailing_semicolon(text)
    if not text.strip():
        raise SettingsError(
            "The query is empty.", hint='Use `scanlake query "SQL"`; `scanlake tables` lists the tables.'
        )
    return text


_Writer: TypeAlias = "Callable[[duckdb.DuckDBPyRelation, IO[bytes]], int]"


def _write_result(lake: "duckdb.DuckDBPyConnection", query: str, write: _Writer, out: Path | None) -> int:
    check_query(lake, query)
    result = lake.sql(query)
    with open_output(out) as target:
        return write(result, target)


# Writers: a result to bytes; each returns the number of rows


def _write_parquet(result: "duckdb.DuckDBPyRelation", target: IO[bytes]) -> int:
    reader = result.to_arrow_reader(BATCH_ROWS)
    with pyarrow.parquet.ParquetWriter(target, reader.schema, compression="zstd") as writer:
        return copy_batches(reader, writer)


def _write_xlsx(result: "duckdb.DuckDBPyRelation", target: IO[bytes]) -> int:
    columns = [(name, str(kind)) for name, kind in zip(result.columns, result.types, strict=True)]
    unchanged = frozenset(kind for _, kind in columns if is_excel_type(kind))
    return write_result_workbook(target, columns, iter_rows(cast_to_text(result, unchanged)))


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
    rows = iter_rows(cast_to_text(result, frozenset()))
    first_rows = list(islice(rows, _TABLE_ROWS))
    note = ", the first rows of more; use --format for all rows" if next(rows, None) is not None else ""
    on_screen = target is sys.stdout.buffer and sys.stdout.isatty()
    text = format_rows(result.columns, first_rows, note, on_screen=on_screen)
    target.write(text.encode("utf-8", "backslashreplace"))
    return len(first_rows)


def _json_rows(result: "duckdb.DuckDBPyRelation") -> Iterator[bytes]:
    # The alias is a name that no column has: to_json(x) would take a column x instead of the row.
    row = sql_identifier("scanlake row")
    for (line,) in iter_rows(result.set_alias("scanlake row").project(f"to_json({row})::VARCHAR AS line")):
        text = line.encode()
        yield _NOT_FINITE.sub(_quote_number, text) if b"NaN" in text or b"Infinity" in text else text


def _quote_number(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] is None else b'"' + match[1] + b'"'


_WRITERS: Final[dict[QueryFormat, _Writer]] = {
    QueryFormat.TABLE: _write_table,
    QueryFormat.CSV: write_csv,
    QueryFormat.JSON: _write_json,
    QueryFormat.JSONL: _write_jsonl,
    QueryFormat.PARQUET: _write_parquet,
    QueryFormat.XLSX: _write_xlsx,
}
