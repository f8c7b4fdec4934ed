"""The served catalog: one connection at a time, opened for one page, with limits of time and rows."""

from __future__ import annotations

import re
import shutil
import threading
import time
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import duckdb
from msgspec import Struct

from pipeline.errors import LakeLockedError, ScanlakeError, SettingsError
from pipeline.lake.catalog.sql import sql_identifier
from pipeline.output.formatting import format_instant, format_instants, format_numbers, is_plain_number
from pipeline.query.reader import fetch_catalog_columns, fetch_dicts, open_catalog
from pipeline.query.sandbox import check_query, limit_address_space, strip_trailing_semicolon, translate_query_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pipeline.settings.settings import Settings

    Query = list[tuple[str, str]]
    """The parameters of an address, without what HTML and SQL cannot contain."""

_PAGE_SECONDS: Final = 10.0
_MAX_VALUE_CHARS: Final = 2_000  # a link of an image is shorter
_MAX_VALUES: Final = 50_000  # of a page: 2,000,000 took a minute and 75 MB
_KINDS: Final = {
    "whole": re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT|U?INTEGER"),
    "number": re.compile(r"DOUBLE|FLOAT|DECIMAL\(.*\)"),
    "time": re.compile(r"DATE|TIMESTAMP[^\[]*"),
    "nested": re.compile(r"JSON|(STRUCT|MAP|UNION|VARIANT)\b.*|.*\]"),
}
_INTERRUPT_SECONDS: Final = 0.05
_STOP_SECONDS: Final = 3.0
_STUCK_HINT: Final = "Wait until it ends, or stop scanlake serve with Ctrl-C and start it again."
_QUERY_HINT: Final = "Correct the query. The page Tables lists the tables and columns."
_TITLE: Final = re.compile(r"^-- (.+)\n", re.MULTILINE)
_DOCUMENTED: Final = re.compile(r"^\*\*\d+\. (.+?)\*\*.*?^```sql\n(.*?)^```", re.MULTILINE | re.DOTALL)
_Result = TypeVar("_Result")


class NothingFoundError(ScanlakeError):
    """A page's table or file does not exist."""


class BrowsedTable(Struct, frozen=True):
    """A table or view, those of meta as meta.NAME. `columns` are name to (type, comment)."""

    name: str
    contents: str
    columns: dict[str, tuple[str, str]]

    @property
    def sql_name(self) -> str:
        """The quoted name."""
        return ".".join(map(sql_identifier, self.name.split(".", 1) if self.name.startswith("meta.") else [self.name]))


class ResultColumn(Struct, frozen=True):
    """A column of a result. `type` is the one of DuckDB."""

    name: str
    type: str

    @property
    def kind(self) -> str:
        """What its values are: whole numbers, other numbers, times, nested values such as JSON, or texts."""
        return _classify_type(self.type)

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers: they are on the right."""
        return self.kind in {"whole", "number"}


@cache
def _classify_type(type_: str) -> str:
    return next((kind for kind, types in _KINDS.items() if types.fullmatch(type_)), "text")


class QueryRows(Struct, frozen=True):
    """Rows of a query as text; None is NULL.

    `all_columns` counts the columns of the query. `has_more`: the query has more rows than these.
    """

    columns: tuple[ResultColumn, ...]
    rows: tuple[tuple[str | None, ...], ...]
    has_more: bool
    all_columns: int

    @property
    def dicts(self) -> list[dict[str, str | None]]:
        """The rows by column."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    @property
    def pairs(self) -> list[tuple[tuple[str | None, ...], tuple[str | None, ...]]]:
        """Each row as it is, and with numbers and times as people write them."""
        values = zip(*self.rows, strict=True)
        return list(zip(self.rows, zip(*map(_format_values, self.columns, values), strict=True), strict=True))


class BrowsePage(Struct, frozen=True):
    """A page: its template, the heading, the values of the template, its script, and its HTTP status."""

    template: str
    heading: str
    values: Mapping[str, Any]
    script: str = ""
    status: int = 200


