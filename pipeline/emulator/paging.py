"""Body of a list response: items, counts and links in every style that a deployment may choose."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from pipeline.emulator.options import Quirks
from pipeline.emulator.search import Page


@dataclass(frozen=True, slots=True)
class RequestLocation:
    """Path and query of a list request, the origin of the service, and another origin for wrong links."""

    path_qs: str
    origin: str
    other: str

    def link(self, number: int, style: str) -> str | None:
        """Return the link to a page in a style of `Quirks.next_page_url`."""
        path, _, query = self.path_qs.partition("?")
        if style == "null":
            return None
        if style == "http-page-only":
            return f"http://{self.origin.partition('://')[2]}{path}?page={number}"
        pairs = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] not in {"page", "token"}]
        target = f"{path}?{urlencode([*pairs, ('page', str(number))])}"
        return {"relative": "", "other-host": self.other}.get(style, self.origin) + target


def render_list(page: Page, items: list[bytes], location: RequestLocation, quirks: Quirks) -> bytes:
    """Return the body of a list response with its rendered items."""
    data = b'{"data":[' + b",".join(items) + b"]"
    if quirks.paging == "bare":
        return data + b"}"
    keys = _build_keys(page, len(items), location, quirks)
    if quirks.paging == "none":
        keys = {name: keys[name] for name in keys if name == "next_page_url"}
    elif quirks.paging in {"meta", "pagination"}:
        keys = {quirks.paging: keys}
    elif quirks.paging == "links":
        keys["links"] = _build_links(page, location, quirks)
    return data + (b"," + msgspec.json.encode(keys)[1:] if keys else b"}")


def _build_keys(page: Page, item_count: int, location: RequestLocation, quirks: Quirks) -> dict[str, Any]:
    def link(number: int) -> str | None:
        return location.link(number, quirks.next_page_url) if 1 <= number <= page.last_page else None

    first = (page.number - 1) * page.limit + 1
    keys: dict[str, Any] = {
        "current_page": page.number,
        "last_page": page.last_page,
        "per_page": str(page.limit) if quirks.per_page == "string" else page.limit,
        "total": page.total,
        "from": first if item_count else None,
        "to": first + item_count - 1 if item_count else None,
        "path": location.origin + location.path_qs.partition("?")[0],
        "first_page_url": link(1),
        "last_page_url": link(page.last_page),
        "next_page_url": link(page.number + 1),
        "prev_page_url": link(min(page.number - 1, page.last_page)),
    }
    if quirks.next_page_url == "absent":
        del keys["next_page_url"]
    return keys


def _build_links(page: Page, location: RequestLocation, quirks: Quirks) -> list[dict[str, Any]]:
    """Return the array of numbered links that some frameworks add to a page."""

    def build_entry(label: str, number: int) -> dict[str, Any]:
        url = location.link(number, quirks.next_page_url) if 1 <= number <= page.last_page else None
        return {"url": url, "label": label, "active": label == str(page.number)}

    near = range(max(1, page.number - 3), min(page.last_page, page.number + 3) + 1)
    middle = [build_entry(str(number), number) for number in near]
    return [build_entry("&laquo; Previous", page.number - 1), *middle, build_entry("Next &raquo;", page.number + 1)]
