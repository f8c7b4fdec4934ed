"""Union of the catalogs of several lakes: every table of every source, with a column `_source`.

DuckDB cannot read the views of another catalog unless the session attaches it. The union therefore embeds the views of
each source, in a schema with the name of the source, and reads the same parts. It shows the snapshots that the sources
had published when it was written. `refresh_if_present` writes it again after a publish.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Final

import duckdb
import structlog

from pipeline.atomic_files import lock_file
from pipeline.config import lake_paths, source_names, union_path
from pipeline.errors import LakeCorruptedError, ScanlakeError, SettingsError
from pipeline.lake.catalog_images import IMAGES_TABLE
from pipeline.lake.duckdb import STORAGE_VERSION
from pipeline.lake.duckdb_errors import short_message, translate_duckdb_errors
from pipeline.lake.layout import LakeLayout, translate_os_errors, write_read_only
from pipeline.lake.physical_tables import PHYSICAL_SCHEMA, SUPERSEDED_VERSIONS
from pipeline.lake.reader import CATALOG
from pipeline.lake.sql import UTC_NOW_SQL, sql_identifier, sql_literal
from schemas.tables import FILES, TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_TEXT_OR_SCHEMA: Final = re.compile(rf"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\b(?:main|{PHYSICAL_SCHEMA})\.""")
_VIEW_OF_MAIN: Final = re.compile(r"\bmain\.(\w+)")
_HIDDEN_TABLES: Final = frozenset({"_ledger", "_parts", "_superseded_versions"})  # of earlier versions
_HIDDEN: Final = "_meta_"  # prefix of a view of meta in the schema of its source, which has the views of main
_SOURCE_COLUMN_COMMENT: Final = "Source the row comes from, as the settings file names it."

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class UnionResult:
    """Result of writing a union: snapshot of each source, and sources without a published catalog."""

    path: Path
    snapshots: dict[str, int]
    missing: list[str]
    views: list[str]


def write_union(lakes: Mapping[str, Path], out: Path) -> UnionResult:
    """Write the union of the published catalogs to `out` atomically.

    Raises `SettingsError` if no source has published, or if the parts of a source cannot be read from this machine.
    """
    catalogs = {name: (lake / CATALOG).absolute() for name, lake in lakes.items() if (lake / CATALOG).is_file()}
    missing = [name for name in lakes if name not in catalogs]
    if not catalogs:
        raise SettingsError("No source has published a catalog yet.", hint="Run `scanlake sync --all` first.")
    if out.absolute() in catalogs.values():
        raise SettingsError(f"{out} is the catalog of a source.", hint="Choose another path for --out.")
    with translate_os_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with translate_os_errors(out):  # without the lock, a union of older catalogs could be written last
            stack.enter_context(lock_file(out.absolute().parent, blocking=True))
        with (
            write_read_only(out.absolute()) as temp,
            translate_duckdb_errors(out.name),
            duckdb.connect(":memory:") as db,
        ):
            views, snapshots = _build(db, temp, catalogs)
        with translate_os_errors(out):  # of a session that wrote to the old union; DuckDB would replay it
            out.with_name(f"{out.name}.wal").unlink(missing_ok=True)
    return UnionResult(out.absolute(), snapshots, missing, views)


def check_is_union_file(out: Path) -> None:
    """Raise `SettingsError` if `out` exists and is not a union, because it would be lost."""
    if not os.path.lexists(out):
        return
    reason = ""
    try:
        with duckdb.connect(":memory:") as db:
            db.execute(f"ATTACH {sql_literal(str(out.absolute()))} AS former (TYPE duckdb, READ_ONLY)")
            rows = db.execute(
                "SELECT count(*) FROM duckdb_columns() WHERE database_name = 'former' AND schema_name = 'meta'"
                " AND table_name = '_freshness' AND column_name = '_source' AND comment = ?",
                [_SOURCE_COLUMN_COMMENT],
            ).fetchall()
    except duckdb.Error as error:
        rows, reason = [(0,)], f" ({short_message(error).rstrip('.')})" if _is_database(out) else ""
    if out.is_symlink() or rows == [(0,)]:
        raise SettingsError(
            f"{out} exists and is not a union{reason}. The file is not overwritten.",
            hint="Choose a new path for --out, or move the file.",
        )


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(12)[8:] == b"DUCK"
    except OSError:
        return False


