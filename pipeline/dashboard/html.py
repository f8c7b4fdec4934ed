"""HTML elements of the page. Every text and attribute passes `clean_text`; the serialiser escapes it.

Pages are trees of the standard library's elements, not strings: no value from the data can become markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element, tostring

from pipeline.formatting import format_minute, truncate
from pipeline.logs import to_one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

_MAX_TEXT_CHARS: Final = 1_000

Child = Element | str | None


def element(tag: str, /, *children: Child, **attributes: str | float) -> Element:
    """Return an element with its children in order; None is left out. `aria_label` means aria-label, `class_` class."""
    node = Element(tag, {name.rstrip("_").replace("_", "-"): _value(value) for name, value in attributes.items()})
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            node.append(child)
            last = child
        elif child is not None and last is None:
            node.text = (node.text or "") + clean_text(child)
        elif child is not None and last is not None:
            last.tail = (last.tail or "") + clean_text(child)
    return node


def raw_element(tag: str, text: str) -> Element:
    """Return a style or script element with its text unchanged. Never for text from the data."""
    node = Element(tag)
    node.text = text
    return node


def to_html(root: Element) -> str:
    """Return the tree as an HTML document."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def clean_text(text: str) -> str:
    """Return a text without secrets, with control and direction characters escaped, at most 1,000 characters long.

    One space at either end is kept, because sentences are joined from parts.
    """
    clipped = text[: 4 * _MAX_TEXT_CHARS]
    line = truncate(to_one_line(clipped), _MAX_TEXT_CHARS)
    before = " " if clipped[:1] == " " else ""
    after = " " if clipped[-1:] == " " and line else ""
    return f"{before}{line}{after}"


def _value(value: str | float) -> str:
    return clean_text(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


# Sections, figures and tables


def section(key: str, heading: str, *children: Child) -> Element:
    """Return a section of the page with the id `key`."""
    return element("section", element("h2", heading, id=key), *children, aria_labelledby=key)


def figure(finding: str, *children: Child, note: str = "") -> Element:
    """Return a figure below a sentence with its main finding, with a note under it."""
    caption = element("figcaption", note) if note else None
    return element("figure", element("h3", finding), *children, caption)


def empty_note(*children: Child) -> Element:
    """Return the text in place of a figure without data."""
    return element("p", *children, class_="nothing")


def time_cell(at: datetime | None) -> Element:
    """Return an instant to the minute on one line; the column's heading names the time zone."""
    return element("span", format_minute(at), class_="nowrap")


def axis_label(text: str) -> Element:
    """Return the label of a y axis, which is above its chart."""
    return element("p", text, class_="unit")


def table(headings: Sequence[str], rows: Iterable[Sequence[Child]], *, numbers: Iterable[int] = ()) -> Element:
    """Return a table; the columns in `numbers` are right-aligned, the first cell of a row is its heading.

    A wide table scrolls without the page. The keyboard reaches it.
    """
    right = frozenset(numbers)
    head = element("tr", *(_cell("th", name, index in right, scope="col") for index, name in enumerate(headings)))
    body = []
    for first, *others in rows:
        cells = [_cell("td", cell, index in right) for index, cell in enumerate(others, 1)]
        body.append(element("tr", _cell("th", first, 0 in right, scope="row"), *cells))
    content = element("table", element("thead", head), element("tbody", *body))
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=f"Table: {headings[0]}")


def details(summary: str, *children: Child) -> Element:
    """Return a block that is closed at first: the numbers of a chart."""
    return element("details", element("summary", summary), *children)


def _cell(tag: str, content: Child, right: bool, **attributes: str) -> Element:  # noqa: FBT001 - of a table's column
    if right:
        attributes["class_"] = "number"
    return element(tag, content, **attributes)
