"""Catalog of views: a kept snapshot, in which each table is a view over exact parts, named by absolute path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.lake.catalog_meta import write_dictionary, write_meta, write_superseded_versions
from pipeline.lake.catalog_sql import (
    bind_to_schema,
    create_empty_tables,
    select_documents_sql,
    select_rows_sql,
)
from pipeline.lake.duckdb import TableWriter, create_database
from pipeline.lake.views import list_views, write_views
from schemas.tables import RAW, TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.lake.catalog_sql import CatalogSpec
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger


def build_views(path: Path, layout: LakeLayout, ledger: Ledger, spec: CatalogSpec) -> None:
    """Write a snapshot to the new file `path`. It has its comments only in its data dictionary, and no pictures."""
    with create_database(path) as db:
        writer = TableWriter(db, exists=False, has_comments=False)
        write_superseded_versions(writer, ledger)
        # DuckDB binds a view when it is created: the computed views are bound to empty tables, which go then.
        create_empty_tables(db, spec)
        bound = bind_to_schema(db, RAW, *(table.arrow for table in TABLES))  # each binding takes 1.5 ms
        views = list_views(layout, ledger, select_documents_sql(layout, spec))
        write_views(writer, views, {})
        write_dictionary(writer, spec, views, has_images=False)
        for table in reversed(TABLES):  # workflow_definitions needs workflow_runs, which is still a placeholder then
            bound = bind_to_schema(db, table.arrow, bound=bound)
            db.execute(f"DROP TABLE {table.qualified_name}")
            db.execute(f"CREATE VIEW {table.qualified_name} AS {select_rows_sql(layout, spec, table)}")
        write_meta(writer, layout, ledger, spec)
