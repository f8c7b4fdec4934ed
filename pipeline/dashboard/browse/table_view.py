"""The pages of the tables: the list of all, and the rows of one with filters, order and paging."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from pipeline.dashboard.browse.catalog_access import NothingFoundError, list_catalog_tables, read_query
from pipeline.dashboard.browse.frame import ROOT, TABLE_PATH, BrowsePage, link, plain_table, rows_table, sql_links
from pipeline.dashboard.html import Child, clean_text, element, empty_note, section
from pipeline.errors import SettingsError
from pipeline.formatting import format_count, pluralize
from pipeline.lake.catalog_images import IMAGES_TABLE
from pipeline.lake.sql import sql_identifier, sql_literal
from schemas.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from xml.etree.ElementTree import Element

    import duckdb

    from pipeline.dashboard.browse.catalog_access import BrowsedColumn, BrowsedTable

ROWS_PER_PAGE: Final = 50
MAX_FILTERS: Final = 8
_MAX_VALUE_CHARS: Final = 200
_MAX_PAGE: Final = 10_000_000
_HINT: Final = "Open the table from the page Tables again."
_NO_VALUE: Final = {"empty": "IS NULL", "filled": "IS NOT NULL"}
_COMPARISONS: Final = {"is": "=", "not": "IS DISTINCT FROM", "from": ">=", "to": "<="}
_OPERATORS: Final = {
    "is": "is",
    "contains": "contains",
    "not": "is not",
    "from": "at least",
    "to": "at most",
    "empty": "is NULL",
    "filled": "is not NULL",
}
_DECLARED: Final = {table.name if table.schema == "main" else table.qualified_name: table for table in TABLES}
_TIE_BREAKS: Final = ("position", "submit_position")
_VIEW_ORDER_COLUMNS: Final = 6


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition on a column; `op` is a key of `_OPERATORS`."""

    column: str
    op: str
    value: str


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """Which rows of a table a page shows, from its address. Pages count from 1."""

    filters: tuple[RowFilter, ...] = ()
    sort: str = ""
    is_descending: bool = False
    page: int = 1

    @classmethod
    def from_query(cls, query: Iterable[tuple[str, str]]) -> RowsRequest:
        """Return the request of an address. Raises `SettingsError` for what no page links to."""
        parameters: dict[str, list[str]] = {}
        for name, value in query:
            parameters.setdefault(name, []).append(value)
        columns, ops, texts = (parameters.get(name, []) for name in ("column", "op", "value"))
        if not len(columns) == len(ops) == len(texts) <= MAX_FILTERS + 1:
            raise SettingsError(
                f"A filter has a column, a comparison and a value, at most {MAX_FILTERS} times.", hint=_HINT
            )
        filters = tuple(RowFilter(*values) for values in zip(columns, ops, texts, strict=True) if values[0])
        page = parameters.get("page", ["1"])[-1]
        if not (page.isdecimal() and len(page) <= len(str(_MAX_PAGE)) and 1 <= int(page) <= _MAX_PAGE):
            raise SettingsError(f"Page {page}: no such page.", hint=_HINT)
        return cls(filters, parameters.get("sort", [""])[-1], parameters.get("desc") == ["1"], int(page))

    def to_query(self) -> list[tuple[str, str]]:
        """Return the parameters of the address."""
        query = [
            pair
            for row_filter in self.filters
            for pair in zip(("column", "op", "value"), astuple(row_filter), strict=True)
        ]  # fmt: skip
        query += [("sort", self.sort)] if self.sort else []
        query += [("desc", "1")] if self.is_descending else []
        return query + ([("page", str(self.page))] if self.page > 1 else [])


def build_tables_page(lake: duckdb.DuckDBPyConnection) -> BrowsePage:
    """Return the list of all tables and views."""
    tables = list_catalog_tables(lake)
    main = [name for name in (*_DECLARED, IMAGES_TABLE) if name in tables and not name.startswith("meta.")]
    declared = [tables[name] for name in main]
    views = [table for name, table in tables.items() if name not in main and not name.startswith("meta.")]
    meta = [table for name, table in tables.items() if name.startswith("meta.")]
    counts = {table.name: _count_rows(lake, table, "") for table in declared}
    groups = [("data", "Tables", declared), ("views", "Views", views), ("meta", "About the lake", meta)]
    sections = [section(key, heading, _list_tables(group, counts, heading)) for key, heading, group in groups]
    return BrowsePage("Tables", sections, ROOT)


def _list_tables(tables: Iterable[BrowsedTable], counts: Mapping[str, int], label: str) -> Element:
    rows: list[list[Child]] = [
        [link(table.name, TABLE_PATH + quote(table.name)), *_count_cell(counts, table.name), table.contents]
        for table in tables
    ]
    headings = (
        ["Name", "Rows", "Contents"] if counts.keys() & {table.name for table in tables} else ["Name", "Contents"]
    )
    return plain_table(headings, rows, label)


def _count_cell(counts: Mapping[str, int], name: str) -> list[Child]:
    return [format_count(counts[name])] if name in counts else []


