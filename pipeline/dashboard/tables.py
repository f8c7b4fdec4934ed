"""Sections, figures and tables: the page's furniture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.dashboard.elements import element
from pipeline.dashboard.plots import meter
from pipeline.dashboard.spelling import minute

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime
    from xml.etree.ElementTree import Element

    from pipeline.dashboard.elements import Child


def section(key: str, heading: str, *children: Child) -> Element:
    """A part of the page, which `key` leads to."""
    return element("section", element("h2", heading, id=key), *children, aria_labelledby=key)


def figure(finding: str, *children: Child, note: str = "") -> Element:
    """A plot or table below the sentence that says what it shows, with a note below it."""
    caption = element("figcaption", note) if note else None
    return element("figure", element("h3", finding), *children, caption)


def nothing(*says: Child) -> Element:
    """In place of a figure that there are no data for."""
    return element("p", *says, class_="nothing")


def when(at: datetime | None) -> Element:
    """A moment to the minute, on one line; the column's heading says that it is UTC."""
    return element("span", minute(at), class_="whole")


def unit(says: str) -> Element:
    """What the y axis below counts."""
    return element("p", says, class_="unit")


def table(headings: Sequence[str], lines: Iterable[Sequence[Child]], *, numbers: Iterable[int] = ()) -> Element:
    """A table; the columns in `numbers` are set to the right. The first cell of a line is its heading.

    A wide one scrolls by itself, never the page; it can be reached with the keyboard to do so.
    """
    right = frozenset(numbers)
    head = element("tr", *(_cell("th", name, place in right, scope="col") for place, name in enumerate(headings)))
    body = [
        element(
            "tr",
            *(
                _cell("td" if place else "th", cell, place in right, **({} if place else {"scope": "row"}))
                for place, cell in enumerate(line)
            ),
        )
        for line in lines
    ]
    whole = element("table", element("thead", head), element("tbody", *body))
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=f"Table: {headings[0]}")


def details(summary: str, *children: Child) -> Element:
    """What is folded away until somebody wants it: the numbers behind a plot."""
    return element("details", element("summary", summary), *children)


def meters(headings: tuple[str, str], lines: Iterable[tuple[str, float, float, str]], *, others: str = "") -> Element:
    """Names with bars: lines of (name, part, whole, what is said). A table, so it needs no other form."""
    head = element(
        "tr",
        element("th", headings[0], scope="col"),
        element("td", class_="bar"),
        element("th", headings[1], scope="col", class_="number"),
    )
    body = [
        element(
            "tr",
            element("th", name, scope="row"),
            element("td", meter(part, whole), class_="bar"),
            element("td", says, class_="number"),
        )
        for name, part, whole, says in lines
    ]
    last = element("tr", element("td", others, colspan="3", class_="others")) if others else None
    return element("table", element("thead", head), element("tbody", *body, last), class_="meters")


def _cell(tag: str, content: Child, right: bool, **attributes: str) -> Element:  # noqa: FBT001 - of a table's column
    if right:
        attributes["class_"] = "number"
    return element(tag, content, **attributes)
