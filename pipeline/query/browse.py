"""The browse pages: all tables, the rows of one with filters, order and paging, one file with images, the query box.

A query is as confined as that of `scanlake query`.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, convert

from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.catalog.history import FILE_EVENTS, FILE_VERSIONS
from pipeline.lake.catalog.sql import sql_identifier, sql_literal
from pipeline.lake.catalog.tables import IMAGES_TABLE
from pipeline.lake.catalog.views import FILE_SUMMARY
from pipeline.output.formatting import format_bytes
from pipeline.output.templates.rendering import read_script
from pipeline.query.catalog_access import (
    BrowsePage,
    NothingFoundError,
    ResultColumn,
    clean_text,
    list_catalog_tables,
    read_documented_queries,
    read_queries,
    read_query,
)
from pipeline.query.charts import KINDS, choose_chart, draw_chart
from pipeline.query.reader import fetch_dicts
from schemas.tables import FILES, TABLES, UPLOADS

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb
    from yarl import URL

    from pipeline.query.catalog_access import BrowsedTable, Query, QueryRows

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
MAX_ROWS: Final = 500
_NO_CHART: Final = "none"
_MAX_QUERY_CHARS: Final = 4_000  # each takes up to 12 bytes in the address
DOCUMENTED_QUERIES: Final = read_documented_queries()
"""Title and SQL of each query of docs/queries.md that reads one catalog."""
_SCRIPT: Final = read_script("browse_sql.js")
_MAX_SECTION_ROWS: Final = 200
"""Rows of a section. The links at the end of the page lead to all rows."""

_QUERIES: Final = read_queries("file.sql")
_SECTIONS: Final = {
    "fields": "Fields",
    "runs": "Workflow runs",
    "open_steps": "Open workflow steps",
    "locations": "Locations",
    "events": "Closing, reopening, new references",
}
_INLINE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/webp", "image/gif"})
"""Types that a browser shows. All others are downloads: HTML or SVG would run in the origin of these pages."""

_DOWNLOAD_SUFFIXES: Final = {"application/pdf": ".pdf"}
_STORE_FOLDER: Final = "images"
_CHECK_HINT: Final = "Run `scanlake repair --read-data`."
_STORED: Final = "state = 'stored' AND path IS NOT NULL AND regexp_full_match(sha256, '[0-9a-f]{64}')"
_IMAGE: Final = "sha256, coalesce(bytes, 0) AS bytes, coalesce(mime, '') AS mime, path"


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


# The query box


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


# One file: its time line, uploads, forms, fields and workflow runs, and its stored images


class StoredImage(Struct, frozen=True):
    """A copy as the catalog names it. `path` is relative to the lake's folder."""

    sha256: str
    bytes: int
    mime: str
    path: str

    @property
    def is_inline(self) -> bool:
        """Whether a page shows it."""
        return self.mime in _INLINE_TYPES

    @property
    def description(self) -> str:
        """Type and size."""
        is_known = self.is_inline or self.mime in _DOWNLOAD_SUFFIXES
        return f"{self.mime.rpartition('/')[2].upper() if is_known else 'file'}, {format_bytes(self.bytes)}"

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers of its response."""
        if self.is_inline:
            return {"Content-Type": self.mime}
        suffix = _DOWNLOAD_SUFFIXES.get(self.mime, ".bin")
        return {
            "Content-Type": self.mime if self.mime in _DOWNLOAD_SUFFIXES else "application/octet-stream",
            "Content-Disposition": f'attachment; filename="{self.sha256}{suffix}"',
        }


class UploadImages(Struct):
    """The copies of one upload, and why there is none of its image."""

    image: StoredImage | None = None
    thumbnail: StoredImage | None = None
    problem: str = ""

    @property
    def displayed(self) -> StoredImage | None:
        """The copy that a page shows: the smaller one."""
        return next((image for image in (self.thumbnail, self.image) if image is not None and image.is_inline), None)


def find_file(lake: duckdb.DuckDBPyConnection, text: str) -> BrowsePage:
    """Return the page of the file with this reference or id; a list of them if there are several."""
    matches = read_query(lake, _QUERIES["matches"].format(text=sql_literal(text)), _MAX_SECTION_ROWS)
    if not matches.rows:
        raise NothingFoundError(
            f"No file has the reference or id {text}.", hint="Filter the table files for part of the reference."
        )
    if len(matches.rows) == 1:
        return build_file_page(lake, int(matches.rows[0][0] or 0))
    return BrowsePage("browse_files.html.jinja", f"Files {text}", {"matches": matches})


def build_file_page(lake: duckdb.DuckDBPyConnection, file_id: int) -> BrowsePage:
    """Return the page of a file, also of a deleted one. Raises `NothingFoundError` if the lake has never had it."""
    rows = fetch_dicts(lake, _QUERIES["facts"].format(file_id=file_id))
    if not rows:
        raise NothingFoundError(f"No file {file_id} in the lake.", hint="Look for it by its reference.")
    facts = {name: str(value) for name, value in rows[0].items() if value is not None}
    heading = f"File {facts.get('Reference') or file_id}"
    if "Deletion detected" in facts:
        return BrowsePage("browse_deleted.html.jinja", heading, {"facts": facts})

    def read(name: str) -> QueryRows:
        return read_query(lake, _QUERIES[name].format(file_id=file_id), _MAX_SECTION_ROWS)

    answers = read("answers")
    names = [table.name for table in TABLES if table.is_per_file and table.schema == "main"]
    values = {
        "file_id": file_id,
        "facts": facts,
        "images": read_images(lake, file_id),
        "timeline": read("timeline"),
        "uploads": read("uploads"),
        "answers": answers,
        "forms": _group_answers(answers),
        "sections": [(key, name, read(key)) for key, name in _SECTIONS.items()],
        "tables": [*names, FILE_EVENTS.name, IMAGES_TABLE],
    }
    return BrowsePage("browse_file.html.jinja", heading, values)


def _group_answers(answers: QueryRows) -> list[tuple[str | None, list[dict[str, str | None]]]]:
    """Return the answers of each form with its title; a form without answers has none."""
    groups = groupby(answers.dicts, key=lambda row: (row["position"], row["title"]))
    return [(title, [row for row in rows if row["answer_position"] is not None]) for (_, title), rows in groups]


# Stored images


def read_images(lake: duckdb.DuckDBPyConnection, *file_ids: int) -> defaultdict[tuple[int, str | None], UploadImages]:
    """Return the copies of files by the ids of file and upload."""
    sql = f"""SELECT file_id, upload_id::VARCHAR AS upload_id, kind, {_STORED} AS is_stored, {_IMAGE},
                     concat_ws(': ', replace(state, '_', ' '), reason) AS problem
              FROM images WHERE file_id IN ({", ".join(map(str, file_ids)) or "NULL"})"""
    uploads: defaultdict[tuple[int, str | None], UploadImages] = defaultdict(UploadImages)
    for row in fetch_dicts(lake, sql):
        upload = uploads[row["file_id"], row["upload_id"]]
        image = convert(row, StoredImage) if row["is_stored"] else None
        if row["kind"] == "thumbnail":
            upload.thumbnail = image
        else:
            upload.image, upload.problem = image, "" if image else row["problem"]
    return uploads


def find_image(lake: duckdb.DuckDBPyConnection, sha256: str) -> StoredImage:
    """Return the copy with this hash. Raises `NothingFoundError` if the catalog names none."""
    sql = f"SELECT {_IMAGE} FROM images WHERE sha256 = {sql_literal(sha256)} AND {_STORED} ORDER BY ALL LIMIT 1"
    for row in fetch_dicts(lake, sql):
        return convert(row, StoredImage)
    raise NothingFoundError("No such image in the lake.", hint="Open the page of its file again.")


def read_image(folder: Path, image: StoredImage) -> bytes:
    """Return the bytes of a copy in the lake's folder.

    Raises `NothingFoundError` if the store does not have it, and `LakeCorruptedError` if its bytes have another hash.
    """
    store = (folder / _STORE_FOLDER).resolve()
    path = (folder / image.path).resolve()
    if not path.is_relative_to(store) or not path.is_file():
        raise NothingFoundError("The store does not have this image.", hint=_CHECK_HINT)
    body = path.read_bytes()
    if hashlib.sha256(body).hexdigest() != image.sha256:
        raise LakeCorruptedError("The stored image is not the one that was downloaded.", hint=_CHECK_HINT)
    return body
