"""Read access to the published catalog of a lake, or of all sources, as analysts see it."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import duckdb

from pipeline.errors import LakeCorruptedError, RunInterrupted, ScanlakeError, SettingsError
from pipeline.lake.catalog.duckdb import (
    classify_read_error,
    describe_damage,
    is_interrupt,
    is_not_a_database,
    log_path,
    open_read_only,
    refuse_log,
    refuse_other_kinds,
    short_message,
)
from pipeline.lake.catalog.folder_checks import FRESHNESS_VIEW, foreign_catalog_error
from pipeline.lake.catalog.sql import UTC_NOW_SQL, sql_identifier, sql_literal
from pipeline.lake.ledger.folder import FolderKind, classify_folder, missing_catalog_error
from pipeline.lake.ledger.format import refuse_other_formats
from pipeline.lake.storage.layout import LakeLayout
from pipeline.output.logs import log
from pipeline.query.sandbox import restrict_access

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pipeline.settings.settings import Settings

CATALOG: Final = "catalog.duckdb"
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


def cast_to_text(result: duckdb.DuckDBPyRelation, unchanged_types: frozenset[str]) -> duckdb.DuckDBPyRelation:
    """Return the rows with every column cast to DuckDB's text, except for columns of `unchanged_types`."""
    columns = (
        f"#{index}" if str(kind) in unchanged_types else f"CAST(#{index} AS VARCHAR)"
        for index, kind in enumerate(result.types, start=1)
    )
    names = map(sql_identifier, result.columns)
    return result.project(", ".join(f"{column} AS {name}" for column, name in zip(columns, names, strict=True)))
