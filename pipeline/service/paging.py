"""What a list's answer says about further pages, in whichever of the spellings it says so.

The names of the page counts stand nowhere in the interface; the field notes name the usual ones. They are
hints: nothing here is followed or trusted further than "there is more".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_TOTAL: Final = ("total", "total_count")
_LAST: Final = ("last_page", "total_pages", "page_count", "pages")
_SIZE: Final = ("per_page", "page_size")
_PAGE: Final = ("current_page", "page")
_TO: Final = ("to",)
_NEXT: Final = ("next_page_url", "next")
_NESTS: Final = ("meta", "pagination", "paging", "links")
HINTS: Final = (*_TOTAL, *_LAST, *_SIZE, *_PAGE, *_TO, *_NEXT, *_NESTS)


@dataclass(frozen=True, slots=True)
class Paging:
    """The counts an answer carries, None where it does not say; `more` is None without any hint."""

    total: int | None
    last_page: int | None
    per_page: int | None
    page: int | None
    more: bool | None


def read_paging(envelope: Mapping[str, Any], *, items: int, asked: int) -> Paging:
    """The counts beside, or in an object beside, `data`. `asked` is the page that was asked for."""
    places = list(_places(envelope))
    total, last, size, page, to = (_number(places, names) for names in (_TOTAL, _LAST, _SIZE, _PAGE, _TO))
    at = page or asked
    hints = [_link(places)]
    if last is not None:
        hints.append(at < last)
    if total is not None:
        hints.append(total > _shown(items, at, size, to))
    said = [hint for hint in hints if hint is not None]
    return Paging(total, last, size, page, any(said) if said else None)


def _places(envelope: Mapping[str, Any], depth: int = 0) -> list[Mapping[str, Any]]:
    places = [envelope]
    for name in _NESTS:
        nested = envelope.get(name)
        if isinstance(nested, Mapping) and depth < 2:
            places += _places(nested, depth + 1)
    return places


def _number(places: list[Mapping[str, Any]], names: tuple[str, ...]) -> int | None:
    for place in places:
        for name in names:
            value = place.get(name)
            if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
                value = int(value.strip()[:18])
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
                return value
    return None


def _link(places: list[Mapping[str, Any]]) -> bool | None:
    """Whether a link to a next page is given; its text is never looked at."""
    told: bool | None = None
    for place in places:
        for name in _NEXT:
            if name in place:
                told = told or _points(place[name])
        links = place.get("links")
        for link in links if isinstance(links, list) else ():
            if isinstance(link, Mapping) and "next" in str(link.get("label", "")).lower():
                told = told or _points(link.get("url"))
    return told


def _points(link: object) -> bool:
    return bool(link.strip()) if isinstance(link, str) else bool(link)


def _shown(items: int, page: int, size: int | None, to: int | None) -> int:
    """How many of the total were shown up to and with this page."""
    if size is not None:
        return (max(page, 1) - 1) * size + items
    return to if to is not None and page > 1 else items
