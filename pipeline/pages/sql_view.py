"""The SQL page: a query box as confined as `scanlake query`, the documented queries, the result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import SettingsError
from pipeline.lake.catalog_images import IMAGE_SCHEMA, IMAGES_TABLE
from pipeline.lake.history_views import FILE_EVENTS, FILE_VERSIONS
from pipeline.lake.view_definitions import (
    ADDRESSES,
    DAMAGE,
    FILE_SUMMARY,
    OPEN_RUNS,
    PROGRESS,
    WORKFLOW_STEPS,
    WORKFLOWS,
)
from pipeline.pages.catalog_access import BrowsePage, read_queries, read_query
from pipeline.templates.rendering import read_script
from schemas.tables import TABLES

if TYPE_CHECKING:
    import duckdb

MAX_ROWS: Final = 500
_MAX_QUERY_CHARS: Final = 4_000  # a query is a part of the address; the server takes 8 kB of it
DOCUMENTED_QUERIES: Final = read_queries("documented_queries.sql")
"""Title and SQL of each query of docs/queries.md that reads one catalog."""
_SCRIPT: Final = read_script("browse_sql.js")
_HISTORY: Final = (FILE_VERSIONS, FILE_EVENTS)
_VIEWS: Final = (FILE_SUMMARY, DAMAGE, ADDRESSES, PROGRESS, OPEN_RUNS, WORKFLOWS, WORKFLOW_STEPS)
LISTED_TABLES: Final = {
    **{table.name: [column.name for column in table.columns] for table in TABLES if table.schema == "main"},
    **{view.name: [name for name, _ in view.columns] for view in _HISTORY},
    IMAGES_TABLE: IMAGE_SCHEMA.names,
    **{view.name: [name for name, _ in view.columns] for view in _VIEWS},
}
"""Tables and views that every lake has, with their columns."""


def build_sql_page(query: str, **outcome: Any) -> BrowsePage:
    """Return the page with a query and its `outcome`: result and seconds, or error."""
    values = {"query": query, "examples": DOCUMENTED_QUERIES, "max_chars": _MAX_QUERY_CHARS, "tables": LISTED_TABLES}
    return BrowsePage("browse_sql.html.jinja", "SQL", {**values, "result": None, "error": None, **outcome}, _SCRIPT)


def run_sql_page(lake: duckdb.DuckDBPyConnection, query: str) -> BrowsePage:
    """Return the page with the result of a query, if there is one. Raises `SettingsError` if it is wrong."""
    if not query.strip():
        return build_sql_page("")
    if len(query) > _MAX_QUERY_CHARS:
        hint = "Use `scanlake query --file` for longer ones."
        raise SettingsError(f"The query has more than {_MAX_QUERY_CHARS:,} characters.", hint=hint)
    started = time.monotonic()
    result = read_query(lake, query, MAX_ROWS)
    return build_sql_page(query, result=result, seconds=time.monotonic() - started)
