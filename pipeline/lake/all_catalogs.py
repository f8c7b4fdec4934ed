"""The catalogs of several lakes as one database in memory: every table has the rows of all of them."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.duckdb_files import describe_damage
from pipeline.lake.layout import LakeLayout
from pipeline.lake.ledger_format import refuse_other_formats
from pipeline.lake.reader import CATALOG, restrict_access, translate_reader_errors
from pipeline.lake.sql import UTC_NOW_SQL, sql_identifier, sql_literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

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
            _attach(connection, name, (lake / CATALOG).absolute())
        _create_views(connection, list(lakes))
        restrict_access(connection, spill, memory)
        with translate_reader_errors():
            yield connection


def _attach(connection: duckdb.DuckDBPyConnection, name: str, path: Path) -> None:
    try:
        connection.execute(f"ATTACH {sql_literal(str(path))} AS {sql_identifier(name)} (TYPE duckdb, READ_ONLY)")
    except duckdb.Error as error:
        raise LakeCorruptedError(f"{name}: the catalog cannot be opened: {describe_damage(error)}.") from error


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