def _build(db: duckdb.DuckDBPyConnection, temp: Path, catalogs: Mapping[str, Path]) -> tuple[list[str], dict[str, int]]:
    db.execute("SET threads = 1")
    view_owners = [_attach(db, index, name, path) for index, (name, path) in enumerate(catalogs.items())]
    db.execute(f"ATTACH {sql_literal(str(temp))} AS united (STORAGE_VERSION '{STORAGE_VERSION}')")
    db.execute("USE united")
    db.execute("BEGIN")
    db.execute(f"CREATE MACRO main.utc_now() AS ({UTC_NOW_SQL})")
    for name, owner in zip(catalogs, view_owners, strict=True):
        _copy_views(db, owner, name)
    views = _create_union_views(db, list(catalogs))
    views += _create_union_images(db, list(catalogs))
    _create_union_meta(db, list(catalogs))
    rows = db.execute("SELECT _source, snapshot FROM meta._freshness").fetchall()
    db.execute("COMMIT")
    db.execute("USE memory")
    db.execute("DETACH united")
    return views, {str(name): int(snapshot) for name, snapshot in rows}


def _attach(db: duckdb.DuckDBPyConnection, index: int, name: str, path: Path) -> str:
    """Attach the catalog of a source as `source_<index>`. Return the attached database whose tables are views.

    For a catalog of tables that is the snapshot that it shows: rows would make the union as large as its sources.
    """
    alias = f"source_{index}"
    try:
        db.execute(f"ATTACH {sql_literal(str(path))} AS {alias} (TYPE duckdb, READ_ONLY)")
        tables = "SELECT 1 FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'main' AND table_name = ?"
        if not db.execute(tables, [alias, FILES.name]).fetchall():
            return alias
        ((number,),) = db.execute(f"SELECT snapshot FROM {alias}.meta._freshness").fetchall()
        snapshot = LakeLayout(path.parent).snapshot_path(number)
        db.execute(f"ATTACH {sql_literal(str(snapshot))} AS views_{index} (TYPE duckdb, READ_ONLY)")
    except duckdb.Error as error:
        raise LakeCorruptedError(f"{name}: the catalog cannot be opened: {short_message(error)}") from error
    return f"views_{index}"


def _copy_views(db: duckdb.DuckDBPyConnection, catalog: str, source: str) -> None:
    """Copy the views of a source, and the table that they read besides its parts, into a schema of its name."""
    schema = sql_identifier(source)
    db.execute(f"CREATE SCHEMA {schema}")
    superseded = SUPERSEDED_VERSIONS.removeprefix(f"{PHYSICAL_SCHEMA}.")
    db.execute(f"CREATE TABLE {schema}.{superseded} AS FROM {catalog}.{SUPERSEDED_VERSIONS}")
    rows = db.execute(
        "SELECT schema_name = 'main', view_name, sql FROM duckdb_views() WHERE NOT internal AND database_name = ?"
        " AND schema_name IN ('main', 'meta') AND NOT (schema_name = 'meta' AND view_name = 'freshness')",
        [catalog],
    ).fetchall()
    views = {str(name) if is_main else _HIDDEN + str(name): str(sql) for is_main, name, sql in rows}
    for name in _sort_by_dependency(views):
        try:
            db.execute(f"CREATE VIEW {schema}.{sql_identifier(name)} AS {_rewrite_schema(views[name], schema)}")
        except duckdb.IOException as error:
            raise SettingsError(
                f"{source}: the parts of the catalog cannot be read from this machine: {short_message(error)}",
                hint="Write the union on a machine with access to `reader_root`, or run `scanlake publish`.",
            ) from error
        except duckdb.Error as error:
            raise LakeCorruptedError(f"{source}: the view {name} cannot be read: {short_message(error)}") from error
    _copy_comments(db, catalog, "main", schema)


