"""Read access to the published catalog, as analysts see it.

`open_catalog` restricts what DuckDB may open. That is not enough: DuckDB always allows the paths of a database and of
its log, to which COPY can write, also within WITH. So the parsed query of a user may contain only what reads tables.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import duckdb

from pipeline.errors import LakeCorruptedError, RunInterrupted, ScanlakeError, SettingsError
from pipeline.lake.catalog.duckdb import (
    classify_read_error,
    describe_damage,
    find_excerpt,
    is_interrupt,
    is_not_a_database,
    log_path,
    open_read_only,
    read_database,
    refuse_log,
    refuse_other_kinds,
    short_message,
)
from pipeline.lake.catalog.folder_checks import FRESHNESS_VIEW, foreign_catalog_error
from pipeline.lake.catalog.sql import UTC_NOW_SQL, sql_identifier, sql_literal
from pipeline.lake.ledger.folder import FolderKind, classify_folder, missing_catalog_error
from pipeline.lake.ledger.format import (
    refuse_other_formats,
)
from pipeline.lake.storage.layout import LakeLayout
from pipeline.output.logs import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pipeline.settings.settings import Settings

CATALOG: Final = "catalog.duckdb"

SPILL_FACTOR: Final = 4
"""How much disk space a query may use, in parts of its memory."""

_INTERRUPT_INTERVAL_SECONDS: Final = 0.05
_Result = TypeVar("_Result")
_COLUMNS_SQL: Final = """
    SELECT CASE schema_name WHEN 'main' THEN '' ELSE 'meta.' END || table_name AS name, columns.column_name,
           columns.data_type, coalesce(columns.comment, '') AS column_comment, coalesce(tables.comment, '') AS comment
    FROM duckdb_columns() AS columns JOIN (
        SELECT database_name, schema_name, view_name AS table_name, comment FROM duckdb_views()
        UNION ALL
        SELECT database_name, schema_name, table_name, comment FROM duckdb_tables()
    ) AS tables USING (database_name, schema_name, table_name)
    WHERE database_name = current_database() AND schema_name IN ('main', 'meta') AND NOT starts_with(table_name, '_')
    ORDER BY schema_name, table_name, column_index"""


# Catalog
SOURCE_COLUMN: Final = "source"
"""The first column of every table: the source that the row comes from, as the settings file names it."""
_OWN_COLUMN: Final = "source (2)"  # a column of the same name, such as a custom field in fields_wide
_TABLES_SQL: Final = f"""
    SELECT tables.schema_name, tables.table_name, list(DISTINCT tables.database_name),
           list(DISTINCT columns.database_name) FILTER (lower(column_name) = '{SOURCE_COLUMN}')
    FROM (SELECT database_name, schema_name, table_name FROM duckdb_tables()
          UNION ALL SELECT database_name, schema_name, view_name FROM duckdb_views() WHERE NOT internal) AS tables
    JOIN duckdb_columns() AS columns USING (database_name, schema_name, table_name)
    WHERE tables.schema_name IN ('main', 'meta') AND NOT starts_with(tables.table_name, '_')
    GROUP BY tables.schema_name, tables.table_name"""
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


def has_catalog(settings: Settings) -> bool:
    """Return whether a catalog has been published."""
    return (settings.lake / CATALOG).is_file()


@contextmanager
def open_catalog(settings: Settings) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the published catalog read-only. SQL can access no other file: a token may be kept beside it.

    Raises `missing_catalog_error`, and the errors of `classify_read_error` if the catalog is not readable.
    """
    path = (settings.lake / CATALOG).absolute()
    if not path.is_file():
        raise missing_catalog_error(LakeLayout(path.parent), settings)
    refuse_other_formats(LakeLayout(path.parent).ledger)
    try:
        connection = open_read_only(path)
    except duckdb.Error as error:
        if is_not_a_database(error) and classify_folder(LakeLayout(path.parent)) is FolderKind.OTHER:
            raise foreign_catalog_error(path) from error
        raise _open_error(path, error) from error
    with connection, tempfile.TemporaryDirectory(prefix="scanlake-") as spill:
        # A view of a catalog from elsewhere could read files: it is asked for nothing before that is refused.
        restrict_access(connection, spill, settings.query_memory_bytes)
        with translate_reader_errors():
            _refuse_foreign_catalog(connection, path)
            yield connection


@contextmanager
def translate_reader_errors() -> Iterator[None]:
    """Raise the errors of `classify_read_error` for those of DuckDB."""
    try:
        yield
    except (duckdb.Error, RuntimeError) as error:
        if is_interrupt(error):
            raise RunInterrupted("Interrupted.", hint="Run the command again.") from None
        failure = classify_read_error(error) if isinstance(error, duckdb.Error) else None
        if failure is None:
            raise
        raise failure from error


def warn_if_incomplete(connection: duckdb.DuckDBPyConnection) -> None:
    """Warn if the published snapshot lacks files that the service had; of several sources, the first that does."""
    with suppress(duckdb.Error, LakeCorruptedError):
        for row in fetch_dicts(connection, f"FROM {FRESHNESS_VIEW}"):
            if row["watermark"] is None:
                lacks = "is incomplete: the sync that lists all files has not finished."
            elif not row["complete"]:
                lacks = "was published during a run: some of the newest changes are missing."
            else:
                continue
            of_source = f" of {row['source']}" if "source" in row else ""
            reason = f"Snapshot {row['snapshot']}{of_source} {lacks}"
            log.warning("snapshot.incomplete", reason=reason, hint="Run `scanlake status`.")
            return


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


