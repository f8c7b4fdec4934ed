"""The pages of tables: all of them, and the rows of one with filters, order and paging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.errors import SettingsError
from pipeline.lake.catalog.history import FILE_EVENTS, FILE_VERSIONS
from pipeline.lake.catalog.sql import sql_identifier, sql_literal
from pipeline.lake.catalog.tables import IMAGES_TABLE
from pipeline.lake.catalog.views import FILE_SUMMARY
from pipeline.query.catalog_access import (
    BrowsePage,
    NothingFoundError,
    ResultColumn,
    clean_text,
    list_catalog_tables,
    read_query,
)
from pipeline.query.reader import fetch_dicts
from pipeline.query.stored_images import read_images
from schemas.tables import FILES, TABLES, UPLOADS

if TYPE_CHECKING:
    import duckdb
    from yarl import URL

    from pipeline.query.catalog_access import BrowsedTable, Query, QueryRows
    from pipeline.query.stored_images import UploadImages

ROWS_PER_PAGE: Final = 50
_MAX_FILTERS: Final = 8
_MAX_FACETS: Final = 20
_MAX_VALUE_CHARS: Final = 200
_MAX_PAGE_DIGITS: Final = 8
_HINT: Final = "Open the table from the page Tables again."
_COMPARISONS: Final = {"is": "=", "from": ">=", "to": "<="}
_OPERATORS: Final = {"is": "is", "contains": "contains", "from": "at least", "to": "at most"}
_CASTS: Final = {"JSON": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ::TIMESTAMP"}
"""By type of column. A cast to TIMESTAMP alone ignores a time zone (DuckDB 2.0)."""
_WHOLE_NUMBERS: Final = frozenset({"BIGINT", "INTEGER", "UBIGINT", "HUGEINT"})
_NO_FILTER: Final = ("", "is", "")  # `is` without a value means no value
_DECLARED: Final = {table.name if table.schema == "main" else table.qualified_name: table for table in TABLES}
_TIE_BREAKS: Final = ("position", "submit_position")
_TABLES: Final = (*_DECLARED, FILE_VERSIONS.name, FILE_EVENTS.name, IMAGES_TABLE)
_FILE: Final = "file_id"
_ROW_PER_FILE: Final = (FILE_SUMMARY.name, "fields_wide")
"""Views with exactly one row per file: the table files numbers their rows (12 ms; the view itself takes 94)."""
_ORDER_COLUMNS: Final = 3
"""Of a view. DuckDB reads its other columns for the page's rows only; to sort by documents takes ten times as long."""


def build_tables_page(lake: duckdb.DuckDBPyConnection) -> BrowsePage:
    """Return the list of all tables and views, with the number of rows of the tables."""
    tables = list_catalog_tables(lake)
    main = [name for name in _TABLES if name in tables and not name.startswith("meta.")]
    columns = [f"(FROM {tables[name].sql_name} SELECT count(*)) AS {sql_identifier(name)}" for name in main]
    (counts,) = fetch_dicts(lake, f"SELECT {', '.join(columns)}")
    views = [name for name in tables if name not in main and not name.startswith("meta.")]
    groups = {
        "Tables": [(tables[name], counts[name]) for name in main],
        "Views": [(tables[name], None) for name in views],
        "About the lake": [(table, None) for name, table in tables.items() if name.startswith("meta.")],
    }
    return BrowsePage("browse_tables.html.jinja", "Tables", {"groups": groups})


class TableQuery(Struct, frozen=True):
    """The rows of a table that an address asks for; `columns`, `source` and `order` are parts of their query."""

    table: BrowsedTable
    chosen: list[str]
    filters: list[tuple[str, str, str]]
    sort: str
    is_descending: bool
    columns: str
    source: str
    order: str

    @property
    def sql(self) -> str:
        """The query for all rows."""
        return f"SELECT {self.columns} FROM {self.source}{self.order}"


