"""The pages of the tables: the list of all, the rows of one with filters, order and paging, and the query box.

A query is as confined as that of `scanlake query`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import SettingsError
from pipeline.lake.catalog_meta import IMAGES_TABLE
from pipeline.lake.history import FILE_EVENTS, FILE_VERSIONS
from pipeline.lake.sql import sql_identifier, sql_literal
from pipeline.pages.catalog_access import (
    BrowsePage,
    NothingFoundError,
    list_catalog_tables,
    read_queries,
    read_query,
)
from pipeline.templates.rendering import read_script
from schemas.tables import TABLES

if TYPE_CHECKING:
    import duckdb
    from yarl import URL

    from pipeline.pages.catalog_access import BrowsedTable, Query, QueryRows

ROWS_PER_PAGE: Final = 50
_MAX_FILTERS: Final = 8
_MAX_FACETS: Final = 20
_MAX_VALUE_CHARS: Final = 200
_MAX_PAGE_DIGITS: Final = 8
_HINT: Final = "Open the table from the page Tables again."
_COMPARISONS: Final = {"is": "=", "from": ">=", "to": "<="}
_OPERATORS: Final = {"is": "is", "contains": "contains", "from": "at least", "to": "at most"}
_NO_FILTER: Final = ("", "is", "")  # `is` without a value means no value
_DECLARED: Final = {table.name if table.schema == "main" else table.qualified_name: table for table in TABLES}
_TIE_BREAKS: Final = ("position", "submit_position")
_TABLES: Final = (*_DECLARED, FILE_VERSIONS.name, FILE_EVENTS.name, IMAGES_TABLE)
_FILE: Final = "file_id"
_ORDER_COLUMNS: Final = 3
"""Of a view. DuckDB reads its other columns for the page's rows only; to sort by documents takes ten times as long."""
MAX_ROWS: Final = 500
_MAX_QUERY_CHARS: Final = 4_000  # a query is a part of the address; the server takes 8 kB of it
DOCUMENTED_QUERIES: Final = read_queries("documented_queries.sql")
"""Title and SQL of each query of docs/queries.md that reads one catalog."""
_SCRIPT: Final = read_script("browse_sql.js")


def build_tables_page(lake: duckdb.DuckDBPyConnection) -> BrowsePage:
    """Return the list of all tables and views, with the number of rows of the tables."""
    tables = list_catalog_tables(lake)
    main = [name for name in _TABLES if name in tables and not name.startswith("meta.")]
    views = [name for name in tables if name not in main and not name.startswith("meta.")]
    groups = {
        "Tables": [(tables[name], _count_rows(lake, tables[name], "")) for name in main],
        "Views": [(tables[name], None) for name in views],
        "About the lake": [(table, None) for name, table in tables.items() if name.startswith("meta.")],
    }
    return BrowsePage("browse_tables.html.jinja", "Tables", {"groups": groups})


def build_rows_page(lake: duckdb.DuckDBPyConnection, name: str, url: URL, query: Query) -> BrowsePage:
    """Return a page of a table's rows, with links to others. `query` are the cleaned parameters of `url`.

    Raises `SettingsError` for a wrong filter, and `NothingFoundError`.
    """
    table = list_catalog_tables(lake).get(name)
    if table is None:
        raise NothingFoundError(f"No table {name}.", hint="The page Tables lists all.")
    filters, page = _read_filters(query), _read_page(dict(query).get("page", "1"))
    sort, is_descending = dict(query).get("sort", ""), dict(query).get("desc") == "1"
    conditions = " AND ".join(_to_condition(table, *entry) for entry in filters)
    where = f" WHERE {conditions}" if conditions else ""
    first = (page - 1) * ROWS_PER_PAGE
    order = f" ORDER BY {_order(table, sort, is_descending=is_descending)}"
    sql = f"SELECT * FROM {table.sql_name}{where}{order}"
    if _FILE in table.columns and table.name not in _DECLARED and not sort:
        count, page_sql = _select_page_by_file(lake, f"{table.sql_name}{where}", first, order)
    else:
        count, page_sql = _count_rows(lake, table, where), f"{sql} LIMIT {ROWS_PER_PAGE} OFFSET {first}"
    sorted_url = url.without_query_params("page", "desc")
    reversed_url = sorted_url if is_descending else sorted_url.update_query(desc="1")
    facet = dict(query).get("facet", "")
    values = {
        "table": table,
        "facet": facet,
        "facets": _count_values(lake, table, facet, where, url) if facet else [],
        "filters": filters,
        "shown_filters": [*filters, _NO_FILTER][:_MAX_FILTERS],
        "operators": _OPERATORS,
        "max_chars": _MAX_VALUE_CHARS,
        "sort": sort,
        "is_descending": is_descending,
        "count": count,
        "first": first,
        "last": min(first + ROWS_PER_PAGE, count),
        "previous": url.update_query(page=page - 1),
        "next": url.update_query(page=page + 1),
        "result": read_query(lake, page_sql, ROWS_PER_PAGE),
        "sql": sql,
        "sort_links": {column: sorted_url.update_query(sort=column) for column in table.columns} | {sort: reversed_url},
    }
    return BrowsePage("browse_rows.html.jinja", name, values)


