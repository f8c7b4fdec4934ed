"""Queries and conditions that a user writes: they read the lake's tables and nothing else.

`open_catalog` restricts what DuckDB may open. That is not enough: DuckDB always allows the paths of a database and of
its log, to which COPY can write, also within WITH. So the parsed query may contain only what reads tables.
"""

from __future__ import annotations

import json
import re
import resource
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb

from pipeline.errors import SettingsError
from pipeline.lake.duckdb_files import classify_read_error, short_message
from pipeline.lake.sql import sql_identifier

if TYPE_CHECKING:
    from collections.abc import Iterator

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
_RESERVED_PAGES: Final = Path("/proc/self/statm")


class _ForbiddenError(SettingsError):
    """The query does something other than to read tables."""

    def __init__(self, subject: str, hint: str = _READ_TABLES) -> None:
        super().__init__(f"{subject}: a query reads tables only.", hint=hint)


@contextmanager
def translate_query_errors(hint: str) -> Iterator[None]:
    """Raise `SettingsError` for wrong SQL, and for a query beyond its limits.

    Other errors of DuckDB pass: `open_catalog` translates them.
    """
    try:
        yield
    except duckdb.InterruptException:
        raise
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        what = "disk space" if "max_temp_directory_size" in str(error) else "memory"
        raise SettingsError(f"The query needs more {what} than it may use.", hint=_ASK_FOR_LESS) from error
    except duckdb.PermissionException as error:
        raise _ForbiddenError(_FILE) from error
    except duckdb.Error as error:
        if classify_read_error(error) is not None:
            raise
        raise SettingsError(short_message(error), hint=hint) from error


@contextmanager
def limit_address_space(size: int) -> Iterator[None]:
    """Let this process reserve at most `size` bytes more, and some for its threads. On Linux only.

    DuckDB's own limit does not count the computation of one huge value (seen with 2.0: `repeat('x', 4000000000)`).
    """
    if not _RESERVED_PAGES.exists():
        yield
        return
    reserved = int(_RESERVED_PAGES.read_bytes().split()[0]) * resource.getpagesize()
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
    _check_tree(json.loads(tree))


def strip_trailing_semicolon(query: str) -> str:
    """Return the query without its last semicolon: DuckDB puts the text into parentheses unchanged."""
    raw = query.encode()
    end = len(raw)
    for offset, kind in reversed(duckdb.tokenize(query)):  # offsets count bytes
        if kind != duckdb.token_type.comment and raw[offset : offset + 1] != b";":
            break
        end = offset
    return raw[:end].decode()


def cast_to_text(result: duckdb.DuckDBPyRelation, unchanged_types: frozenset[str]) -> duckdb.DuckDBPyRelation:
    """Return the rows with every column cast to DuckDB's text, except for columns of `unchanged_types`."""
    columns = (
        f"#{index}" if str(kind) in unchanged_types else f"CAST(#{index} AS VARCHAR)"
        for index, kind in enumerate(result.types, start=1)
    )
    names = map(sql_identifier, result.columns)
    return result.project(", ".join(f"{column} AS {name}" for column, name in zip(columns, names, strict=True)))


def _check_tree(tree: Any) -> None:
    """Check a parsed query: DuckDB writes each node of its syntax tree as an object with a type."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            _check_node(node)
            pending += node.values()


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