def find_rows(lake: duckdb.DuckDBPyConnection, name: str, query: Query) -> TableQuery:
    """Return the rows that an address asks for. Without columns it is all, nested ones last.

    `query` are its cleaned parameters. Raises `SettingsError` for a wrong one, and `NothingFoundError`.
    """
    table = list_catalog_tables(lake).get(name)
    if table is None:
        raise NothingFoundError(f"No table {name}.", hint="The page Tables lists all.")
    chosen, filters = [value for key, value in query if key == "show"], _read_filters(query)
    sort, is_descending = dict(query).get("sort", ""), dict(query).get("desc") == "1"
    names = chosen or sorted(
        table.columns, key=lambda name: ResultColumn(name, table.columns[name][0]).kind == "nested"
    )
    conditions = " AND ".join(_to_condition(table, *entry) for entry in filters)
    return TableQuery(
        table,
        chosen,
        filters,
        sort,
        is_descending,
        columns=", ".join(_quote_column(table, name) for name in names),
        source=f"{table.sql_name} WHERE {conditions}" if conditions else table.sql_name,
        order=f" ORDER BY {_order(table, sort, is_descending=is_descending)}",
    )


def build_rows_page(lake: duckdb.DuckDBPyConnection, name: str, url: URL, query: Query) -> BrowsePage:
    """Return a page of the rows that `find_rows` finds, with links to others."""
    rows = find_rows(lake, name, query)
    table, source, order, page = rows.table, rows.source, rows.order, _read_page(dict(query).get("page", "1"))
    first = (page - 1) * ROWS_PER_PAGE
    limit = f"LIMIT {ROWS_PER_PAGE + 1} OFFSET {first}"
    page_sql = f"{rows.sql} {limit}"
    is_view_of_files = _FILE in table.columns and table.name not in _TABLES
    # A count of such a view takes half as long as its rows.
    count = None if is_view_of_files else _count_rows(lake, source)
    if table.name in _TABLES:  # sorts the numbers of the rows alone: page 900 of 157,000 uploads takes 14 ms, not 103
        numbers = f"SELECT rowid FROM {source}{order} {limit}"
        page_sql = f"SELECT {rows.columns} FROM {table.sql_name} WHERE rowid IN ({numbers}){order}"
    elif is_view_of_files and not rows.sort:
        numbered = FILES.name if table.name in _ROW_PER_FILE and not rows.filters else source
        count, of_page = _select_page_by_file(lake, source, numbered, first, order)
        page_sql = f"SELECT {rows.columns} {of_page}"
    result = read_query(lake, page_sql, ROWS_PER_PAGE)
    sorted_url = url.without_query_params("page", "desc")
    reversed_url = sorted_url if rows.is_descending else sorted_url.update_query(desc="1")
    sort_links = {column: sorted_url.update_query(sort=column) for column in table.columns}
    facet = dict(query).get("facet", "")
    values = {
        "asked": rows,
        "facet": facet,
        "facets": _count_values(lake, rows, facet, url) if facet else [],
        "shown_filters": [*rows.filters, _NO_FILTER][:_MAX_FILTERS],
        "operators": _OPERATORS,
        "max_chars": _MAX_VALUE_CHARS,
        "count": count,
        "first": first,
        "last": first + len(result.rows),
        "url": url,
        "start": url.without_query_params("page"),
        "previous": url.update_query(page=page - 1),
        "next": url.update_query(page=page + 1),
        "result": result,
        "images": _find_images(lake, table, result),
        "sort_links": sort_links | {rows.sort: reversed_url},
    }
    return BrowsePage("browse_rows.html.jinja", name, values)


def _find_images(lake: duckdb.DuckDBPyConnection, table: BrowsedTable, result: QueryRows) -> list[UploadImages | None]:
    """Return the copies of the upload of each row; nothing if no row has one that a page shows."""
    upload = "id" if table.name == UPLOADS.name else "upload_id"
    keys = [(int(row.get(_FILE) or 0), row.get(upload)) for row in result.dicts]
    by_upload = read_images(lake, *{file_id for file_id, upload_id in keys if upload_id})
    images = [by_upload.get(key) for key in keys]
    return images if any(copies is not None and copies.displayed for copies in images) else []


