"""The SQL page: a query box as confined as `scanlake query`, the documented queries, the result."""

from __future__ import annotations

import re
import time
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from pipeline.dashboard.browse.catalog_access import read_query
from pipeline.dashboard.browse.frame import (
    CSV_PATH,
    SQL_PATH,
    BrowsePage,
    count_note,
    error_note,
    link,
    rows_table,
)
from pipeline.dashboard.html import element, section
from pipeline.errors import LakeLockedError, SettingsError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    import duckdb

MAX_ROWS: Final = 500
MAX_QUERY_CHARS: Final = 4_000
"""A query is a part of the address; the server takes 8 kB of it."""

_TITLE: Final = re.compile(r"^-- (.+)\n", re.MULTILINE)


def _read_documented_queries() -> tuple[tuple[str, str], ...]:
    text = files("pipeline.dashboard").joinpath("browse/documented_queries.sql").read_text(encoding="utf-8")
    _, *parts = _TITLE.split(text)
    return tuple((title, query.strip()) for title, query in zip(parts[::2], parts[1::2], strict=True))


DOCUMENTED_QUERIES: Final = _read_documented_queries()
"""Title and SQL of each query of docs/queries.md that reads one catalog."""


def build_sql_page(query: str, *content: Element | None, status: int = 200) -> BrowsePage:
    """Return the page with a query and what came of it."""
    box = element(
        "textarea",
        name="sql",
        id="query",
        rows=max(6, min(24, query.count("\n") + 2)),
        maxlength=MAX_QUERY_CHARS,
        spellcheck="false",
        autocapitalize="off",
        required="required",
    )
    box.text = query  # `element` would cut it, and join its lines
    label = element("label", "A query that reads tables", for_="query")
    form = element("form", label, box, element("p", element("button", "Run")), action=SQL_PATH, class_="query")
    items = [element("li", link(title, SQL_PATH, [("sql", text)])) for title, text in DOCUMENTED_QUERIES]
    chosen = section("examples", "Documented queries", element("ol", *items))
    return BrowsePage("SQL", [form, *content, chosen], SQL_PATH, status)


def run_sql_page(lake: duckdb.DuckDBPyConnection, query: str) -> BrowsePage:
    """Return the page with the result of a query, or with its error in one line."""
    started = time.monotonic()
    try:
        result = read_query(lake, query, MAX_ROWS)
    except SettingsError as error:
        return build_failed_sql_page(query, error)
    seconds = time.monotonic() - started
    csv = link("CSV", CSV_PATH, [("sql", query)])
    csv.set("download", "")
    note = element("p", f"{count_note(len(result.rows), result.has_more)} {seconds:.2f} s. ", csv, class_="links")
    return build_sql_page(query, section("result", "Result", note, rows_table(result, "result")))


def build_failed_sql_page(query: str, error: SettingsError | LakeLockedError) -> BrowsePage:
    """Return the page with the query and its error."""
    return build_sql_page(query, error_note(error.message, error.hint or ""), status=400)
