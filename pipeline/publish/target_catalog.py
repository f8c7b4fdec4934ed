"""Catalogs for a target: of the tables themselves, or, as they take less to upload, of views over the parts there."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.atomic_files import clone_file
from pipeline.lake.catalog_images import create_empty_image_view
from pipeline.lake.catalog_sql import bind_to_schema, create_empty_tables, read_spec, select_rows_sql
from pipeline.lake.duckdb import create_database
from pipeline.lake.duckdb_errors import translate_duckdb_errors
from pipeline.lake.duckdb_files import open_read_only
from pipeline.lake.history_views import FILE_EVENTS, FILE_VERSIONS
from pipeline.lake.physical_tables import PHYSICAL_SCHEMA
from pipeline.lake.sql import sql_comment, sql_literal
from pipeline.lake.view_definitions import HISTORY
from pipeline.publish.target_layout import to_target_path
from schemas.tables import RAW, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pipeline.lake.catalog_sql import CatalogSpec
    from pipeline.lake.layout import LakeLayout
    from pipeline.publish.store_contract import ObjectStore

_WRITABLE: Final = 0o600
_READ_TABLE: Final = re.compile(r"\bmain\.(\w+)\b")
_VIEWS_SQL: Final = "SELECT schema_name, view_name, sql FROM duckdb_views() WHERE NOT internal"


class TargetCatalogs:
    """Writes catalogs for a target. Without `documents`, the views of the documents are left out.

    The target's parts need not exist. Raises `StorageError`, and `LakeCorruptedError` for a source that is damaged.
    """

    def __init__(self, layout: LakeLayout, store: ObjectStore, *, documents: bool) -> None:
        self._layout, self._store, self._documents = layout, store, documents

    def write_tables(self, source: Path, target: Path) -> None:
        """Write a copy of the catalog at `source` whose views of documents read those in the store."""
        with translate_duckdb_errors(str(source)):
            spec, former, views = _read_catalog(source)
            clone_file(source, target)
            target.chmod(_WRITABLE)
            rewrite = self._create_rewriter(spec, former)
            with duckdb.connect(str(target)) as db:
                db.execute("SET threads = 1")
                db.execute("BEGIN")
                bind_to_schema(db, RAW)
                for schema, name, sql in views:
                    rewritten = rewrite(sql)
                    if rewritten is None:
                        _drop_view(db, schema, name)
                    elif rewritten != sql:
                        db.execute(rewritten.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1))
                        db.execute(sql_comment("VIEW", f"{schema}.{name}", HISTORY.comment, HISTORY.columns))
                self._finish(db)
                db.execute("COMMIT")

    def write_views(self, source: Path, target: Path) -> None:
        """Write a catalog with the contents of the one at `source`, in which each table is a view over parts.

        It has its comments only in its data dictionary, and no rows of pictures.
        """
        with translate_duckdb_errors(str(source)):
            spec, former, views = _read_catalog(source)
            rewrite = self._create_rewriter(spec, former)
            with create_database(target) as db:
                db.execute(f"ATTACH {sql_literal(str(source))} AS source (READ_ONLY)")
                # DuckDB binds a view when it is created: the computed views are bound to empty tables, which go then.
                create_empty_tables(db)
                _copy_own_tables(db)
                bound = bind_to_schema(db, RAW, *(table.arrow for table in TABLES))  # each binding takes 1.5 ms
                for schema, name, sql in views:
                    rewritten = rewrite(sql)
                    if rewritten is None:
                        _drop_view(db, schema, name)
                    else:
                        db.execute(rewritten)
                for view in (FILE_VERSIONS, FILE_EVENTS):
                    if self._documents:
                        db.execute(f"CREATE VIEW main.{view.name} AS {view.sql}")
                    else:
                        _drop_view(db, "main", view.name)
                for table in reversed(TABLES):  # workflow_definitions needs workflow_runs, a placeholder until then
                    bound = bind_to_schema(db, table.arrow, bound=bound)
                    rows = rewrite(select_rows_sql(self._layout, spec, table))
                    db.execute(f"DROP TABLE {table.qualified_name}")
                    db.execute(f"CREATE VIEW {table.qualified_name} AS {rows}")
                create_empty_image_view(db)
                self._finish(db)

    def _finish(self, db: duckdb.DuckDBPyConnection) -> None:
        db.execute("UPDATE meta._freshness SET parts_root = ?", [self._store.base_url])

    def _create_rewriter(self, spec: CatalogSpec, former: str) -> Callable[[str], str | None]:
        """Return a function that puts the paths on the target into SQL; None for a view that is left out.

        `former` is the folder of the parts in the catalog's views.
        """
        hashes = {part.name: part.sha256 for part in spec.parts}
        root = to_duckdb_root(self._store.base_url)
        folders = "|".join(re.escape(sql_literal(f"{folder}/")[:-1]) for folder in {former, str(self._layout.root)})
        pattern = re.compile(rf"(?:{folders})((?:parts/\w+|raw)/[\w.-]+)'")

        def to_literal(match: re.Match[str]) -> str:
            return sql_literal(f"{root}/{to_target_path(match[1], hashes[match[1]])}")

        def rewrite(sql: str) -> str | None:
            reads_documents = any(match[1].startswith("raw/") for match in pattern.finditer(sql))
            if reads_documents and not self._documents:
                return None
            return pattern.sub(to_literal, sql)

        return rewrite


def _read_catalog(source: Path) -> tuple[CatalogSpec, str, list[tuple[str, str, str]]]:
    """Return the contents of a catalog, the folder of its parts, and its views as (schema, name, SQL).

    A view comes after those that it reads.
    """
    with open_read_only(source) as db:
        ((root,),) = db.execute("SELECT parts_root FROM meta._freshness").fetchall()
        views = {name: (schema, name, sql) for schema, name, sql in db.execute(_VIEWS_SQL).fetchall()}
        reads = {name: views.keys() & set(_READ_TABLE.findall(view[2])) - {name} for name, view in views.items()}
        return read_spec(db), root, [views[name] for name in TopologicalSorter(reads).static_order()]


def _drop_view(db: duckdb.DuckDBPyConnection, schema: str, name: str) -> None:
    db.execute(f"DROP VIEW IF EXISTS {schema}.{name}")
    db.execute("DELETE FROM meta.data_dictionary WHERE table_name = ?", [name])


def _copy_own_tables(db: duckdb.DuckDBPyConnection) -> None:
    """Copy the small tables of the attached catalog `source`: those of the ledger's records, and scanlake's own."""
    db.execute(f"CREATE SCHEMA {PHYSICAL_SCHEMA}")
    names = db.execute(
        "SELECT schema_name || '.' || table_name FROM duckdb_tables() WHERE database_name = 'source'"
        f" AND schema_name IN ('meta', '{PHYSICAL_SCHEMA}')"
    ).fetchall()
    own = {table.qualified_name for table in TABLES}
    for (name,) in names:
        if name not in own:
            db.execute(f"CREATE TABLE {name} AS FROM source.{name}")


def read_snapshot_number(catalog: Path) -> int | None:
    """Return the number of the snapshot that a catalog shows; None if it cannot be read."""
    try:
        with open_read_only(catalog) as db:
            ((number,),) = db.execute("SELECT snapshot FROM meta._freshness").fetchall()
    except (duckdb.Error, ValueError):
        return None
    return int(number)


def to_duckdb_root(base_url: str) -> str:
    """Return the URL of a store as DuckDB reads it: a plain path for a folder."""
    return base_url.removeprefix("file://")