class CatalogAccess:
    """Opens the newest catalog for one caller at a time: DuckDB shares one locked instance per file and process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._is_stopped = False
        self._abandoned: Future[Any] | None = None
        self._spill = ""

    def stop(self) -> None:
        """End what is running, and refuse what comes."""
        self._is_stopped = True

    @property
    def is_stuck(self) -> bool:
        """Whether a query still runs that could not be stopped."""
        return self._abandoned is not None and not self._abandoned.done()

    def remove_spill(self) -> None:
        """Remove the temporary folder of a stuck query, before the process ends without its thread."""
        shutil.rmtree(self._spill, ignore_errors=True)

    @contextmanager
    def open(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open the catalog as `open_catalog` does, when no other caller has it open.

        Raises `LakeLockedError` while a query runs that could not be stopped.
        """
        while not self._lock.acquire(timeout=_INTERRUPT_SECONDS):
            if self._is_stopped or self.is_stuck:
                raise LakeLockedError("An earlier query cannot be stopped, and still runs.", hint=_STUCK_HINT)
        try:
            with open_catalog(self.settings) as lake:
                ((self._spill,),) = lake.execute("SELECT current_setting('temp_directory')").fetchall()
                yield lake
        finally:
            self._lock.release()

    def read(self, work: Callable[[duckdb.DuckDBPyConnection], _Result], seconds: float = _PAGE_SECONDS) -> _Result:
        """Return the result of `work` on the newest catalog. Raises `SettingsError` if it takes longer.

        DuckDB does not interrupt the computation of one value. So the work has a thread of its own, which is left
        alone then and does not keep the process from its end.
        """
        opened: list[duckdb.DuckDBPyConnection] = []
        result: Future[_Result] = Future()

        def run() -> None:
            try:
                with self.open() as lake, limit_address_space(self.settings.query_memory_bytes):
                    opened.append(lake)
                    value = work(lake)
            except BaseException as error:  # noqa: BLE001 - it is raised in the other thread
                result.set_exception(error)
            else:
                result.set_result(value)

        threading.Thread(target=run, name="browse", daemon=True).start()
        end = None
        while not self._is_stopped and (end is None or time.monotonic() < end):
            if wait([result], timeout=_INTERRUPT_SECONDS).done:
                return result.result()
            if opened and end is None:
                end = time.monotonic() + seconds
        end = time.monotonic() + _STOP_SECONDS
        while not result.done() and time.monotonic() < end:
            with suppress(duckdb.Error):  # it has just been closed
                for lake in opened:  # repeatedly, because an interrupt between two statements has no effect
                    lake.interrupt()
            wait([result], timeout=_INTERRUPT_SECONDS)
        if not result.done():
            self._abandoned = result
            raise SettingsError(f"The query took more than {seconds:.0f} s and cannot be stopped.", hint=_STUCK_HINT)
        raise SettingsError(
            f"The query took more than {seconds:.0f} s and was stopped.",
            hint="Read fewer rows, or run it with `scanlake query`, which has no limit.",
        )


def read_queries(name: str) -> dict[str, str]:
    """Return the queries of a file of this package by the comment above each."""
    text = files("pipeline.query").joinpath(name).read_text(encoding="utf-8")
    _, *parts = _TITLE.split(text)
    return {title: query.strip() for title, query in zip(parts[::2], parts[1::2], strict=True)}


def read_documented_queries() -> dict[str, str]:
    """Return the queries of docs/queries.md that read one catalog by their questions."""
    page = files("pipeline.query").joinpath("queries.md")  # in a wheel; a checkout has it in docs
    text = (page if page.is_file() else Path(__file__).parents[2] / "docs/queries.md").read_text(encoding="utf-8")
    return {title: query.strip() for title, query in _DOCUMENTED.findall(text) if "ATTACH" not in query}


def clean_text(text: str) -> str:
    """Return the text without what HTML and SQL cannot contain."""
    return text.encode("utf-8", "replace").decode().replace("\0", "").replace("\r\n", "\n")


def describe_snapshot(lake: duckdb.DuckDBPyConnection) -> str:
    """Return which snapshot a page shows."""
    fresh = fetch_dicts(lake, "SELECT snapshot, complete, watermark FROM meta.freshness")[0]
    if fresh["watermark"] is None:
        return f"Snapshot {fresh['snapshot']} is incomplete: the sync that lists all files has not finished."
    text = f"Snapshot {fresh['snapshot']} has everything updated before {format_instant(fresh['watermark'])}"
    return f"{text}." if fresh["complete"] else f"{text}, and a part of what a run has fetched since."


def list_catalog_tables(lake: duckdb.DuckDBPyConnection) -> dict[str, BrowsedTable]:
    """Return the tables and views of the catalog by name."""
    tables: dict[str, BrowsedTable] = {}
    for row in fetch_catalog_columns(lake):
        table = tables.setdefault(row["name"], BrowsedTable(row["name"], row["comment"], {}))
        table.columns[row["column_name"]] = (row["data_type"], row["column_comment"])
    return tables


def read_query(lake: duckdb.DuckDBPyConnection, query: str, max_rows: int) -> QueryRows:
    """Return the first rows of a query that a user may write. Raises `SettingsError` if it is wrong or not allowed."""
    with translate_query_errors(_QUERY_HINT):
        query = strip_trailing_semicolon(query)
        if not query.strip():
            raise SettingsError("The query is empty.", hint=_QUERY_HINT)
        check_query(lake, query)
        return read_rows(lake, query, max_rows)


def read_rows(lake: duckdb.DuckDBPyConnection, query: str, max_rows: int) -> QueryRows:
    """Return the first rows of a query."""
    result = lake.sql(query)
    columns = tuple(map(ResultColumn, result.columns, map(str, result.types)))[: _MAX_VALUES // max_rows]
    texts = ", ".join(
        f"if(length({text}) > {_MAX_VALUE_CHARS}, left({text}, {_MAX_VALUE_CHARS - 1}) || '…', {text})"
        for text in (f"#{index}::VARCHAR" for index, _ in enumerate(columns, 1))
    )
    # All at once: a result that is left unread after an error keeps the catalog open, for the next page, too.
    rows = tuple(result.limit(max_rows + 1).project(texts).fetchall())
    return QueryRows(columns, rows[:max_rows], len(rows) > max_rows, len(result.columns))


def _format_values(column: ResultColumn, values: Sequence[str | None]) -> Sequence[str | None]:
    if column.is_number and not is_plain_number(column.name):
        return format_numbers(values)
    return format_instants(values) if column.kind == "time" else values
