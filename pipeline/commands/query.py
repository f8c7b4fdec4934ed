"""`scanlake query`: SQL on the published catalog, read-only, its answer streamed."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pipeline.call import Call
from pipeline.errors import Exit, SettingsError
from pipeline.logs import one_line
from pipeline.published import failure_of, first_line, published, until_done

_STANDARD_OUTPUT: Final = Path("-")
_BATCH_ROWS: Final = 20_000
_TABLE_ROWS: Final = 1_000
_ENDLESS: Final = 100_000  # columns: what is not a screen gets its lines whole
_PLAIN_TYPES: Final = frozenset(
    {"BIGINT", "INTEGER", "SMALLINT", "TINYINT", "BOOLEAN", "DOUBLE", "VARCHAR", "TIMESTAMP", "DATE"}
)


class Format(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    PARQUET = "parquet"


def run(
    call: Call,
    *,
    sql: Annotated[
        str | None,
        typer.Argument(metavar="SQL", help="The question; - reads it from standard input.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the question from this file.", show_default=False)
    ] = None,
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="Default: by the ending of --out, else table.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the answer to this file; - is standard output.", show_default=False),
    ] = None,
) -> Exit:
    """Ask the lake a question in SQL.

    The lake is opened read-only, and SQL reaches no file but the lake's own. CSV is exact: NULL is empty, an
    empty text is two quotation marks. A table shows the first 1,000 rows; every other format writes all.
    """
    settings = call.settings()
    if out is not None and _is_standard_output(out):
        out = None
    shape = _format(format_, out, as_json=call.as_json)
    question = _question(sql, file)
    place = None if out is None else _place(out, settings.lake)
    with published(settings) as lake:
        try:
            count = until_done(lake, lambda: _answer(lake, question, shape, place))
        except duckdb.InterruptException:
            raise
        except duckdb.Error as error:
            if failure_of(error) is not None:
                raise  # not the question's fault
            raise SettingsError(first_line(error), remedy="`scanlake tables` lists tables and columns.") from error
    if call.as_json and out is not None:
        call.print_json({"out": str(out), "format": shape.value, "rows": count})
    return Exit.DONE


def _format(given: Format | None, out: Path | None, *, as_json: bool) -> Format:
    if given is None and out is not None:
        by_name = {f".{shape}": shape for shape in Format}
        given = by_name.get(out.suffix.lower())
    if as_json and out is None:
        if given not in {None, Format.JSON}:
            raise SettingsError(
                "--json and another --format exclude each other.", remedy="Leave one out, or add --out."
            )
        return Format.JSON
    if given is Format.PARQUET and out is None:
        raise SettingsError("Parquet needs a file.", remedy="Add --out FILE.")
    return given or Format.TABLE


def _question(sql: str | None, file: Path | None) -> str:
    if (sql is None) == (file is None):
        raise SettingsError(
            "Give one question.", remedy='Say `scanlake query "SQL"`, or - for standard input, or --file.'
        )
    try:
        text = _text_of(sql, file)
        text.encode()
    except UnicodeError:
        raise SettingsError("The question is not UTF-8.", remedy="Save it, or set the terminal, as UTF-8.") from None
    text = _without_tail(text)
    if not text.strip():
        raise SettingsError("The question is empty.", remedy="`scanlake tables` lists what can be asked.")
    return text


def _text_of(sql: str | None, file: Path | None) -> str:
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"--file {file}: {error.strerror}.", remedy="Name a file that can be read.") from None
    return sys.stdin.read() if sql == "-" else str(sql)


def _without_tail(question: str) -> str:
    """The question without what closes it: DuckDB puts it into parentheses as it stands."""
    raw = question.encode()
    end = len(raw)
    for offset, kind in reversed(duckdb.tokenize(question)):  # offsets count bytes
        if kind != duckdb.token_type.comment and raw[offset : offset + 1] != b";":
            break
        end = offset
    return raw[:end].decode()


def _answer(lake: duckdb.DuckDBPyConnection, question: str, shape: Format, out: Path | None) -> int:
    answer = lake.sql(question)
    if answer is None:
        raise SettingsError("That is no question: it has no rows.", remedy="Ask with SELECT, FROM, DESCRIBE or SHOW.")
    with _target(out) as target:
        return _WRITERS[shape](answer, target)


def _place(out: Path, lake: Path) -> Path:
    """Where --out leads, behind links: a file, a device or a pipe. Raises `SettingsError` where none can be."""
    try:
        place = out if _is_stream(out) else out.resolve()
    except RuntimeError:
        raise SettingsError(f"--out {out} is a link in a circle.", remedy="Write the answer elsewhere.") from None
    if place.is_relative_to(lake.resolve()):
        raise SettingsError(f"--out {out} lies within the lake.", remedy="Write the answer somewhere else.")
    if place.is_dir():
        raise SettingsError(f"--out {out} is a folder.", remedy="Name a file in it.")
    if not place.parent.is_dir():
        raise SettingsError(f"--out {out}: there is no folder {out.parent}.", remedy="Make it, or name another one.")
    return place


def _is_standard_output(out: Path) -> bool:
    """Also /dev/stdout, where that is a file: it may hold what somebody wrote before."""
    if out == _STANDARD_OUTPUT:
        return True
    try:
        return os.path.samestat(out.stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):
        return False


def _is_stream(out: Path) -> bool:
    """Whether something is there that no file can stand for: a device, a pipe, a terminal."""
    return out.exists() and not (out.is_file() or out.is_dir())


@contextmanager
def _target(out: Path | None) -> Iterator[IO[bytes]]:
    """Standard output, a device or a pipe, or a file that has its name only once it is whole."""
    if out is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if _is_stream(out):
        with out.open("wb") as target:
            yield target
        return
    aside = out.with_name(f".{out.name}.{os.getpid()}.aside")
    try:
        with aside.open("xb") as target:
            yield target
        aside.replace(out)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise


# Writers: an answer to bytes; each returns the number of rows


def _write_csv(answer: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    reader = _as_text(answer, _PLAIN_TYPES).to_arrow_reader(_BATCH_ROWS)
    with pyarrow.csv.CSVWriter(target, reader.schema) as writer:
        return _pass_on(reader, writer)


def _write_parquet(answer: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    reader = answer.to_arrow_reader(_BATCH_ROWS)
    with pyarrow.parquet.ParquetWriter(target, reader.schema, compression="zstd") as writer:
        return _pass_on(reader, writer)


def _pass_on(reader: pa.RecordBatchReader, writer: Any) -> int:
    count = 0
    for batch in _batches(reader):
        writer.write_batch(batch)
        count += batch.num_rows
    return count


def _write_jsonl(answer: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    count = 0
    for line in _json_rows(answer):
        target.write(line + b"\n")
        count += 1
    return count


def _write_json(answer: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    columns = [{"name": name, "type": str(kind)} for name, kind in zip(answer.columns, answer.types, strict=True)]
    target.write(b'{"columns": ' + json.dumps(columns).encode() + b', "rows": [')
    count = 0
    for line in _json_rows(answer):
        target.write((b",\n" if count else b"\n") + line)
        count += 1
    target.write(b'\n], "count": ' + str(count).encode() + b"}\n")
    return count


def _write_table(answer: duckdb.DuckDBPyRelation, target: IO[bytes]) -> int:
    cells = _rows_of(_as_text(answer, frozenset()))
    shown = list(islice(cells, _TABLE_ROWS))
    table = Table(*(escape(one_line(name)) for name in answer.columns), box=None)
    for row in shown:
        table.add_row(*(Text("NULL", "dim") if cell is None else Text(one_line(cell)) for cell in row))
    more = ", the first ones; --format shows all" if next(cells, None) is not None else ""
    page = io.StringIO()
    on_screen = target is sys.stdout.buffer and sys.stdout.isatty()
    console = Console(file=page, force_terminal=True) if on_screen else Console(file=page, width=_ENDLESS)
    console.print(table)
    console.print(Text(f"{len(shown):,} {'row' if len(shown) == 1 else 'rows'}{more}", "dim"))
    target.write(page.getvalue().encode("utf-8", "backslashreplace"))
    return len(shown)


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as error:  # Arrow hands on what DuckDB raises while the query runs
            raise duckdb.Error(str(error)) from None
        yield batch


def _rows_of(answer: duckdb.DuckDBPyRelation) -> Iterator[tuple[Any, ...]]:
    for batch in _batches(answer.to_arrow_reader(_BATCH_ROWS)):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _json_rows(answer: duckdb.DuckDBPyRelation) -> Iterator[bytes]:
    for (line,) in _rows_of(answer.set_alias("answer").project("to_json(answer)::VARCHAR AS line")):
        yield line.encode()


def _as_text(answer: duckdb.DuckDBPyRelation, plain: frozenset[str]) -> duckdb.DuckDBPyRelation:
    """The same rows, with every column as DuckDB spells it, but for those of the `plain` types."""
    columns = (
        f"#{place}" if str(kind) in plain else f"CAST(#{place} AS VARCHAR)"
        for place, kind in enumerate(answer.types, start=1)
    )
    names = ('"' + name.replace('"', '""') + '"' for name in answer.columns)
    return answer.project(", ".join(f"{column} AS {name}" for column, name in zip(columns, names, strict=True)))


_WRITERS: Final[dict[Format, Callable[[duckdb.DuckDBPyRelation, IO[bytes]], int]]] = {
    Format.TABLE: _write_table,
    Format.CSV: _write_csv,
    Format.JSON: _write_json,
    Format.JSONL: _write_jsonl,
    Format.PARQUET: _write_parquet,
}