def _read_filters(query: Query) -> list[tuple[str, str, str]]:
    """Return the filters of an address. Raises `SettingsError` for what no page links to."""
    columns, ops, texts = ([value for name, value in query if name == key] for key in ("column", "op", "value"))
    is_complete = len(columns) == len(ops) == len(texts) <= _MAX_FILTERS + 1
    entries = list(zip(columns, ops, texts, strict=False))
    if not is_complete or any(len(text) > _MAX_VALUE_CHARS or (text and not column) for column, _, text in entries):
        parts = f"a column, a comparison and a value of at most {_MAX_VALUE_CHARS} characters"
        raise SettingsError(f"A filter has {parts}, at most {_MAX_FILTERS} times.", hint=_HINT)
    return [entry for entry in entries if entry[0]]


def _read_page(text: str) -> int:
    if not (text.isdecimal() and len(text) <= _MAX_PAGE_DIGITS and int(text)):
        raise SettingsError(f"Page {text}: no such page.", hint=_HINT)
    return int(text)


def _to_condition(table: BrowsedTable, column: str, op: str, text: str) -> str:
    """Return a filter in SQL. Raises `SettingsError` for a comparison or column that does not exist."""
    subject, value = _quote_column(table, column), sql_literal(text)
    if op == "contains":
        return f"contains(lower({subject}::VARCHAR), lower({value}))"
    if op not in _COMPARISONS:
        raise SettingsError(f"No comparison {op}.", hint=_HINT)
    if op == "is" and not text:
        return f"coalesce({subject}::VARCHAR, '') = ''"
    sql_type, _ = table.columns[column]
    sql_type = _CASTS.get(sql_type, sql_type)
    if sql_type in _WHOLE_NUMBERS and not text.isdecimal():  # a cast rounds; one of the column prevents an index scan
        sql_type = "DECIMAL(38, 18)"
    return f"{subject} {_COMPARISONS[op]} {value}::{sql_type}"


def _count_values(
    lake: duckdb.DuckDBPyConnection, rows: TableQuery, column: str, url: URL
) -> list[tuple[str, int, URL | None]]:
    """Return the most frequent values of a column among the filtered rows that a filter can have.

    They come as text, with the number of rows and the page of these; no address can have some of them.
    """
    value = f"coalesce({_quote_column(rows.table, column)}::VARCHAR, '')"
    counted = f"SELECT {value} AS value, count(*) AS rows FROM {rows.source} GROUP BY ALL"
    sql = f"FROM ({counted}) WHERE length(value) <= {_MAX_VALUE_CHARS} ORDER BY rows DESC, value"
    plain = url.without_query_params("page", "facet")
    facets: list[tuple[str, int, URL | None]] = []
    for text, count in read_query(lake, sql, _MAX_FACETS).rows:
        address = plain.extend_query([("column", column), ("op", "is"), ("value", text or "")])
        facets.append((text or "", int(count or 0), address if text == clean_text(text or "") else None))
    return facets


def _count_rows(lake: duckdb.DuckDBPyConnection, source: str) -> int:
    count = read_query(lake, f"SELECT count(*) FROM {source}", 1).rows[0][0]
    return int(count or 0)


def _select_page_by_file(
    lake: duckdb.DuckDBPyConnection, source: str, numbered: str, first: int, order: str
) -> tuple[int, str]:
    """Return the number of rows of a view, and the query for a page of them: it reads the files of the page alone.

    `numbered` has a row with the file's id for each row of `source`. DuckDB computes a view's values for all
    files before it sorts, but passes a range of files down to its tables.
    """
    numbers = "row_number() OVER (ORDER BY file_id) AS number, rank() OVER (ORDER BY file_id) AS of_file"
    ((count, before, *bounds),) = read_query(
        lake,
        f"WITH numbered AS (SELECT file_id, {numbers} FROM {numbered}) SELECT count(*), min(of_file) FILTER (number >"
        f" {first}) - 1, min(file_id) FILTER (number > {first}),"
        f" max(file_id) FILTER (number <= {first + ROWS_PER_PAGE + 1}) FROM numbered",
        1,
    ).rows
    lowest, highest = (bound or "NULL" for bound in bounds)
    page = f"LIMIT {ROWS_PER_PAGE + 1} OFFSET {first - int(before or 0)}"
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
