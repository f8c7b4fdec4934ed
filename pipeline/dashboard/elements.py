"""Elements of the page. Every text and attribute passes `shown` and is escaped by the serialiser, here alone.

Pages are trees of the standard library's elements, not strings: a value out of somebody's file cannot become
markup, wherever it is put.
"""

from __future__ import annotations

from typing import Final
from xml.etree.ElementTree import Element, tostring

from pipeline.logs import one_line

_LONGEST: Final = 1_000  # signs of any text

Child = Element | str | None


def element(tag: str, /, *children: Child, **attributes: str | float) -> Element:
    """An element with its children in order. `aria_label` becomes aria-label, `class_` class; None is left out."""
    made = Element(tag, {_attribute(name): _value(value) for name, value in attributes.items()})
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            made.append(child)
            last = child
        elif child is not None and last is None:
            made.text = (made.text or "") + shown(child)
        elif child is not None and last is not None:
            last.tail = (last.tail or "") + shown(child)
    return made


def verbatim(tag: str, text: str) -> Element:
    """A style or script: text of ours, which is not to be changed in any way."""
    made = Element(tag)
    made.text = text
    return made


def serialised(root: Element) -> str:
    """The tree as HTML."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def shown(text: str) -> str:
    """A text as people may see it: scrubbed of secrets, control and direction signs spelled out, not endless.

    White space at its ends is kept, since sentences are put together from pieces.
    """
    clipped = text[: 4 * _LONGEST]
    line = one_line(clipped)
    if len(line) > _LONGEST:
        line = line[: _LONGEST - 1] + "…"
    before = " " if clipped[:1] == " " else ""
    after = " " if clipped[-1:] == " " and line else ""
    return f"{before}{line}{after}"


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return shown(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