def build_rows_page(lake: duckdb.DuckDBPyConnection, name: str, request: RowsRequest) -> BrowsePage:
    """Return a page of a table's rows. Raises `SettingsError` for a wrong filter, `NothingFoundError`."""
    table = list_catalog_tables(lake).get(name)
    if table is None:
        raise NothingFoundError(f"No table {name}.", hint="The page Tables lists all.")
    columns = {column.name: column for column in table.columns}
    where = _where(columns, request.filters)
    count = _count_rows(lake, table, where)
    query = f"SELECT * FROM {table.sql_name}{where} ORDER BY {_order(table, columns, request)}"
    first = (request.page - 1) * ROWS_PER_PAGE
    result = read_query(lake, f"{query} LIMIT {ROWS_PER_PAGE} OFFSET {first}", ROWS_PER_PAGE)
    headings = {column.name: _heading(table, column, request) for column in table.columns}
    content = [
        element("p", table.contents, class_="lead"),
        _filter_form(table, request),
        _pager(table, request, count),
        rows_table(result, name, headings) if result.rows else empty_note("No rows."),
        sql_links(query),
    ]
    return BrowsePage(name, content)


def _count_rows(lake: duckdb.DuckDBPyConnection, table: BrowsedTable, where: str) -> int:
    count = read_query(lake, f"SELECT count(*) FROM {table.sql_name}{where}", 1).rows[0][0]
    return int(count or 0)


# SQL


def _where(columns: Mapping[str, BrowsedColumn], filters: Iterable[RowFilter]) -> str:
    conditions = [_condition(_find_column(columns, entry.column), entry) for entry in filters]
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _find_column(columns: Mapping[str, BrowsedColumn], name: str) -> BrowsedColumn:
    if name not in columns:
        raise SettingsError(f"No column {name}.", hint=_HINT)
    return columns[name]


def _condition(column: BrowsedColumn, row_filter: RowFilter) -> str:
    subject, value = sql_identifier(column.name), sql_literal(row_filter.value[:_MAX_VALUE_CHARS])
    if row_filter.op in _NO_VALUE:
        return f"{subject} {_NO_VALUE[row_filter.op]}"
    if row_filter.op == "contains":
        return f"contains(lower({subject}::VARCHAR), lower({value}))"
    if row_filter.op not in _COMPARISONS:
        raise SettingsError(f"No comparison {row_filter.op}.", hint=_HINT)
    typed = value if column.type in {"VARCHAR", "JSON"} else f"{value}::{column.type}"
    return f"{subject} {_COMPARISONS[row_filter.op]} {typed}"


def _order(table: BrowsedTable, columns: Mapping[str, BrowsedColumn], request: RowsRequest) -> str:
    """Return an order in which pages neither repeat nor omit a row of a table."""
    declared = _DECLARED.get(table.name)
    names = [column.name for column in table.columns[:_VIEW_ORDER_COLUMNS]]
    if declared is not None:
        names = [*declared.key, *(name for name in _TIE_BREAKS if name in columns)]
    order = [sql_identifier(name) for name in names if name != request.sort]
    if request.sort:
        direction = "DESC" if request.is_descending else "ASC"
        order.insert(0, f"{sql_identifier(_find_column(columns, request.sort).name)} {direction} NULLS LAST")
    return ", ".join(order)


# Elements


def _heading(table: BrowsedTable, column: BrowsedColumn, request: RowsRequest) -> Element:
    """Return the link that sorts by the column, or reverses the order."""
    is_sorted = column.name == request.sort
    descending = is_sorted and not request.is_descending
    target = replace(request, sort=column.name, is_descending=descending, page=1)
    sign = (" ▼" if request.is_descending else " ▲") if is_sorted else ""
    heading = link(column.name + sign, TABLE_PATH + quote(table.name), target.to_query())
    heading.set("title", clean_text(f"{column.type}. {column.comment}"))
    return heading


def _filter_form(table: BrowsedTable, request: RowsRequest) -> Element:
    filters = [*request.filters, RowFilter("", "is", "")][:MAX_FILTERS]
    rows = [_filter_row(table, row_filter, number) for number, row_filter in enumerate(filters, 1)]
    hidden = [
        element("input", type="hidden", name=name, value=value)
        for name, value in replace(request, filters=(), page=1).to_query()
    ]
    path = TABLE_PATH + quote(table.name)
    clear = link("Show all rows", path) if request.filters else None
    form = element("form", *hidden, *rows, element("p", element("button", "Filter"), " ", clear), class_="filters")
    form.set("action", path)
    return form


def _filter_row(table: BrowsedTable, row_filter: RowFilter, number: int) -> Element:
    names = [("", "column…"), *((column.name, column.name) for column in table.columns)]
    value = element("input", name="value", maxlength=_MAX_VALUE_CHARS, aria_label=f"Value of filter {number}")
    value.set("value", row_filter.value)
    return element(
        "p",
        _select("column", names, row_filter.column, f"Column of filter {number}"),
        " ",
        _select("op", _OPERATORS.items(), row_filter.op, f"Comparison of filter {number}"),
        " ",
        value,
    )


def _select(name: str, options: Iterable[tuple[str, str]], chosen: str, label: str) -> Element:
    items = []
    for value, text in options:
        item = element("option", text)
        item.set("value", value)
        if value == chosen:
            item.set("selected", "selected")
        items.append(item)
    return element("select", *items, name=name, aria_label=label)


def _pager(table: BrowsedTable, request: RowsRequest, count: int) -> Element:
    first = (request.page - 1) * ROWS_PER_PAGE
    last = min(first + ROWS_PER_PAGE, count)
    text = f"Rows {first + 1:,} to {last:,} of {count:,}" if first < count else pluralize(count, "row")
    path, children = TABLE_PATH + quote(table.name), list[Child]()
    for name, page, is_there in (("Previous", request.page - 1, first > 0), ("Next", request.page + 1, last < count)):
        if is_there:
            children += ["  ", link(name, path, replace(request, page=page).to_query())]
    return element("p", text, *children, class_="pager")