def _sort_by_dependency(views: Mapping[str, str]) -> list[str]:
    """Return the names of the views, each after the views that it reads."""
    reads = {name: views.keys() & set(_VIEW_OF_MAIN.findall(sql)) - {name} for name, sql in views.items()}
    return list(TopologicalSorter(reads).static_order())


def _rewrite_schema(sql: str, schema: str) -> str:
    """Return the query of a view, with the schema of the source instead of its own."""
    body = sql.rstrip("; \n").partition(" AS ")[2]
    return _TEXT_OR_SCHEMA.sub(lambda match: match[0] if match[0][0] in "'\"" else f"{schema}.", body)


def _create_union_views(db: duckdb.DuckDBPyConnection, sources: Sequence[str]) -> list[str]:
    views = db.execute(
        "SELECT view_name, list(schema_name), first(schema_name) FROM duckdb_views() WHERE NOT internal"
        " AND database_name = 'united' AND NOT starts_with(view_name, '_') GROUP BY view_name ORDER BY view_name"
    ).fetchall()
    for name, schemas, first in views:
        owners = {source: sql_identifier(source) for source in sources if source in schemas}
        _create_union(db, "VIEW", "main", str(name), owners)
        _copy_comments(db, "united", str(first), "main", only=str(name))
    return [str(name) for name, _, _ in views]


def _create_union(db: duckdb.DuckDBPyConnection, kind: str, schema: str, name: str, owners: Mapping[str, str]) -> None:
    """Create the union of a view or table. `owners` are the schemas that have it, by source."""
    table, prefix = sql_identifier(name), _HIDDEN if kind == "VIEW" and schema == "meta" else ""
    queries = [
        f"SELECT {sql_literal(source)} AS _source, * FROM {owner}.{sql_identifier(prefix + name)}"
        for source, owner in owners.items()
    ]
    db.execute(f"CREATE {kind} {schema}.{table} AS {' UNION ALL BY NAME '.join(queries)}")
    db.execute(f"COMMENT ON COLUMN {schema}.{table}._source IS {sql_literal(_SOURCE_COLUMN_COMMENT)}")


def _create_union_images(db: duckdb.DuckDBPyConnection, sources: Sequence[str]) -> list[str]:
    """Copy the table of images of the sources that have one: unlike other tables it is in no part."""
    owners = {source: f"source_{index}.main" for index, source in enumerate(sources)}
    having = db.execute(
        "SELECT database_name FROM duckdb_tables() WHERE schema_name = 'main' AND table_name = ?", [IMAGES_TABLE]
    ).fetchall()
    owners = {source: owner for source, owner in owners.items() if (owner.removesuffix(".main"),) in having}
    if not owners:
        return []
    _create_union(db, "TABLE", "main", IMAGES_TABLE, owners)
    _copy_comments(db, next(iter(owners.values())).removesuffix(".main"), "main", "main", only=IMAGES_TABLE)
    for source in owners:
        own = f"SELECT * EXCLUDE (_source) FROM main.{IMAGES_TABLE} WHERE _source = {sql_literal(source)}"
        db.execute(f"CREATE VIEW {sql_identifier(source)}.{IMAGES_TABLE} AS {own}")
    return [IMAGES_TABLE]