def _read_filters(query: Query) -> list[tuple[str, str, str]]:
    """Return the filters of an address. Raises `SettingsError` for what no page links to."""
    columns, ops, texts = ([value for name, value in query if name == key] for key in ("column", "op", "value"))
    if not len(columns) == len(ops) == len(texts) <= _MAX_FILTERS + 1:
        message = f"A filter has a column, a comparison and a value, at most {_MAX_FILTERS} times."
        raise SettingsError(message, hint=_HINT)
    return [entry for entry in zip(columns, ops, texts, strict=True) if entry[0]]


def _read_page(text: str) -> int:
    if not (text.isdecimal() and len(text) <= _MAX_PAGE_DIGITS and int(text)):
        raise SettingsError(f"Page {text}: no such page.", hint=_HINT)
    return int(text)


def _to_condition(table: BrowsedTable, column: str, op: str, text: str) -> str:
    """Return a filter in SQL. Raises `SettingsError` for a comparison or column that does not exist."""
    subject, value = _quote_column(table, column), sql_literal(text[:_MAX_VALUE_CHARS])
    if op == "contains":
        return f"contains(lower({subject}::VARCHAR), lower({value}))"
    if op not in _COMPARISONS:
        raise SettingsError(f"No comparison {op}.", hint=_HINT)
    if op == "is" and not text:
        return f"coalesce({subject}::VARCHAR, '') = ''"
    sql_type, _ = table.columns[column]
    typed = value if sql_type in {"VARCHAR", "JSON"} else f"{value}::{sql_type}"
    return f"{subject} {_COMPARISONS[op]} {typed}"


def _count_values(
    lake: duckdb.DuckDBPyConnection, table: BrowsedTable, column: str, where: str, url: URL
) -> list[tuple[str, int, URL]]:
    """Return the most frequent values of a column among the filtered rows that a filter can have.

    They come as text, with the number of rows and the page of these.
    """
    value = f"coalesce({_quote_column(table, column)}::VARCHAR, '')"
    counted = f"SELECT {value} AS value, count(*) AS rows FROM {table.sql_name}{where} GROUP BY ALL"
    sql = f"FROM ({counted}) WHERE length(value) <= {_MAX_VALUE_CHARS} ORDER BY rows DESC, value"
    rows = read_query(lake, sql, _MAX_FACETS).rows
    pairs = [("column", column), ("op", "is")]
    plain = url.without_query_params("page", "facet")
    return [(text or "", int(count or 0), plain.extend_query([*pairs, ("value", text or "")])) for text, count in rows]


def _count_rows(lake: duckdb.DuckDBPyConnection, table: BrowsedTable, where: str) -> int:
    count = read_query(lake, f"SELECT count(*) FROM {table.sql_name}{where}", 1).rows[0][0]
    return int(count or 0)


def _select_page_by_file(lake: duckdb.DuckDBPyConnection, source: str, first: int, order: str) -> tuple[int, str]:
    """Return the number of rows of a view, and the query for a page of them: it reads the files of the page alone.

    DuckDB computes a view's values for all files before it sorts, but passes a range of files down to its tables.
    """
    numbers = "row_number() OVER (ORDER BY file_id) AS number, rank() OVER (ORDER BY file_id) AS of_file"
    ((count, before, *bounds),) = read_query(
        lake,
        f"WITH numbered AS (SELECT file_id, {numbers} FROM {source}) SELECT count(*), min(of_file) FILTER (number >"
        f" {first}) - 1, min(file_id) FILTER (number > {first}),"
        f" max(file_id) FILTER (number <= {first + ROWS_PER_PAGE}) FROM numbered",
        1,
    ).rows
    lowest, highest = (bound or "NULL" for bound in bounds)
    page = f"LIMIT {ROWS_PER_PAGE} OFFSET {first - int(before or 0)}"
    return int(count or 0), f"FROM (FROM {source}) WHERE file_id BETWEEN {lowest} AND {highest}{order} {page}"


def _quote_column(table: BrowsedTable, name: str) -> str:
    if name not in table.columns:
        raise SettingsError(f"No column {name}.", hint=_HINT)
    return sql_identifier(name)


def _order(table: BrowsedTable, sort: str, *, is_descending: bool) -> str:
    """Return an order in which pages neither repeat nor omit a row of a table."""
    declared = _DECLARED.get(table.name)
    names = list(table.columns)[:_ORDER_COLUMNS]
    if declared is not None:
        names = [*declared.key, *(name for name in _TIE_BREAKS if name in table.columns)]
    order = [sql_identifier(name) for name in names if name != sort]
    if sort:
        order.insert(0, f"{_quote_column(table, sort)} {'DESC' if is_descending else 'ASC'} NULLS LAST")
    return ", ".join(order)


# The query box


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
        hint = "Use `scanlake query - < FILE` for longer ones."
        raise SettingsError(f"The query has more than {_MAX_QUERY_CHARS:,} characters.", hint=hint)
    return read_query(lake, query, MAX_ROWS)
