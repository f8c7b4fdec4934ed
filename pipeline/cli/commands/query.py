"""`scanlake query`: SQL on the published catalog, read-only, with a streamed result."""

import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, TypeAlias, get_args

import typer
from msgspec import Struct

from pipeline.cli.context import CommandContext, require_catalog
from pipeline.errors import ExitCode, SettingsError, StorageError, refuse_unreadable
from pipeline.lake.ledger.folder import require_outside_lakes
from pipeline.lake.storage.atomic_files import atomic_write
from pipeline.output.tables import format_table
from pipeline.processes.environment import environment_without_tokens
from pipeline.processes.signals import end_process, interrupt_command, replace_handlers
from pipeline.query.reader import cast_to_text, open_all_catalogs, open_catalog, warn_if_incomplete
from pipeline.query.sandbox import check_query, run_interruptibly, strip_trailing_semicolon, translate_query_errors
from pipeline.query.xlsx import check_xlsx_installed
from pipeline.settings.layers import load_all_sources

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import duckdb

EXAMPLES: Final = ('query "FROM files LIMIT 10"', 'query "FROM file_summary" -o files.csv')

_Format = Literal["table", "csv", "json", "jsonl", "parquet", "xlsx"]
_TABLE_ROWS: Final = 200
_FILE_ROWS: Final = 100_000  # of a table in a file: all are in memory
_FILES_ONLY: Final = frozenset({"parquet", "xlsx"})


class QueryResult(Struct, frozen=True):
    """The rows of a query on standard output; `columns` have `name` and `type`."""

    columns: Sequence[Mapping[str, str]]
    rows: Sequence[Mapping[str, Any]]
    count: int


class WrittenRows(Struct, frozen=True):
    """The file that `--out` names, its format and the number of its rows."""

    out: Path
    format: str
    rows: int


RESULT: Final = QueryResult | WrittenRows