def _create_union_meta(db: duckdb.DuckDBPyConnection, sources: Sequence[str]) -> None:
    db.execute("CREATE SCHEMA meta")
    tables = db.execute(
        "SELECT table_name, list(database_name ORDER BY database_name) FROM duckdb_tables()"
        " WHERE schema_name = 'meta' AND starts_with(database_name, 'source_') AND NOT table_name = ANY($of_files)"
        " GROUP BY table_name",
        {"of_files": [table.name for table in TABLES]},  # they are views here, in every form of catalog
    ).fetchall()
    for name, databases in tables:
        aliases = {source: f"source_{index}" for index, source in enumerate(sources)}
        owners = {source: f"{alias}.meta" for source, alias in aliases.items() if alias in databases}
        _create_union(db, "TABLE", "meta", str(name), owners)
        _copy_comments(db, str(databases[0]), "meta", "meta", only=str(name))
    views = db.execute(
        "SELECT view_name, list(schema_name) FROM duckdb_views() WHERE NOT internal AND database_name = 'united'"
        " AND starts_with(view_name, ?) GROUP BY view_name",
        [_HIDDEN],
    ).fetchall()
    for view, schemas in views:
        name = str(view).removeprefix(_HIDDEN)
        owners = {source: sql_identifier(source) for source in sources if source in schemas}
        _create_union(db, "VIEW", "meta", name, owners)
        alias = f"source_{sources.index(next(iter(owners)))}"
        _copy_comments(db, alias, "meta", "meta", only=name)
    db.execute(
        "CREATE VIEW meta.freshness AS SELECT _source, watermark, epoch(now()) - epoch(watermark) AS age_seconds,"
        " * EXCLUDE (_source, watermark) FROM meta._freshness"
    )
    db.execute("COMMENT ON VIEW meta.freshness IS 'One row per source: its snapshot and watermark in this union.'")


def _copy_comments(
    db: duckdb.DuckDBPyConnection, catalog: str, schema: str, into: str, only: str | None = None
) -> None:
    """Copy the comments of the tables, views and columns of a schema."""
    rows = db.execute(
        "SELECT kind, name, part, comment FROM (SELECT 'VIEW' AS kind, view_name AS name, NULL AS part,"
        " database_name, schema_name, comment FROM duckdb_views()"
        " UNION ALL SELECT 'TABLE', table_name, NULL, database_name, schema_name, comment FROM duckdb_tables()"
        " UNION ALL SELECT 'COLUMN', table_name, column_name, database_name, schema_name, comment FROM duckdb_columns()"
        ") WHERE database_name = ? AND schema_name = ? AND comment IS NOT NULL",
        [catalog, schema],
    ).fetchall()
    statements = []
    for kind, name, column, comment in rows:
        if name not in _HIDDEN_TABLES and only in {None, name}:
            parts = [sql_identifier(str(part)) for part in (name, column) if part is not None]
            statements.append(f"COMMENT ON {kind} {into}.{'.'.join(parts)} IS {sql_literal(str(comment))}")
    if statements:
        db.execute(";".join(statements))


# Refresh after a change of the sources


def refresh_if_present(config: Path | None, lakes: Mapping[str, Path]) -> None:
    """Write the union again, if it exists, after sources have published."""
    out = union_path(config)
    if out.exists():
        write_union(lakes, out)


def refresh_after_purge(config: Path | None, published_at: int | None, *, always: bool = False) -> None:
    """Write the union again if it may read deleted parts, that is, purged files.

    `published_at` is the start of the first snapshot without them in microseconds, None without a purge: an older union
    is written again. `always` is for a purge of this process: a union that was written during it is newer, yet may have
    read the catalog before it. Delete the union on an error: it may contain purged data.
    """
    if published_at is None or not source_names(config):
        return
    out = union_path(config)
    if not out.exists() or (not always and out.stat().st_mtime_ns // 1_000 > published_at):
        return
    try:
        refresh_if_present(config, lake_paths(config))
    except ScanlakeError as error:
        out.unlink(missing_ok=True)
        _log.warning("union.removed", union=str(out), reason=error.message, hint="scanlake catalog --union")
