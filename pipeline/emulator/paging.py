"""The envelope around a list page: counts and links in every style a deployment may choose."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from pipeline.emulator.options import Quirks
from pipeline.emulator.search import Page


@dataclass(frozen=True, slots=True)
class Place:
    """Where a list was asked for: path with query, the service's origin, and another for links that lead astray."""

    path_qs: str
    origin: str
    other: str

    def link(self, number: int, style: str) -> str | None:
        """Return the link to a page in the style of `Quirks.next_page_url`."""
        path, _, query = self.path_qs.partition("?")
        if style == "null":
            return None
        if style == "http-page-only":
            return f"http://{self.origin.partition('://')[2]}{path}?page={number}"
        pairs = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] not in {"page", "token"}]
        whole = f"{path}?{urlencode([*pairs, ('page', str(number))])}"
        return {"relative": "", "other-host": self.other}.get(style, self.origin) + whole


def envelope(page: Page, items: list[bytes], place: Place, quirks: Quirks) -> bytes:
    """Return the body of a list answer around its rendered items."""
    data = b'{"data":[' + b",".join(items) + b"]"
    if quirks.paging == "bare":
        return data + b"}"
    keys = _keys(page, len(items), place, quirks)
    if quirks.paging == "none":
        keys = {name: keys[name] for name in keys if name == "next_page_url"}
    elif quirks.paging in {"meta", "pagination"}:
        keys = {quirks.paging: keys}
    elif quirks.paging == "links":
        keys["links"] = _links(page, place, quirks)
    return data + (b"," + msgspec.json.encode(keys)[1:] if keys else b"}")


def _keys(page: Page, shown: int, place: Place, quirks: Quirks) -> dict[str, Any]:
    def link(number: int) -> str | None:
        return place.link(number, quirks.next_page_url) if 1 <= number <= page.last else None

    first = (page.number - 1) * page.limit + 1
    keys: dict[str, Any] = {
        "current_page": page.number,
        "last_page": page.last,
        "per_page": str(page.limit) if quirks.per_page == "string" else page.limit,
        "total": page.total,
        "from": first if shown else None,
        "to": first + shown - 1 if shown else None,
        "path": place.origin + place.path_qs.partition("?")[0],
        "first_page_url": link(1),
        "last_page_url": link(page.last),
        "next_page_url": link(page.number + 1),
        "prev_page_url": link(min(page.number - 1, page.last)),
    }
    if quirks.next_page_url == "absent":
        del keys["next_page_url"]
    return keys


def _links(page: Page, place: Place, quirks: Quirks) -> list[dict[str, Any]]:
    """Return the array of numbered links that some frameworks add."""

    def entry(label: str, number: int) -> dict[str, Any]:
        url = place.link(number, quirks.next_page_url) if 1 <= number <= page.last else None
        return {"url": url, "label": label, "active": label == str(page.number)}

    near = range(max(1, page.number - 3), min(page.last, page.number + 3) + 1)
    middle = [entry(str(number), number) for number in near]
    return [entry("&laquo; Previous", page.number - 1), *middle, entry("Next &raquo;", page.number + 1)]