def run(
    context: CommandContext,
    *,
    sql: Annotated[
        str | None,
        typer.Argument(metavar="SQL", help="Query, or FILE.sql. -: standard input. On a terminal: DuckDB's client."),
    ] = None,
    output_format: Annotated[
        _Format | None,
        typer.Option("--format", help="Output format. Default: by the extension of --out, otherwise table."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write or replace this file; - is standard output.")
    ] = None,
    no_formula_escape: Annotated[
        bool, typer.Option("--no-formula-escape", help="Write CSV values unchanged, also spreadsheet formulas.")
    ] = False,
    all_sources: Annotated[
        bool, typer.Option("--all", help="Query all sources at once: the first column of every table is source.")
    ] = False,
) -> ExitCode:
    """Query the lake with SQL.

    The lake is opened read-only, and a query can read only its tables. Without a query the command reads standard
    input. On a terminal it starts DuckDB's own client instead, read-only, which can also read other files.

    In CSV, NULL is empty and an empty text is two quotation marks. Text that a spreadsheet would read as a formula gets
    a leading '; --no-formula-escape leaves it unchanged. In JSON, instants are ISO-8601 in UTC. On standard output a
    table shows the first 200 rows, and on a narrow terminal one line per column. Files and all other formats have all
    rows. Values that a workbook cannot hold are refused.
    """
    if sql is None and out is None and sys.stdin.isatty() and sys.stdout.isatty() and not all_sources:
        _start_client(require_catalog(context.settings()).catalog)
    open_lake, lakes, memory = _select_lakes(context, all_sources=all_sources)
    target = _resolve_output(out, lakes)
    out = out if target is not None else None
    chosen = _choose_format(output_format, out, as_json=context.as_json)
    if chosen in _FILES_ONLY and out is None:
        raise SettingsError(f"The format {chosen} needs a file.", hint="Add --out FILE.")
    if chosen == "xlsx":
        check_xlsx_installed()
    query = _read_sql(sql)
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


def _read_sql(sql: str | None) -> str:
    try:
        text = sys.stdin.read() if sql in {None, "-"} else sql or ""
        if text == sql and text.lower().endswith(".sql"):
            with refuse_unreadable(text, hint="Give the path of a file with a query."):
                text = Path(text).read_text(encoding="utf-8-sig")
        text.encode()
    except UnicodeError:
        raise SettingsError("The query is not UTF-8.", hint="Use UTF-8 for the input or the terminal.") from None
    text = strip_trailing_semicolon(text)
    if not text.strip():
        raise SettingsError(
            "The query is empty.", hint='Use `scanlake query "SQL"`; `scanlake tables` lists the tables.'
        )
    return text


def _find_writer(chosen: str, *, exact: bool) -> Callable[..., int]:
    """Return the function that writes a format, and import what it needs: a table no Arrow, JSON no writer of Arrow."""
    if chosen == "table":
        return _write_table
    name = "write_exact_csv" if exact and chosen == "csv" else f"write_{chosen}"
    as_file = chosen in {"csv", *_FILES_ONLY}
    module = "pipeline.query.export" if as_file else "pipeline.query.result"
    replace_handlers(end_process, interrupt_command)  # no signal interrupts the import
    write: Callable[..., int] = getattr(importlib.import_module(module), name)
    replace_handlers(interrupt_command, end_process)
    return write


def _write_result(lake: "duckdb.DuckDBPyConnection", query: str, write: Callable[..., int], target: Path | None) -> int:
    check_query(lake, query)
    result = lake.sql(query)
    with _open_output(target) as file:
        return write(result, file)


def _write_table(result: "duckdb.DuckDBPyRelation", target: IO[bytes]) -> int:
    """Write the rows as an aligned table, without Arrow: its import takes half as long as that of DuckDB.

    Standard output gets the first ones. A file gets all of them, or none if they are too many.
    """
    is_file = target is not sys.stdout.buffer
    limit = _FILE_ROWS if is_file else _TABLE_ROWS
    rows = cast_to_text(result, frozenset()).limit(limit + 1).fetchall()
    if is_file and len(rows) > limit:
        raise SettingsError(f"The table has more than {limit:,} rows.", hint="Use --out FILE.csv.")
    note = " shown, and there are more; use --format for all rows" if len(rows) > limit else ""
    first_rows = rows[:limit]
    is_screen = not is_file and sys.stdout.isatty()
    text = format_table(result.columns, first_rows, null="NULL", unit="row", note=note, is_screen=is_screen)
    target.write(text.encode("utf-8", "backslashreplace"))
    return len(first_rows)


# The target: standard output, a device or a pipe, or a file that is renamed when it is complete


def _resolve_output(out: Path | None, lakes: Iterable[Path]) -> Path | None:
    """Return the file, device or pipe behind --out, links resolved; None for standard output.

    Raises `SettingsError` if it is not allowed.
    """
    if out is None or _is_standard_output(out):
        return None
    try:
        path = out if _is_stream(out) else out.resolve()
    except RuntimeError:
        raise SettingsError(f"--out {out} is a link that refers to itself.", hint="Use another file.") from None
    for lake in lakes:
        require_outside_lakes(path, f"--out {out}", lake)
    if path.is_dir():
        raise SettingsError(f"--out {out} is a folder.", hint="Use a file in this folder.")
    if not path.parent.is_dir():
        raise SettingsError(f"--out {out}: folder {out.parent} does not exist.", hint="Create it, or use another file.")
    return path


def _is_standard_output(out: Path) -> bool:
    """Return whether this is standard output, also as /dev/stdout redirected to a file with earlier content."""
    if out == Path("-"):
        return True
    try:
        return os.path.samestat(out.stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):
        return False


def _is_stream(out: Path) -> bool:
    """Return whether this is a device, a pipe or a terminal, which a rename would replace."""
    return out.exists() and not (out.is_file() or out.is_dir())


@contextmanager
def _open_output(out: Path | None) -> Iterator[IO[bytes]]:
    """Open what `_resolve_output` has returned."""
    if out is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        if _is_stream(out):
            with out.open("wb") as target:
                yield target
            return
        with atomic_write(out, durable=False) as temp, temp.open("xb") as target:
            yield target
    except BrokenPipeError:  # the reader of a named pipe has left
        raise
    except OSError as error:  # has no name after a write: `cli` takes it for one of standard output
        raise StorageError.from_errno(str(out), error.errno) from error


def _choose_format(typed: str | None, out: Path | None, *, as_json: bool) -> str:
    """Return the format of a result: the typed one, otherwise by the name of the file `out`, otherwise a table.

    `out` is None for standard output, where `--json` is a format. Raises `SettingsError`.
    """
    if out is None and as_json:
        if typed not in {None, "json"}:
            raise SettingsError("--json and another --format exclude each other.", hint="Leave one out, or add --out.")
        return "json"
    extension = out.suffix.lower().removeprefix(".") if out is not None else ""
    formats = get_args(_Format)
    if typed is not None and extension in formats and extension != typed:
        hint = "Leave --format out, or rename the file."
        raise SettingsError(f"--out {out}: the name means {extension}, but --format is {typed}.", hint=hint)
    if typed is None and out is not None and (not out.exists() or out.is_file()):  # not a device or a pipe
        if extension in {"", "txt"}:
            return "table"
        if extension not in formats:
            names = ", ".join(f".{name}" for name in formats if name != "table")
            hint = f"Use {names} or .txt, or add --format."
            raise SettingsError(f"--out {out}: .{extension} is not an output format.", hint=hint)
        return extension
    return typed or "table"
