"""`scanlake query`: SQL on the published catalog, read-only, with a streamed result."""

import importlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias

import typer
from msgspec import Struct

from pipeline.command_options import Excludes
from pipeline.config import load_all_sources
from pipeline.context import CommandContext, require_catalog
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.reader import (
    cast_to_text,
    check_query,
    open_all_catalogs,
    open_catalog,
    run_interruptibly,
    strip_trailing_semicolon,
    translate_query_errors,
    warn_if_incomplete,
)
from pipeline.lake.xlsx import check_xlsx_installed
from pipeline.output_file import open_output, resolve_output
from pipeline.output_formats import OutputFormat, choose_format, format_option
from pipeline.stop_signals import end_process, interrupt_command, replace_handlers
from pipeline.text_tables import format_table
from pipeline.tokens import environment_without_tokens

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import duckdb

GROUP: Final = "Use the data"

_FORMATS: Final = (
    *(OutputFormat.TABLE, OutputFormat.CSV, OutputFormat.JSON, OutputFormat.JSONL),
    *(OutputFormat.PARQUET, OutputFormat.XLSX),
)
_TABLE_ROWS: Final = 200
_FILES_ONLY: Final = frozenset({OutputFormat.PARQUET, OutputFormat.XLSX})


class QueryResult(Struct, frozen=True):
    """The rows of a query on standard output; `columns` have `name` and `type`."""

    columns: Sequence[Mapping[str, str]]
    rows: Sequence[Mapping[str, Any]]
    count: int


class WrittenRows(Struct, frozen=True):
    """The file that `--out` names, its format and the number of its rows."""

    out: Path
    format: OutputFormat
    rows: int


RESULT: Final = QueryResult | WrittenRows


def run(
    context: CommandContext,
    *,
    sql: Annotated[
        str | None,
        typer.Argument(metavar="SQL", help="Query. -: standard input. Left out on a terminal: DuckDB's client."),
        Excludes("--file"),
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the query from this file.")] = None,
    output_format: Annotated[
        OutputFormat | None,
        format_option(*_FORMATS, text="Output format. Default: by the extension of --out, otherwise table."),
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
    leading '; --no-formula-escape leaves it unchanged. JSON has instants as ISO-8601 in UTC. A table shows the first
    200 rows, and on a narrow terminal one line per column; all other formats write all rows, exactly.
    """
    if sql is None and file is None and out is None and sys.stdin.isatty() and sys.stdout.isatty() and not all_sources:
        _start_client(require_catalog(context.settings()).catalog)
    open_lake, lakes, memory = _select_lakes(context, all_sources=all_sources)
    target = resolve_output(out, *lakes)
    out = out if target is not None else None
    chosen = choose_format(output_format, out, _FORMATS, as_json=context.as_json)
    if chosen in _FILES_ONLY and out is None:
        raise SettingsError(f"The format {chosen} needs a file.", hint="Add --out FILE.")
    if chosen is OutputFormat.XLSX:
        check_xlsx_installed()
    query = _read_sql(sql, file)
    write = _find_writer(chosen, exact=no_formula_escape)
    with open_lake() as lake, translate_query_errors("Run `scanlake tables` to list tables and columns."):
        warn_if_incomplete(lake)
        count = run_interruptibly(lake, partial(_write_result, lake, query, write, target), memory)
    return ExitCode.OK if out is None else context.print_result(WrittenRows(out, chosen, count))


_OpenLake: TypeAlias = "Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]"


def _start_client(catalog: Path) -> NoReturn:
    """Replace this process by DuckDB's client, without the token."""
    client = shutil.which("duckdb", path=str(Path(sys.executable).parent)) or shutil.which("duckdb")
    if client is None:
        raise SettingsError(
            "DuckDB's client is not installed.", hint='Run `pip install duckdb-cli`, or use `scanlake query "SQL"`.'
        )
    command = [client, "-readonly", str(catalog)]
    os.execve(client, command, environment_without_tokens())  # noqa: S606 - the user's own program


def _select_lakes(context: CommandContext, *, all_sources: bool) -> tuple[_OpenLake, list[Path], int]:
    """Return what opens the present catalog, of one lake or of all sources, the lakes' folders and a query's memory."""
    if not all_sources:
        settings = context.settings()
        return partial(open_catalog, settings), [settings.lake], settings.query_memory_bytes
    context.refuse_options_of_one_source()
    sources = load_all_sources(context.config)
    lakes = {name: settings.lake for name, settings in sources.items()}
    memory = max(settings.query_memory_bytes for settings in sources.values())
    return partial(open_all_catalogs, lakes, memory=memory), list(lakes.values()), memory


def _read_sql(sql: str | None, file: Path | None) -> str:
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


def _find_writer(chosen: OutputFormat, *, exact: bool) -> Callable[..., int]:
    """Return the function that writes a format, and import what it needs: a table no Arrow, JSON no writer of Arrow."""
    if chosen is OutputFormat.TABLE:
        return _write_table
    name = "write_exact_csv" if exact and chosen is OutputFormat.CSV else f"write_{chosen}"
    as_file = chosen in {OutputFormat.CSV, *_FILES_ONLY}
    module = "pipeline.lake.export" if as_file else "pipeline.lake.query_result"
    replace_handlers(end_process, interrupt_command)  # no signal interrupts the import
    write: Callable[..., int] = getattr(importlib.import_module(module), name)
    replace_handlers(interrupt_command, end_process)
    return write


def _write_result(lake: "duckdb.DuckDBPyConnection", query: str, write: Callable[..., int], target: Path | None) -> int:
    check_query(lake, query)
    result = lake.sql(query)
    with open_output(target) as file:
        return write(result, file)


def _write_table(result: "duckdb.DuckDBPyRelation", target: IO[bytes]) -> int:
    """Write the first rows as an aligned table, without Arrow: its import takes half as long as that of DuckDB."""
    rows = cast_to_text(result, frozenset()).limit(_TABLE_ROWS + 1).fetchall()
    note = ", the first rows of more; use --format for all rows" if len(rows) > _TABLE_ROWS else ""
    first_rows = rows[:_TABLE_ROWS]
    is_screen = target is sys.stdout.buffer and sys.stdout.isatty()
    text = format_table(result.columns, first_rows, null="NULL", unit="row", note=note, is_screen=is_screen)
    target.write(text.encode("utf-8", "backslashreplace"))
    return len(first_rows)
