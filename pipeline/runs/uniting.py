"""The catalogs of several lakes as one: every table of every source, with a column `_source`.

DuckDB cannot look into another catalog's views without a session that attaches it, so the union carries the
sources' own views, each in a schema of its name, and reads the same parts. It shows what its sources had
published when it was made, whole; it has to be made anew to follow them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.errors import LakeDamaged, SettingsError
from pipeline.lake.catalog import STORAGE_VERSION, quoted
from pipeline.lake.engine import storage_by_duckdb
from pipeline.lake.files import one_at_a_time, storage, written_aside
from pipeline.published import CATALOG, first_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_TEXT_OR_MAIN: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\bmain\.""")
_CARRIED: Final = frozenset({"_dead"})  # tables that the views of a source read, beside its parts
_NOT_SHOWN: Final = frozenset({"_ledger", "_parts", "_dead"})
_SAYS: Final = "Source the row comes from, as the settings file names it."


@dataclass(frozen=True, slots=True)
class United:
    """What the union shows: the snapshot of each source, and the sources that have published nothing yet."""

    path: Path
    snapshots: dict[str, int]
    missing: list[str]
    views: list[str]


def unite(lakes: Mapping[str, Path], out: Path) -> United:
    """Write the union of the published catalogs to `out`, at once or not at all.

    Raises `SettingsError` when nothing is published, or a source's parts are not to be seen from here.
    """
    there = {name: (lake / CATALOG).absolute() for name, lake in lakes.items() if (lake / CATALOG).is_file()}
    missing = [name for name in lakes if name not in there]
    if not there:
        raise SettingsError("No source has published anything yet.", remedy="Run `scanlake sync --all` first.")
    if out.absolute() in there.values():
        raise SettingsError(f"{out} is the catalog of a source.", remedy="Choose another --out.")
    with storage(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(out.absolute().parent):  # or one that has read what is no more could end last
        with written_aside(out.absolute()) as aside:
            aside.unlink(missing_ok=True)
            with storage_by_duckdb(out.name), duckdb.connect(":memory:") as db:
                views, snapshots = _build(db, aside, there)
        with storage(out):  # a session that wrote to the former one left it; it would replay into this one
            out.with_name(f"{out.name}.wal").unlink(missing_ok=True)
    return United(out.absolute(), snapshots, missing, views)


def refuse_foreign(out: Path) -> None:
    """Raise `SettingsError` for what is there already and is not a union: it would be lost."""
    if not os.path.lexists(out):
        return
    reason = ""
    try:
        with duckdb.connect(":memory:") as db:
            db.execute(f"ATTACH {quoted(str(out.absolute()))} AS former (TYPE duckdb, READ_ONLY)")
            found = db.execute(
                "SELECT count(*) FROM duckdb_columns() WHERE database_name = 'former' AND schema_name = 'meta'"
                " AND table_name = '_freshness' AND column_name = '_source' AND comment = ?",
                [_SAYS],
            ).fetchall()
    except duckdb.Error as error:
        found, reason = [(0,)], f" ({first_line(error).rstrip('.')})" if _is_database(out) else ""
    if out.is_symlink() or found == [(0,)]:
        raise SettingsError(
            f"{out} is there already, and not a union of scanlake's{reason}: it is not overwritten.",
            remedy="Name a new file, or move that one away.",
        )


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(12)[8:] == b"DUCK"
    except OSError:
        return False


def _build(
    db: duckdb.DuckDBPyConnection, aside: Path, catalogs: Mapping[str, Path]
) -> tuple[list[str], dict[str, int]]:
    db.execute("SET threads = 1")
    for place, (name, path) in enumerate(catalogs.items()):
        try:
            db.execute(f"ATTACH {quoted(str(path))} AS source_{place} (READ_ONLY)")
        except duckdb.Error as error:
            raise LakeDamaged(f"{name}: the catalog cannot be opened: {first_line(error)}") from error
    db.execute(f"ATTACH {quoted(str(aside))} AS united (STORAGE_VERSION '{STORAGE_VERSION}')")
    db.execute("USE united")
    db.execute("BEGIN")
    for place, name in enumerate(catalogs):
        _bring(db, f"source_{place}", name)
    views = _unite_views(db, list(catalogs))
    _unite_meta(db, list(catalogs))
    rows = db.execute("SELECT _source, snapshot FROM meta._freshness").fetchall()
    db.execute("COMMIT")
    db.execute("USE memory")
    db.execute("DETACH united")
    return views, {str(name): int(snapshot) for name, snapshot in rows}


def _bring(db: duckdb.DuckDBPyConnection, catalog: str, source: str) -> None:
    """The views of a source, in a schema of its name, with what they read."""
    schema = _identifier(source)
    db.execute(f"CREATE SCHEMA {schema}")
    for table in _CARRIED:
        db.execute(f"CREATE TABLE {schema}.{table} AS FROM {catalog}.main.{table}")
    found = db.execute(
        "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal AND schema_name = 'main' AND database_name = ?",
        [catalog],
    ).fetchall()
    views = {str(name): str(sql) for name, sql in found}
    for name in _in_order(views):
        try:
            db.execute(f"CREATE VIEW {schema}.{_identifier(name)} AS {_moved(views[name], schema)}")
        except duckdb.IOException as error:
            raise SettingsError(
                f"{source}: the parts its catalog names are not to be seen from here: {first_line(error)}",
                remedy="Unite where readers see the lakes (`anchor`); a lake that was moved needs `scanlake publish`.",
            ) from error
        except duckdb.Error as error:
            raise LakeDamaged(f"{source}: its view {name} cannot be read: {first_line(error)}") from error
    _comment(db, catalog, "main", schema)


def _in_order(views: Mapping[str, str]) -> list[str]:
    """The views, those first that others read."""
    reads = {name: {other for other in views if other != name and f"main.{other}" in views[name]} for name in views}
    done: list[str] = []
    while len(done) < len(views):
        ready = [name for name in views if name not in done and reads[name] <= set(done)]
        done += ready or [name for name in views if name not in done]
    return done


def _moved(sql: str, schema: str) -> str:
    """The question of a view, reading from the source's schema instead of `main`."""
    body = sql.rstrip("; \n").partition(" AS ")[2]
    return _TEXT_OR_MAIN.sub(lambda found: f"{schema}." if found[0] == "main." else found[0], body)


def _unite_views(db: duckdb.DuckDBPyConnection, sources: Sequence[str]) -> list[str]:
    found = db.execute(
        "SELECT view_name, list(schema_name), first(schema_name) FROM duckdb_views() WHERE NOT internal"
        " AND database_name = 'united' AND NOT starts_with(view_name, '_') GROUP BY view_name ORDER BY view_name"
    ).fetchall()
    for name, holders, first in found:
        view = _identifier(str(name))
        each = [
            f"SELECT {quoted(source)} AS _source, * FROM {_identifier(source)}.{view}"
            for source in sources
            if source in holders
        ]
        db.execute(f"CREATE VIEW main.{view} AS {' UNION ALL BY NAME '.join(each)}")
        _comment(db, "united", str(first), "main", only=str(name))
        db.execute(f"COMMENT ON COLUMN main.{view}._source IS {quoted(_SAYS)}")
    return [str(name) for name, _, _ in found]


def _unite_meta(db: duckdb.DuckDBPyConnection, sources: Sequence[str]) -> None:
    db.execute("CREATE SCHEMA meta")
    found = db.execute(
        "SELECT table_name, list(database_name ORDER BY database_name) FROM duckdb_tables()"
        " WHERE schema_name = 'meta' AND starts_with(database_name, 'source_') GROUP BY table_name"
    ).fetchall()
    for name, holders in found:
        table = _identifier(str(name))
        each = [
            f"SELECT {quoted(source)} AS _source, * FROM source_{place}.meta.{table}"
            for place, source in enumerate(sources)
            if f"source_{place}" in holders
        ]
        db.execute(f"CREATE TABLE meta.{table} AS {' UNION ALL BY NAME '.join(each)}")
        _comment(db, str(holders[0]), "meta", "meta", only=str(name))
        db.execute(f"COMMENT ON COLUMN meta.{table}._source IS {quoted(_SAYS)}")
    db.execute(
        "CREATE VIEW meta.freshness AS SELECT _source, horizon, epoch(now()) - epoch(horizon) AS age_seconds,"
        " * EXCLUDE (_source, horizon) FROM meta._freshness"
    )
    db.execute("COMMENT ON VIEW meta.freshness IS 'One row a source: how current it is in this union.'")


def _comment(db: duckdb.DuckDBPyConnection, catalog: str, schema: str, into: str, only: str | None = None) -> None:
    """Take over the comments of a schema's tables and views, and of their columns."""
    held = (
        "SELECT {kind} AS kind, {name} AS name, comment FROM {source}() WHERE database_name = $catalog"
        " AND schema_name = $schema AND comment IS NOT NULL"
    )
    values = {"catalog": catalog, "schema": schema}
    question = " UNION ALL ".join(
        (
            held.format(kind="'VIEW'", name="view_name", source="duckdb_views"),
            held.format(kind="'TABLE'", name="table_name", source="duckdb_tables"),
        )
    )
    statements = [
        f"COMMENT ON {kind} {into}.{_identifier(str(name))} IS {quoted(str(comment))}"
        for kind, name, comment in db.execute(question, values).fetchall()
        if name not in _NOT_SHOWN and only in {None, name}
    ]
    columns = db.execute(
        "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE database_name = $catalog"
        " AND schema_name = $schema AND comment IS NOT NULL",
        values,
    ).fetchall()
    statements += [
        f"COMMENT ON COLUMN {into}.{_identifier(str(table))}.{_identifier(str(column))} IS {quoted(str(comment))}"
        for table, column, comment in columns
        if table not in _NOT_SHOWN and only in {None, table}
    ]
    if statements:
        db.execute(";".join(statements))


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