@contextmanager
def refuse_other_columns() -> Iterator[None]:
    """Raise `LakeCorruptedError` if one of scanlake's own queries does not fit the catalog."""
    try:
        yield
    except (duckdb.CatalogException, duckdb.BinderException) as error:
        raise LakeCorruptedError(
            f"The catalog has other columns than this version of scanlake: {short_message(error)}",
            hint="Run `scanlake sync` to publish it again.",
        ) from error


def fetch_dicts(connection: duckdb.DuckDBPyConnection, sql: str, *values: Any) -> list[dict[str, Any]]:
    """Return the rows of one of scanlake's own queries, each as a mapping from column to value."""
    with refuse_other_columns():
        result = connection.execute(sql, values)
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def fetch_catalog_columns(lake: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Return the columns of all tables and views as {name, comment, column_name, data_type, column_comment}.

    They are in order; `name` and `comment` are those of the table, one of meta is meta.NAME.
    """
    return fetch_dicts(lake, _COLUMNS_SQL)


def _refuse_foreign_catalog(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Raise `SettingsError` if the catalog is another program's."""
    try:
        connection.execute(f"SELECT snapshot FROM {FRESHNESS_VIEW}").fetchall()
    except duckdb.Error as error:
        if is_interrupt(error) or isinstance(error, duckdb.OutOfMemoryException):
            raise
        raise classify_read_error(error) or foreign_catalog_error(path) from error


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


def _open_error(path: Path, error: duckdb.Error) -> ScanlakeError:
    failure = classify_read_error(error)
    if failure is not None and not isinstance(failure, LakeCorruptedError):
        return failure
    wal = log_path(path)
    if wal.exists() and not wal.is_file():
        return LakeCorruptedError(f"{wal} is not a file.", hint=f"Move {wal} away.")
    if wal.exists():
        return LakeCorruptedError(
            f"A session that wrote to the catalog left {wal.name}.",
            hint=f"Remove {wal}, or run `scanlake sync`, which removes it.",
        )
    return LakeCorruptedError(f"The catalog cannot be opened: {describe_damage(error)}.")


# All sources


@contextmanager
def open_all_catalogs(lakes: Mapping[str, Path], *, memory: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the published catalogs of all sources, each under the name of its source, and their union in `main`.

    A query may use `memory` bytes. Nothing can be written to the catalogs, and SQL can access no other file. Raises
    `SettingsError` if a source has published nothing yet: a total without it would be wrong.
    """
    for name, lake in lakes.items():
        if not (lake / CATALOG).is_file():
            raise SettingsError(
                f"Source {name} has no lake at {lake} yet.",
                hint=f"Run `scanlake sync --source {name}`, or query one of the others with --source.",
            )
        refuse_other_formats(LakeLayout(lake).ledger)
    with duckdb.connect(":memory:") as connection, tempfile.TemporaryDirectory(prefix="scanlake-") as spill:
        for name, lake in lakes.items():
            path = (lake / CATALOG).absolute()
            try:
                refuse_other_kinds(path)
                connection.execute(
                    f"ATTACH {sql_literal(str(path))} AS {sql_identifier(name)} (TYPE duckdb, READ_ONLY)"
                )
                refuse_log(path)
            except duckdb.Error as error:
                raise LakeCorruptedError(f"{name}: the catalog cannot be opened: {describe_damage(error)}.") from error
        _create_views(connection, list(lakes))
        restrict_access(connection, spill, memory)
        with translate_reader_errors():
            yield connection


def _create_views(connection: duckdb.DuckDBPyConnection, sources: Iterable[str]) -> None:
    connection.execute(f"CREATE MACRO main.utc_now() AS ({UTC_NOW_SQL})")
    connection.execute("CREATE SCHEMA meta")
    for schema, table, owners, renamed in connection.execute(_TABLES_SQL).fetchall():
        queries = [
            f"SELECT {sql_literal(source)} AS {SOURCE_COLUMN},"
            f" *{f' RENAME ({SOURCE_COLUMN} AS {sql_identifier(_OWN_COLUMN)})' if source in (renamed or ()) else ''}"
            f" FROM {sql_identifier(source)}.{schema}.{sql_identifier(table)}"
            for source in sources
            if source in owners
        ]
        connection.execute(f"CREATE VIEW {schema}.{sql_identifier(table)} AS {' UNION ALL BY NAME '.join(queries)}")


# Queries that a user writes


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
    pending = [json.loads(tree)]
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


def cast_to_text(result: duckdb.DuckDBPyRelation, unchanged_types: frozenset[str]) -> duckdb.DuckDBPyRelation:
    """Return the rows with every column cast to DuckDB's text, except for columns of `unchanged_types`."""
    columns = (
        f"#{index}" if str(kind) in unchanged_types else f"CAST(#{index} AS VARCHAR)"
        for index, kind in enumerate(result.types, start=1)
    )
    names = map(sql_identifier, result.columns)
    return result.project(", ".join(f"{column} AS {name}" for column, name in zip(columns, names, strict=True)))


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


def count_new_rows(layout: LakeLayout, *, since_seq: int) -> dict[str, int]:
    """Return the number of rows by table that the published catalog has of a commit and the later ones."""
    if not layout.catalog.exists():
        return {}
    with read_database(layout.catalog) as db:
        columns = "FROM duckdb_columns() WHERE column_name = '_seq' AND database_name = 'lake'"
        tables = db.execute(f"SELECT table_name, schema_name || '.' || table_name {columns} ORDER BY ALL").fetchall()
        sql = "SELECT count(*) FROM {} WHERE _seq >= {}"
        counts = {name: db.execute(sql.format(path, since_seq)).fetchall()[0][0] for name, path in tables}
    return {name: rows for name, rows in counts.items() if rows}
