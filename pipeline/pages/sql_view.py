"""The SQL page: a query box as confined as `scanlake query`, the tables, the documented queries, the result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import SettingsError
from pipeline.pages.catalog_access import BrowsePage, list_catalog_tables, read_queries, read_query
from pipeline.templates.rendering import read_script

if TYPE_CHECKING:
    import duckdb

    from pipeline.pages.catalog_access import QueryRows

MAX_ROWS: Final = 500
_MAX_QUERY_CHARS: Final = 4_000  # a query is a part of the address; the server takes 8 kB of it
DOCUMENTED_QUERIES: Final = read_queries("documented_queries.sql")
"""Title and SQL of each query of docs/queries.md that reads one catalog."""
_SCRIPT: Final = read_script("browse_sql.js")


def run_sql_page(lake: duckdb.DuckDBPyConnection, query: str) -> BrowsePage:
    """Return the page with a query, and its result or its error."""
    outcome: dict[str, Any] = {"result": None, "error": None}
    started = time.monotonic()
    try:
        if query.strip():
            outcome["result"] = _read(lake, query)
    except SettingsError as error:
        outcome["error"] = error
    outcome["seconds"] = time.monotonic() - started
    tables = {name: table.columns for name, table in list_catalog_tables(lake).items() if not name.startswith("meta.")}
    values = {
        "query": query,
        "examples": DOCUMENTED_QUERIES,
        "max_chars": _MAX_QUERY_CHARS,
        "tables": tables,
        **outcome,
    }
    return BrowsePage("browse_sql.html.jinja", "SQL", values, _SCRIPT, 400 if outcome["error"] else 200)


def _read(lake: duckdb.DuckDBPyConnection, query: str) -> QueryRows:
    """Return the first rows. Raises `SettingsError` for a wrong query, and for one that is too long for an address."""
    if len(query) > _MAX_QUERY_CHARS:
        hint = "Use `scanlake query --file` for longer ones."
        raise SettingsError(f"The query has more than {_MAX_QUERY_CHARS:,} characters.", hint=hint)
    return read_query(lake, query, MAX_ROWS)
