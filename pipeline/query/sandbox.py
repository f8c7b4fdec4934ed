"""What a query that a user writes may do, and how much it may use.

A restricted connection is not enough: DuckDB always allows the paths of a database and of its log, to which COPY can
write, also within WITH. So the parsed query may contain only what reads tables.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import duckdb

from pipeline.errors import RunInterrupted, SettingsError
from pipeline.lake.catalog.duckdb import (
    classify_read_error,
    find_excerpt,
    short_message,
)
from pipeline.lake.catalog.sql import sql_literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


SPILL_FACTOR: Final = 4
"""How much disk space a query may use, in parts of its memory."""
_INTERRUPT_INTERVAL_SECONDS: Final = 0.05
_Result = TypeVar("_Result")
TABLE_FUNCTIONS: Final = frozenset({
    "duckdb_columns", "duckdb_constraints", "duckdb_databases", "duckdb_functions", "duckdb_keywords",
    "duckdb_schemas", "duckdb_settings", "duckdb_tables", "duckdb_types", "duckdb_views", "generate_series",
    "histogram", "histogram_values", "icu_calendar_names", "json_each", "json_tree", "pg_timezone_names",
    "pragma_table_info", "pragma_version", "range", "repeat", "repeat_row", "summary", "unnest"
})  # fmt: skip
"""Table functions that read nothing but tables and values. docs/queries.md names them."""
_READING_NODES: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_FILE: Final = "A file"
_FILE_NAME: Final = re.compile(r"[/\\.:*?]")
_READ_TABLES: Final = "Use SELECT, FROM, PIVOT, DESCRIBE or SHOW on the tables that `scanlake tables` lists."
_ASK_FOR_LESS: Final = "Filter, aggregate, or select fewer columns; or raise `query_memory_bytes`."
_THREADS_BYTES: Final = 1_000_000_000  # stacks and arenas of DuckDB's threads, most of it never used
_UNCOUNTED_BYTES: Final = 250_000_000  # what DuckDB does not count: threads, batches of a result, libraries
_WATCH_SECONDS: Final = 0.02
_PAGES: Final = Path("/proc/self/statm")


def run_interruptibly(connection: duckdb.DuckDBPyConnection, work: Callable[[], _Result], memory: int) -> _Result:
    """Run `work` in a worker thread, so that Ctrl-C can interrupt DuckDB from the main thread.

    It may use `memory` bytes. DuckDB does not interrupt the computation of one value: a second Ctrl-C ends the process,
    and so does a value that takes far more. Raises `SettingsError` beyond a limit.
    """
    with ThreadPoolExecutor(1) as thread, _translate_limits():
        ((spill,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
        result = thread.submit(work)
        try:
            _watch_memory(result, connection, memory, spill)
            return result.result()
        except KeyboardInterrupt:
            handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
            try:
                while not result.done():  # repeatedly, because an interrupt between two statements has no effect
                    connection.interrupt()
                    wait([result], timeout=_INTERRUPT_INTERVAL_SECONDS)
            finally:
                signal.signal(signal.SIGINT, handler)
            raise RunInterrupted("Interrupted.", hint="Run the command again.") from None


def _watch_memory(result: Future[_Result], connection: duckdb.DuckDBPyConnection, memory: int, spill: str) -> None:
    """Wait for the result, with the memory that this process really uses within its limit. On Linux only.

    DuckDB's own limit does not count all that it uses, and it reserves far more than it ever uses: 16 GB for 200
    aggregates with a FILTER (2.0). Raises `SettingsError`, or ends the process as this error does.
    """
    limit = _count_used_bytes() + memory + _UNCOUNTED_BYTES
    is_over = False
    while not wait([result], timeout=_WATCH_SECONDS).done:
        used = _count_used_bytes()
        if used > limit + _UNCOUNTED_BYTES:  # it has not ended: nothing interrupts it
            error = _LimitError("memory")
            shutil.rmtree(spill, ignore_errors=True)
            sys.excepthook(type(error), error, None)
            os._exit(error.exit_code)
        if used > limit:
            is_over = True
            connection.interrupt()
    if is_over and result.exception() is not None:
        raise _LimitError("memory")


def _count_used_bytes() -> int:
    """Return the memory that this process uses; 0 where the system does not show it."""
    return int(_PAGES.read_bytes().split()[1]) * resource.getpagesize() if _PAGES.exists() else 0


def restrict_access(connection: duckdb.DuckDBPyConnection, spill: str, memory: int) -> None:
    """Let SQL open no other file, use `memory` bytes, and spill large sorts; SQL cannot undo it."""
    for statement in (
        f"SET memory_limit = '{memory}B'",
        f"SET max_temp_directory_size = '{memory * SPILL_FACTOR}B'",
        f"SET temp_directory = {sql_literal(spill)}",
        "SET enable_progress_bar = false",  # DuckDB prints it to standard output when that is a terminal
        "SET autoinstall_known_extensions = false",
        "SET autoload_known_extensions = false",
        "SET allow_community_extensions = false",
        "SET python_enable_replacements = false",  # no variable of scanlake is a table
        "SET enable_external_access = false",
        "SET TimeZone = 'UTC'",
        "SET lock_configuration = true",
    ):
        connection.execute(statement)


class _ForbiddenError(SettingsError):
    """The query does something other than to read tables."""

    def __init__(self, subject: str, hint: str = _READ_TABLES) -> None:
        super().__init__(f"{subject}: a query reads tables only.", hint=hint)


class _LimitError(SettingsError):
    """A query needs more than it may use."""

    def __init__(self, what: str) -> None:
        super().__init__(f"The query needs more {what} than it may use.", hint=_ASK_FOR_LESS)


@contextmanager
def _translate_limits() -> Iterator[None]:
    try:
        yield
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        raise _LimitError("disk space" if "max_temp_directory_size" in str(error) else "memory") from error


@contextmanager
def translate_query_errors(hint: str) -> Iterator[None]:
    """Raise `SettingsError` for wrong SQL, and for a query beyond its limits.

    Other errors of DuckDB pass: `open_catalog` translates them.
    """
    try:
        with _translate_limits():
            yield
    except duckdb.InterruptException:
        raise
    except duckdb.PermissionException as error:
        raise _ForbiddenError(_FILE) from error
    except duckdb.Error as error:
        if classify_read_error(error) is not None:
            raise
        raise SettingsError(short_message(error), hint=hint, excerpt=find_excerpt(error)) from error


@contextmanager
def limit_address_space(size: int) -> Iterator[None]:
    """Let this process reserve at most `size` bytes more, and some for its threads. On Linux only.

    For a process that must go on: DuckDB's own limit does not count the computation of one huge value (seen with 2.0:
    `repeat('x', 4000000000)`), and nothing interrupts it.
    """
    if not _PAGES.exists():
        yield
        return
    reserved = int(_PAGES.read_bytes().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = reserved + size + _THREADS_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check_query(lake: duckdb.DuckDBPyConnection, query: str) -> None:
    """Raise `SettingsError` unless the query is one statement that reads tables; `duckdb.Error` if it is no SQL."""
    statements = duckdb.extract_statements(query)
    if len(statements) != 1:
        raise SettingsError("One query is required.", hint="Remove the semicolon.")
    kind = statements[0].type
    if kind == duckdb.StatementType.MULTI:  # DuckDB makes two statements of it, and shows the tree of neither
        raise _ForbiddenError("PIVOT without IN", hint="Name the values: PIVOT files ON closed IN (true, false).")
    if kind != duckdb.StatementType.SELECT:
        raise _ForbiddenError(kind.name)
    ((tree,),) = lake.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    described = json.loads(tree)
    if described.get("error"):  # what cannot be looked at is not run
        raise _ForbiddenError("a statement without a syntax tree")
    pending = [described]
    while pending:  # DuckDB writes each node of the syntax tree as an object with a type
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            _check_node(node)
            pending += node.values()


def strip_trailing_semicolon(query: str) -> str:
    """Return the query without its last semicolon: DuckDB puts the text into parentheses unchanged."""
    raw = query.encode()
    end = len(raw)
    for offset, kind in reversed(duckdb.tokenize(query)):  # offsets count bytes
        if kind != duckdb.token_type.comment and raw[offset : offset + 1] != b";":
            break
        end = offset
    return raw[:end].decode()


def _check_node(node: dict[str, Any]) -> None:
    kind = node.get("type")
    if not isinstance(kind, str):
        return
    if kind.endswith("_NODE") and kind not in _READING_NODES:
        raise _ForbiddenError(kind.removesuffix("_NODE").removesuffix("_QUERY"))
    if kind == "TABLE_FUNCTION":
        name = str(node.get("function", {}).get("function_name"))
        if name.lower() not in TABLE_FUNCTIONS:
            raise _ForbiddenError(f"{name}()")
    if kind == "BASE_TABLE" and _FILE_NAME.search(str(node.get("table_name"))):
        raise _ForbiddenError(_FILE)
