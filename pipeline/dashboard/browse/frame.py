"""What all browse pages share: frame, navigation, links, and rows as an HTML table."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode, urlsplit

from pipeline.dashboard.html import Child, clean_text, element, raw_element, to_html
from pipeline.formatting import format_csp_hash, format_instant, pluralize, truncate
from pipeline.lake.reader import fetch_dicts
from pipeline.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from xml.etree.ElementTree import Element

    import duckdb

    from pipeline.dashboard.browse.catalog_access import QueryRows
    from pipeline.dashboard.browse.stored_images import StoredImage

ROOT: Final = "/browse"
TABLE_PATH: Final = f"{ROOT}/table/"
FILE_PATH: Final = f"{ROOT}/file"
SQL_PATH: Final = f"{ROOT}/sql"
CSV_PATH: Final = f"{ROOT}/csv"
MAX_CELL_CHARS: Final = 160
_LONG_CHARS: Final = 40  # of a cell that may have several lines

_STYLE: Final = "".join(
    files("pipeline.dashboard").joinpath(path).read_text(encoding="utf-8") for path in ("page.css", "browse/browse.css")
)
POLICY: Final = (
    f"default-src 'none'; style-src '{format_csp_hash(_STYLE)}'; img-src 'self' data:; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'"
)
_NUMBER_TYPES: Final = ("BIGINT", "INTEGER", "DOUBLE", "DECIMAL", "HUGEINT", "SMALLINT", "UBIGINT", "FLOAT")


@dataclass(frozen=True, slots=True)
class BrowsePage:
    """A page: its heading, its content and its HTTP status.

    `current` is the path of its link in the navigation, `images` are the copies that it shows or links to.
    """

    heading: str
    content: Sequence[Element | None] = ()
    current: str = ""
    status: int = 200
    images: Sequence[StoredImage] = ()


def render_browse_page(page: BrowsePage, lake: str, source: str | None, snapshot: str) -> str:
    """Return the page as HTML. `source` is the address of the service, `snapshot` the state of the rows."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{page.heading} - {lake}: scanlake"),
        raw_element("style", _STYLE),
    )
    about = f"Lake {lake}" if source is None else f"Lake {lake}, files of {source}"
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        element("header", _navigation(page.current), element("p", f"{about}. {snapshot}", class_="soft")),
        element("main", element("h1", page.heading), *page.content, id="content"),
        element("footer", element("p", f"All times are UTC. Nothing here changes the lake. scanlake {__version__}.")),
        class_="browse",
    )
    return to_html(element("html", head, body, lang="en"))


def describe_snapshot(lake: duckdb.DuckDBPyConnection) -> str:
    """Return which snapshot a page shows."""
    fresh = fetch_dicts(lake, "SELECT snapshot, complete, watermark FROM meta.freshness")[0]
    if fresh["watermark"] is None:
        return f"Snapshot {fresh['snapshot']} is incomplete: the first sync has not finished."
    text = f"Snapshot {fresh['snapshot']} has everything updated before {format_instant(fresh['watermark'])}"
    return f"{text}." if fresh["complete"] else f"{text}, and a part of what a run has fetched since."


def _navigation(current: str) -> Element:
    links = [("/", "Overview"), (ROOT, "Tables"), (SQL_PATH, "SQL")]
    items = [element("li", link(name, path, current=path == current)) for path, name in links]
    search = element(
        "form",
        element("input", name="q", type="search", required="required", aria_label="Reference or id of a file",
                placeholder="Reference or id", maxlength="200"),
        element("button", "Open file"),
        action=FILE_PATH,
        role="search",
    )  # fmt: skip
    return element("nav", element("ul", *items), search, aria_label="Pages")


# Links


def link(text: str, path: str, query: Iterable[tuple[str, str]] = (), *, current: bool = False) -> Element:
    """Return a link to a page of this server."""
    node = element("a", text)
    parameters = urlencode(list(query), quote_via=quote)
    node.set("href", f"{path}?{parameters}" if parameters else path)  # `element` would cut a long query
    if current:
        node.set("aria-current", "page")
    return node


def file_link(text: str, file_id: str) -> Element:
    """Return a link to the page of a file."""
    return link(text, FILE_PATH, [("id", file_id)])


def rows_link(text: str, table: str, column: str, value: str) -> Element:
    """Return a link to the rows of a table with this value in a column."""
    return link(text, TABLE_PATH + quote(table), [("column", column), ("op", "is"), ("value", value)])


def sql_links(query: str) -> Element:
    """Return links to the rows of a query as CSV, and to the query itself."""
    csv, sql = link("CSV", CSV_PATH, [("sql", query)]), link("Edit as SQL", SQL_PATH, [("sql", query)])
    csv.set("download", "")
    return element("p", csv, " · ", sql, class_="links")


def outer_link(text: str, url: str | None) -> Element | str:
    """Return a link to a page elsewhere, opened in a new tab; the text alone if the value is no web address."""
    if url is None or not _is_web_address(url):
        return text
    node = element("a", text, target="_blank", rel="noreferrer noopener")
    node.set("href", url)
    return node


def _is_web_address(text: str) -> bool:
    if not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


# Rows


def rows_table(result: QueryRows, label: str, headings: Mapping[str, Child] | None = None) -> Element:
    """Return the rows as a table that scrolls without the page. `headings` replaces names of columns."""
    right = [kind.startswith(_NUMBER_TYPES) and not kind.endswith("]") for kind in result.types]
    head = [
        _cell("th", (headings or {}).get(name, name), is_right, scope="col")
        for name, is_right in zip(result.columns, right, strict=True)
    ]
    body = [
        element("tr", *(
            _cell("td", format_value(name, value), is_right)
            for name, value, is_right in zip(result.columns, row, right, strict=True)
        ))
        for row in result.rows
    ]  # fmt: skip
    return scrolling(element("table", element("thead", element("tr", *head)), element("tbody", *body)), label)


def scrolling(table: Element, label: str) -> Element:
    """Return a wide table in a region that the keyboard can scroll."""
    return element("div", table, class_="scroll rows", tabindex="0", role="region", aria_label=f"Table: {label}")


def plain_table(headings: Sequence[str], rows: Iterable[Sequence[Child]], label: str) -> Element:
    """Return a table of given cells."""
    head = element("tr", *(element("th", name, scope="col") for name in headings))
    body = [element("tr", *(_cell("td", cell, is_right=False) for cell in row)) for row in rows]
    return scrolling(element("table", element("thead", head), element("tbody", *body)), label)


def format_value(name: str, value: str | None) -> Child:
    """Return a value as a cell: NULL is marked, ids of files and web addresses are links."""
    if value is None:
        return element("span", "NULL", class_="null")
    if name == "file_id" and value.isdecimal():
        return file_link(value, value)
    return outer_link(truncate(clean_text(value), MAX_CELL_CHARS), value)


def count_note(count: int, has_more: bool, noun: str = "row") -> str:  # noqa: FBT001 - of the rows
    """Return how many rows a page shows."""
    return f"The first {pluralize(count, noun)} of more." if has_more else f"{pluralize(count, noun)}."


def error_note(message: str, hint: str) -> Element:
    """Return an error as one line with its hint."""
    return element("p", element("strong", message), f" {hint}", class_="verdict problems", role="alert")


def _cell(tag: str, content: Child, is_right: bool, **attributes: str) -> Element:  # noqa: FBT001 - of a column
    if is_right:
        attributes["class_"] = "number"
    elif isinstance(content, str) and len(content) > _LONG_CHARS:
        attributes["class_"] = "long"
    return element(tag, content, **attributes)
