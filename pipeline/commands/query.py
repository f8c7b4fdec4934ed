"""`scanlake query`: SQL on the published catalog, read-only, with a streamed result."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final, NoReturn, TypeAlias

import pyarrow.parquet
import typer

from pipeline.commands._completeness import warn_if_incomplete
from pipeline.commands._output_file import open_output, resolve_output
from pipeline.commands._result_table import format_rows
from pipeline.config import lake_paths
from pipeline.context import CommandContext, require_catalog
from pipeline.errors import ExitCode, SettingsError
from pipeline.global_options import tokens_in_environment
from pipeline.lake.all_catalogs import open_all_catalogs
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
        str | None,
        typer.Argument(metavar="SQL", help="Query. -: standard input. Left out on a terminal: DuckDB's client."),
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
    all_sources: Annotated[
        bool, typer.Option("--all", help="Query all sources at once: the first column of every table is source.")
    ] = False,
) -> ExitCode:
    """Query the lake with SQL.

    The lake is opened read-only, and a query reads its tables only. Without a query the command reads standard input;
    on a terminal it starts DuckDB's own client, read-only, which can also read other files.

    In CSV NULL is empty, an empty text is two quotation marks, and text that a spreadsheet takes for a formula gets a
    leading '; --no-formula-escape leaves it unchanged. A table shows the first 1,000 rows, and on a narrow terminal
    one line per column or fewer columns; all other formats write all rows, exactly.
    """
    if sql is None and file is None and out is None and sys.stdin.isatty() and sys.stdout.isatty() and not all_sources:
        _start_client(require_catalog(context.settings()).catalog)
    open_lake, lakes = _select_lakes(context, all_sources=all_sources)
    target = resolve_output(out, *lakes)
    if target is None:
        out = None
    chosen_format = _choose_format(output_format, out, as_json=context.as_json)
    if chosen_format is QueryFormat.XLSX:
        check_xlsx_installed()
    query = _read_sql(sql, file)
    write = write_exact_csv if no_formula_escape and chosen_format is QueryFormat.CSV else _WRITERS[chosen_format]
    count = _answer(open_lake, write, query, target)
    if context.as_json and out is not None:
        context.print_json({"out": str(out), "format": chosen_format.value, "rows": count})
    return ExitCode.OK


_OpenLake: TypeAlias = "Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]"


def _start_client(catalog: Path) -> NoReturn:
    """Replace this process by DuckDB's client, without the token."""
    client = shutil.which("duckdb", path=str(Path(sys.executable).parent)) or shutil.which("duckdb")
    if client is None:
        raise SettingsError(
            "DuckDB's client is not installed.", hint='Run `pip install duckdb-cli`, or use `scanlake query "SQL"`.'
        )
    environment = {name: value for name, value in os.environ.items() if value not in tokens_in_environment()}
    os.execve(client, [client, "-readonly", str(catalog)], environment)  # noqa: S606 - the user's own program


def _select_lakes(context: CommandContext, *, all_sources: bool) -> tuple[_OpenLake, list[Path]]:
    """Return what opens the present catalog, of one lake or of all sources, and the folders of the lakes."""
    if not all_sources:
        settings = context.settings()
        return partial(open_catalog, settings), [settings.lake]
    refuse_options_of_one_source(context)
    lakes = lake_paths(context.config)
    return partial(open_all_catalogs, lakes), list(lakes.values())


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
