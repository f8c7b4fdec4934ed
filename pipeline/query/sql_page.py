"""The page with a query, as confined as that of `scanlake query`, its result and a chart."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import SettingsError
from pipeline.output.templates.rendering import read_script
from pipeline.query.catalog_access import (
    BrowsePage,
    list_catalog_tables,
    read_documented_queries,
    read_query,
)
from pipeline.query.charts import KINDS, choose_chart, draw_chart

if TYPE_CHECKING:
    import duckdb
    from yarl import URL

    from pipeline.query.catalog_access import QueryRows

MAX_ROWS: Final = 500
_NO_CHART: Final = "none"
_MAX_QUERY_CHARS: Final = 4_000  # each takes up to 12 bytes in the address
DOCUMENTED_QUERIES: Final = read_documented_queries()
"""Title and SQL of each query of docs/queries.md that reads one catalog."""
_SCRIPT: Final = read_script("browse_sql.js")


def run_sql_page(lake: duckdb.DuckDBPyConnection, url: URL, query: str, chart: str) -> BrowsePage:
    """Return the page with a query, and its result with a chart, or its error. `chart` is a kind of chart, or empty."""
    outcome: dict[str, Any] = {"result": None, "error": None, "plots": []}
    started = time.monotonic()
    try:
        if query.strip():
            outcome["result"] = result = _read(lake, query)
            chosen = choose_chart(result, chart if chart in KINDS else "")
            outcome["plots"] = draw_chart(chosen, result) if chosen and chart != _NO_CHART else []
    except SettingsError as error:
        outcome["error"] = error
    outcome["seconds"] = time.monotonic() - started
    tables = {name: table.columns for name, table in list_catalog_tables(lake).items() if not name.startswith("meta.")}
    values = {
        "query": query,
        "url": url,
        "examples": DOCUMENTED_QUERIES,
        "max_chars": _MAX_QUERY_CHARS,
        "chart": chart,
        "charts": {"": "chart by type", **{kind: kind for kind in KINDS}, _NO_CHART: "no chart"},
        "tables": tables,
        **outcome,
    }
    return BrowsePage("browse_sql.html.jinja", "SQL", values, _SCRIPT, 400 if outcome["error"] else 200)


def _read(lake: duckdb.DuckDBPyConnection, query: str) -> QueryRows:
    """Return the first rows. Raises `SettingsError` for a wrong query, and for one that is too long for an address."""
    if len(query) > _MAX_QUERY_CHARS:
        hint = "Use `scanlake query - < FILE` for longer ones."
        raise SettingsError(f"The query has more than {_MAX_QUERY_CHARS:,} characters.", hint=hint)
    return read_query(lake, query, MAX_ROWS)
