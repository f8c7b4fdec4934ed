"""The SQL page: a query box as confined as `scanlake query`, the documented queries, the result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import SettingsError
from pipeline.pages.catalog_access import BrowsePage, read_queries, read_query

if TYPE_CHECKING:
    import duckdb

MAX_ROWS: Final = 500
_MAX_QUERY_CHARS: Final = 4_000  # a query is a part of the address; the server takes 8 kB of it
DOCUMENTED_QUERIES: Final = read_queries("documented_queries.sql")
"""Title and SQL of each query of docs/queries.md that reads one catalog."""


def check_length(query: str) -> None:
    """Raise `SettingsError` for a query that is too long for an address."""
    if len(query) > _MAX_QUERY_CHARS:
        hint = "Use `scanlake query --file` for longer ones."
        raise SettingsError(f"The query has more than {_MAX_QUERY_CHARS:,} characters.", hint=hint)


def build_sql_page(query: str, **outcome: Any) -> BrowsePage:
    """Return the page with a query and its `outcome`: result and seconds, or error."""
    values = {"query": query, "examples": DOCUMENTED_QUERIES, "max_chars": _MAX_QUERY_CHARS}
    return BrowsePage("browse_sql.html.jinja", "SQL", {**values, "result": None, "error": None, **outcome})


def run_sql_page(lake: duckdb.DuckDBPyConnection, query: str) -> BrowsePage:
    """Return the page with the result of a query, if there is one. Raises `SettingsError` if it is wrong."""
    if not query.strip():
        return build_sql_page("")
    check_length(query)
    started = time.monotonic()
    result = read_query(lake, query, MAX_ROWS)
    return build_sql_page(query, result=result, seconds=time.monotonic() - started)
