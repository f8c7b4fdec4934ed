"""Pagination hints in the answer to a list: totals, page numbers and links, in their usual spellings.

The interface does not define these names; the field notes list the usual ones. The client never follows a link: it
only learns whether there is a next page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from msgspec import Struct
from msgspec.structs import replace

_TOTAL: Final = ("total", "total_count")
_LAST: Final = ("last_page", "total_pages", "page_count", "pages")
_SIZE: Final = ("per_page", "page_size")
_PAGE: Final = ("current_page", "page")
_TO: Final = ("to",)
_NEXT: Final = ("next_page_url", "next")
_NESTED_KEYS: Final = ("meta", "pagination", "paging", "links")
_MAX_NESTING: Final = 2
_MAX_DIGITS: Final = 18
PAGINATION_KEYS: Final = (*_TOTAL, *_LAST, *_SIZE, *_PAGE, *_TO, *_NEXT, *_NESTED_KEYS)


class PageInfo(Struct, frozen=True):
    """The counts in an answer, None for those it lacks. `has_next` is None without any hint.

    `has_next_link` is by the link to the next page alone, for services whose counts are wrong. `contradicts_itself`:
    the counts are below what the page has, or they contradict each other.
    """

    total: int | None
    last_page: int | None
    per_page: int | None
    page: int | None
    has_next: bool | None
    has_next_link: bool | None
    contradicts_itself: bool

    def without_counts(self) -> Self:
        """Return the page without the counts of a service whose counts are wrong."""
        return replace(self, total=None, last_page=None, has_next=self.has_next_link)

    def without_end(self) -> Self:
        """Return the page without anything that shows an end of the list: counts, and a link that is null."""
        link = self.has_next_link or None
        return replace(self, total=None, last_page=None, has_next=link, has_next_link=link)


def parse_page_info(members: Mapping[str, Any], *, items: int, requested_page: int) -> PageInfo:
    """Return the counts beside `data`, or in an object beside `data`."""
    objects = list(_candidate_objects(members))
    total, last, size, page, to = (_number(objects, names) for names in (_TOTAL, _LAST, _SIZE, _PAGE, _TO))
    current = page or requested_page
    contradicts_itself = _contradict(total, last, items=items, is_first=requested_page == 1)
    if last is not None and last < current and items:
        last = None
    link = _has_next_link(objects)
    hints = [link]
    if last is not None:
        hints.append(current < last)
    if total is not None:
        hints.append(total > _items_up_to_page(items, current, size, to))
    known_hints = [hint for hint in hints if hint is not None]
    info = PageInfo(total, last, size, page, any(known_hints) if known_hints else None, link, contradicts_itself)
    return info.without_end() if contradicts_itself else info


def _contradict(total: int | None, last: int | None, *, items: int, is_first: bool) -> bool:
    """Return whether the counts of a page with items contradict it, or each other.

    Only a first page shows that of the number of pages: a service may ignore the number of a later one.
    """
    if not items:
        return False
    is_total_too_low = total is not None and total < items
    is_last_too_low = is_first and last is not None and last < 1
    differ = is_first and total is not None and last is not None and (total > items) != (last > 1)
    return is_total_too_low or is_last_too_low or differ


def _candidate_objects(members: Mapping[str, Any], depth: int = 0) -> list[Mapping[str, Any]]:
    objects = [members]
    for name in _NESTED_KEYS:
        nested = members.get(name)
        if isinstance(nested, Mapping) and depth < _MAX_NESTING:
            objects += _candidate_objects(nested, depth + 1)
    return objects


def _number(objects: list[Mapping[str, Any]], names: tuple[str, ...]) -> int | None:
    for members in objects:
        for name in names:
            value = members.get(name)
            if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
                value = int(value.strip()[:_MAX_DIGITS])
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
                return value
    return None


def _has_next_link(objects: list[Mapping[str, Any]]) -> bool | None:
    """Return whether there is a link to a next page, None if nothing names one. The link's text is not used."""
    has_link: bool | None = None
    for members in objects:
        for name in _NEXT:
            if name in members:
                has_link = has_link or _is_link(members[name])
        links = members.get("links")
        for link in links if isinstance(links, list) else ():
            if isinstance(link, Mapping) and "next" in str(link.get("label", "")).lower():
                has_link = has_link or _is_link(link.get("url"))
    return has_link


def _is_link(link: object) -> bool:
    return bool(link.strip()) if isinstance(link, str) else bool(link)


def _items_up_to_page(items: int, page: int, size: int | None, to: int | None) -> int:
    """Return how many of the total were listed up to and with this page."""
    if size is not None:
        return (max(page, 1) - 1) * size + items
    return to if to is not None and page > 1 else items
