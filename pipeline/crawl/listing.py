"""Reading one window: whole in one response, or cut into windows that are, or paged until it is proven."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.crawl.windows import Window, cut, halve
from pipeline.errors import ContractBroken
from schemas.instants import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from pipeline.crawl.terms import Terms
    from pipeline.service.client import Client
    from pipeline.service.protocol import ListItem, ListPage
    from schemas.requests import FileQuery

_PASSES: Final = 5
_SIDE_BY_SIDE: Final = 8
_EMPTY_PAGES: Final = 3
_Key = tuple[int | None, int | None]
_MOST_PIECES: Final = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of a window: its items, the windows that must be read in its stead, and whether it is proven.

    With `rest` the items are only the first page's: taken all the same, proving nothing.
    """

    items: tuple[ListItem, ...]
    rest: tuple[Window, ...] = ()
    proven: bool = True


class Listing:
    """Reads windows on given terms. Learns how large a page the service really gives."""

    def __init__(
        self, client: Client, terms: Terms, now: Callable[[], int], notice: Callable[[ListItem], None]
    ) -> None:
        """`now` gives the service's clock in seconds; `notice` sees every item met, in passing ones too."""
        self._client = client
        self._terms = terms
        self._now = now
        self._notice = notice
        self._page_caps: dict[bool, int] = {}
        self._filter_is_proven = False

    async def read(self, window: Window) -> Reading:
        """Read `window`, or say into which windows it must be cut."""
        query = self._terms.query(window)
        if window.crowded:
            return await self._read_paged(query, window)
        page = await self._page(query, 1, window)
        if await self._is_whole(page, query, window):
            return Reading(page.items)
        if window.is_narrow:
            return await self._read_paged(query, window)
        return Reading(page.items, tuple(await self._cut(window, page)))

    async def find(self, file_id: int, reference: str) -> ListItem | None:
        """The list item of one file by its reference, or None when the list has it no more."""
        items, _, _ = await self._all_pages(self._terms.query(reference=reference), None)
        named = [item for item in items if file_id in {item.instance, item.id}]
        return next((item for item in named if item.instance == file_id), named[0] if named else None)

    async def _cut(self, window: Window, page: ListPage) -> list[Window]:
        stamps = await self._sketch(window)
        if stamps:
            tiles = cut(window, stamps, self._limit(cheap=False))
            if len(tiles) > 1 or tiles[0].crowded:
                return tiles
        else:
            await self._prove_filter()
        seen = [item.updated // SECOND for item in page.items if item.updated is not None]
        pieces = min(max(2, (page.total or 0) // self._limit(cheap=False)), _MOST_PIECES)
        return halve(window, seen=seen, now=self._now(), pieces=pieces)

    async def _sketch(self, window: Window) -> list[int]:
        """The stamps in a window, in seconds, sorted: read by page number, so good for planning alone."""
        query = self._terms.query(window, cheap=True)
        page = await self._page(query, 1, window)
        stamps = _stamps(page.items)
        if page.total is not None and page.items:
            last = -(-page.total // len(page.items))
            for first in range(2, last + 1, _SIDE_BY_SIDE):
                numbers = range(first, min(first + _SIDE_BY_SIDE, last + 1))
                pages = await _gather(self._page(query, number, window) for number in numbers)
                stamps.extend(stamp for each in pages for stamp in _stamps(each.items))
        else:
            number = 1
            while page.items and page.more is not False:
                number += 1
                before, page = page, await self._page(query, number, window)
                if _ids(before.items) == _ids(page.items):
                    break  # the service ignores `page`; what is known must do
                stamps.extend(_stamps(page.items))
        stamps.sort()
        return stamps

    async def _read_paged(self, query: FileQuery, window: Window) -> Reading:
        """Page a window that cannot be cut until two passes agree: same ids, no repeats, count = total."""
        cheap = self._terms.query(window, cheap=True)
        found: dict[_Key, ListItem] = {}
        nameless: list[ListItem] = []
        before: set[_Key] | None = None
        for _ in range(_PASSES):
            items, repeats, total = await self._all_pages(query, window)
            keys = _keys(items)
            found.update({(item.id, item.instance): item for item in items if item.id is not None})
            nameless = [item for item in items if item.id is None] or nameless
            sound = not repeats and total in {None, len(items)}
            if before is None or before != keys:
                # Without includes five times as many fit in one response: a picture that is consistent.
                others, other_repeats, _ = await self._all_pages(cheap, window)
                before = _keys(others)
                sound = sound and not other_repeats
            if sound and before == keys:
                return Reading((*found.values(), *nameless))
            before = keys
        return Reading((*found.values(), *nameless), proven=False)

    async def _all_pages(self, query: FileQuery, window: Window | None) -> tuple[list[ListItem], bool, int | None]:
        """Every page of a query: its items, whether any repeated, and the total that the last page named."""
        items: list[ListItem] = []
        seen: set[tuple[int | None, ...]] = set()
        number = empty = 0
        while True:
            number += 1
            page = await self._page(query, number, window)
            items += page.items
            if page.items and _ids(page.items) in seen:
                raise ContractBroken(f"GET /files: page {number} repeats an earlier page; the list has no end")
            seen.add(_ids(page.items))
            empty = 0 if page.items else empty + 1
            if page.more is False or (page.more is None and not page.items):
                break
            if empty == _EMPTY_PAGES:
                raise ContractBroken(f"GET /files: {empty} empty pages in a row, each promising more")
        named = [(item.id, item.instance) for item in items if item.id is not None]
        return items, len(set(named)) < len(named), page.total

    async def _page(self, query: FileQuery, number: int, window: Window | None) -> ListPage:
        page = await self._client.list(query, page=number)
        for item in page.items:
            self._notice(item)
        if window is not None:
            _check_bounds(window, page.items)
        if page.more and page.items:
            self._page_caps[not query.include] = len(page.items)
        return page

    def _limit(self, *, cheap: bool) -> int:
        asked = self._terms.query(cheap=cheap).page_size
        return min(asked, self._page_caps.get(cheap or not self._terms.includes, asked))

    async def _is_whole(self, page: ListPage, query: FileQuery, window: Window) -> bool:
        if page.total is not None and page.total > len(page.items):
            return False
        if page.more is not None:
            return not page.more
        return await self._is_whole_without_hints(page, query, window)

    async def _is_whole_without_hints(self, page: ListPage, query: FileQuery, window: Window) -> bool:
        """The service names neither a count nor a next page: only a further page tells, until a cap is known."""
        cheap = not query.include
        if len(page.items) >= self._page_caps.get(cheap, query.page_size):
            return False
        if not page.items or cheap in self._page_caps:
            return True
        following = await self._page(query, 2, window)
        if following.items:
            self._page_caps[cheap] = len(page.items)
            return False
        # Between the two calls a file may have moved up into the first page.
        again = await self._page(query, 1, window)
        return _ids(again.items) == _ids(page.items)

    async def _prove_filter(self) -> None:
        """Without stamps nothing shows that windows are honoured, so ask once for one that must be empty."""
        if self._filter_is_proven:
            return
        ancient = self._terms.query(Window(_YEAR_ONE, _YEAR_ONE + 86_400), cheap=True)
        page = await self._client.list(ancient)
        if page.items:
            raise _filter_ignored()
        self._filter_is_proven = True


_YEAR_ONE: Final = -62_135_510_400


def _check_bounds(window: Window, items: Iterable[ListItem]) -> None:
    stamped = [item.updated // SECOND for item in items if item.updated is not None]
    outside = sum(not window.holds(stamp) for stamp in stamped)
    # One or two may be stamped anew while the answer is made; a service that filters has no more.
    if outside > max(2, len(stamped) // 2):
        raise _filter_ignored()


def _filter_ignored() -> ContractBroken:
    return ContractBroken(
        "GET /files answers with files outside updated_start and updated_end",
        remedy="Without these filters no sync can be complete; check that base_url is the file service.",
    )


def _keys(items: Iterable[ListItem]) -> set[_Key]:
    return {(item.id, item.instance) for item in items if item.id is not None}


def _ids(items: Iterable[ListItem]) -> tuple[int | None, ...]:
    return tuple(number for item in items for number in (item.id, item.instance))


def _stamps(items: Iterable[ListItem]) -> list[int]:
    return [item.updated // SECOND for item in items if item.updated is not None]


async def _gather(calls: Iterable[Coroutine[None, None, ListPage]]) -> list[ListPage]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call) for call in calls]
    return [task.result() for task in tasks]
