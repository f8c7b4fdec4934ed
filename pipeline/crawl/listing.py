"""Reading one window: whole in one response, or cut into windows that are, or paged until it is proven."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from pipeline.crawl.terms import SharedId, reference_of
from pipeline.crawl.windows import FIRST, LAST, NARROW, Window, cut, halve
from pipeline.errors import ContractBroken
from schemas.instants import DAY, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from pipeline.crawl.terms import Terms
    from pipeline.service.client import Client
    from pipeline.service.protocol import ListItem, ListPage
    from schemas.requests import FileQuery

_PASSES: Final = 5
_SIDE_BY_SIDE: Final = 32
_EMPTY_PAGES: Final = 3
_MOST_PAGES: Final = 4_000  # of one list: a million files, or a service that does not come to an end
_MOST_SKETCHED: Final = 50_000  # files; a window with more is cut by time first, so that memory stays flat
_MOST_PIECES: Final = 16
_FIND_PAGES: Final = 8
_SINGLY: Final = 10
_Key = tuple[int | None, int | None]
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of a window: its items, the windows that must be read in its stead, and whether it is proven.

    With `rest` the items are taken all the same, and prove nothing.
    """

    items: tuple[ListItem, ...]
    rest: tuple[Window, ...] = ()
    proven: bool = True


@dataclass(frozen=True, slots=True)
class Walk:
    """All pages of a list, one after the other.

    `sound`: nothing came twice, and as many came as were counted; `whole`: all came in one response.
    """

    items: tuple[ListItem, ...]
    sound: bool
    whole: bool

    @property
    def keys(self) -> set[_Key]:
        """What tells the files apart."""
        return _keys(self.items)


class Listing:
    """Reads windows on given terms. Learns how large a page the service really gives."""

    def __init__(self, client: Client, terms: Terms, now: Callable[[], int]) -> None:
        """`now` gives the service's clock in seconds. Every reading raises `SharedId` where a page shows it."""
        self._client = client
        self._terms = terms
        self._now = now
        self._page_caps: dict[bool, int] = {}
        self._counts = False  # the service has counted files, or pages
        self._tells_of_more = False  # it has said that there is more
        self._filter_is_proven = False
        self._sketching = asyncio.Semaphore(_SIDE_BY_SIDE)  # for all sketches together

    async def read(self, window: Window) -> Reading:
        """Read `window`, or say into which windows it must be cut."""
        if window.crowded:
            return await self._read_paged(window)
        query = self._terms.query(window)
        page = await self._page(query, 1, window)
        if await self._is_whole(page, query, window):
            return Reading(page.items)
        if window.is_narrow:
            return await self._read_paged(window)
        return Reading(page.items, tuple(await self._cut(window, page)))

    async def find(self, file_id: int, reference: str | None, updated: int | None) -> ListItem | None:
        """The list item of one file, by its reference or in the second of its stamp (in microseconds).

        None when the list does not show it in either place.
        """
        found = None
        if reference is not None:
            found = await self._search(file_id, self._terms.query(reference=reference), None, reference)
        if found is None and updated is not None:
            second = Window(updated // SECOND, updated // SECOND + 1)
            found = await self._search(file_id, self._terms.query(second), second, None)
        return found

    async def _search(
        self, file_id: int, query: FileQuery, window: Window | None, reference: str | None
    ) -> ListItem | None:
        shared = None
        for number in range(1, _FIND_PAGES + 1):
            page = await self._page(query, number, window)
            for item in page.items:
                if file_id in {item.instance, item.id}:
                    if item.instance in {file_id, None}:
                        return item
                    # Where the instance is the key, this is another file whose id is the same number.
                    shared = shared or (None if self._terms.identity == "file_id" else item)
            if page.more is False or not page.items:
                break
            if reference is not None and all(reference_of(item.raw) != reference for item in page.items):
                break  # the filter is not heeded: this is the whole list
        return shared

    # Planning

    async def _cut(self, window: Window, page: ListPage) -> list[Window]:
        limit = self._limit(cheap=False)
        total = page.total or 0
        if page.items and all(item.updated is None for item in page.items):
            await self._prove_filter()
        elif total <= _MOST_SKETCHED:
            tiles = cut(window, await self._sketch(window), limit)
            if len(tiles) > 1 or tiles[0].crowded:
                return tiles
        pieces = min(max(2, total // limit), _MOST_PIECES)
        return halve(window, seen=_stamps(page.items), now=self._now(), pieces=pieces)

    async def _sketch(self, window: Window) -> Sequence[int]:
        """The stamps in a window, in seconds, sorted: read by page number, so good for planning alone."""
        query = self._terms.query(window, cheap=True)
        page = await self._page(query, 1, window)
        stamps = array("q", _stamps(page.items))
        instances: dict[int, int] = {}
        self._check_instances(page.items, instances)
        if page.total is not None and page.items:
            last = min(-(-page.total // len(page.items)), _MOST_PAGES)
            for first in range(2, last + 1, _SIDE_BY_SIDE):
                numbers = range(first, min(first + _SIDE_BY_SIDE, last + 1))
                found = await _gather(self._stamps_of(query, number, window, instances) for number in numbers)
                for each in found:
                    stamps.extend(each or ())
                if all(each is None for each in found):
                    break  # fewer than were counted
        else:
            seen = set[int]()
            number = 1
            while page.items and page.more is not False and len(stamps) < _MOST_SKETCHED:
                seen.add(hash(_ids(page.items)))
                number += 1
                page = await self._page(query, number, window)
                if hash(_ids(page.items)) in seen:
                    break  # the service goes round in circles; what is known must do
                stamps.extend(_stamps(page.items))
                self._check_instances(page.items, instances)
        return array("q", sorted(stamps))

    async def _stamps_of(
        self, query: FileQuery, number: int, window: Window, instances: dict[int, int]
    ) -> array[int] | None:
        """The stamps on one page, which itself is let go of; None where it is empty."""
        async with self._sketching:
            page = await self._page(query, number, window)
        self._check_instances(page.items, instances)
        return array("q", _stamps(page.items)) if page.items else None

    def _limit(self, *, cheap: bool) -> int:
        asked = self._terms.query(cheap=cheap).page_size
        limit = min(asked, self._page_caps.get(cheap or not self._terms.includes, asked))
        # Where nothing is counted a full page does not show whether it is all: leave one place free.
        return limit if self._counts else max(1, limit - 1)

    # One page

    async def _page(self, query: FileQuery, number: int, window: Window | None) -> ListPage:
        page = await self._client.list(query, page=number)
        self._check_instances(page.items, {})
        if window is not None:
            _check_bounds(window, page.items)
        counted = page.total is not None or page.last_page is not None
        self._counts |= counted
        self._tells_of_more |= bool(page.more)
        if page.items and (page.more or len(page.items) >= query.page_size):
            self._page_caps[not query.include] = len(page.items)
        if page.more is False and not counted and not self._tells_of_more:
            return replace(page, more=None)  # a link that is always null says as little as none
        return page

    def _check_instances(self, items: Iterable[ListItem], seen: dict[int, int]) -> None:
        if self._terms.identity == "file_id":
            return
        for item in items:
            if item.id is None or item.instance is None:
                continue
            if seen.setdefault(item.id, item.instance) != item.instance:
                raise SharedId

    async def _is_whole(self, page: ListPage, query: FileQuery, window: Window) -> bool:
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
        return len(again.items) == len(page.items) and _keys(again.items) == _keys(page.items)

    async def _prove_filter(self) -> None:
        """Without stamps nothing shows that windows are honoured, so ask for two that must be empty."""
        if self._filter_is_proven:
            return
        for window in (Window(FIRST, FIRST + _DAY), Window(LAST - _DAY, LAST)):
            page = await self._client.list(self._terms.query(window, cheap=True))
            if page.items:
                raise _filter_ignored()
        self._filter_is_proven = True

    # Many pages

    async def _read_paged(self, window: Window) -> Reading:
        """Page a window that cannot be cut, until two passes agree, or all that one whole response names is here.

        One that is long, and in which files move, is cut after all: its crowd lies at its end.
        """
        query, cheap = self._terms.query(window), self._terms.query(window, cheap=True)
        found: dict[_Key, ListItem] = {}
        nameless: tuple[ListItem, ...] = ()
        before: set[_Key] | None = None
        for _ in range(_PASSES):
            walk = await self._walk(query, window)
            found.update({_key(item): item for item in walk.items if item.id is not None})
            nameless = tuple(item for item in walk.items if item.id is None) or nameless
            if walk.sound and walk.keys == before:
                return Reading((*found.values(), *nameless))
            # Without includes five times as many fit in one response, and that is a consistent picture.
            picture = await self._walk(cheap, window)
            agreed = walk.sound and picture.sound and walk.keys == picture.keys
            if agreed or (picture.whole and await self._has_all(found, picture)):
                return Reading((*found.values(), *nameless))
            if not window.is_narrow and window.end is not None:
                middle = window.end - NARROW
                rest = (Window(window.start, middle), Window(middle, window.end, crowded=True))
                return Reading((*found.values(), *nameless), rest)
            before = walk.keys if walk.sound else None
        await self._has_all(found, picture)
        return Reading((*found.values(), *nameless), proven=False)

    async def _has_all(self, found: dict[_Key, ListItem], picture: Walk) -> bool:
        """Whether all that `picture` names was found, in its version; a few that were not are looked up singly."""
        missing = {_key(item): item for item in picture.items if item.id is not None and not _is_in(found, item)}
        if len(missing) > _SINGLY:
            return False
        for key, item in missing.items():
            file_id = item.instance or item.id or 0
            again = await self.find(file_id, reference_of(item.raw), None)
            if again is not None:
                found[key] = again
        return all(_is_in(found, item) for item in missing.values())

    async def _walk(self, query: FileQuery, window: Window) -> Walk:
        items: list[ListItem] = []
        seen = set[int]()
        number = empty = 0
        while True:
            number += 1
            page = await self._page(query, number, window)
            items += page.items
            empty = 0 if page.items else empty + 1
            if page.more is False or (page.more is None and not page.items):
                break
            _check_end(page, number, empty, seen)
        named = [_key(item) for item in items if item.id is not None]
        sound = page.total in {None, len(items)} and len(set(named)) == len(named)
        return Walk(tuple(items), sound=sound, whole=sound and number - bool(empty) <= 1)


_DAY: Final = DAY // SECOND


def _check_end(page: ListPage, number: int, empty: int, seen: set[int]) -> None:
    """Raise when a list goes on that should have come to its end. `seen` are the pages so far."""
    if empty == _EMPTY_PAGES:
        raise ContractBroken(f"GET /files: {empty} empty pages in a row, each promising more")
    if number >= _MOST_PAGES:
        raise ContractBroken(f"GET /files: page {number} of one list still promises more")
    print_of_it = hash(_ids(page.items))
    # A list that is counted ends by itself, and in a shuffled one a short page may come again.
    counted = page.total is not None and number * len(page.items) < page.total and number < 3 * len(seen)
    if page.items and print_of_it in seen and not counted:
        raise ContractBroken(f"GET /files: page {number} repeats an earlier page; the list has no end")
    seen.add(print_of_it)


def _check_bounds(window: Window, items: Iterable[ListItem]) -> None:
    stamps = _stamps(items)
    outside = sum(not window.holds(stamp) for stamp in stamps)
    # One or two may be stamped anew while the answer is made; a service that filters has no more.
    if outside > max(2, len(stamps) // 2):
        raise _filter_ignored()


def _filter_ignored() -> ContractBroken:
    return ContractBroken(
        "GET /files answers with files outside updated_start and updated_end",
        remedy="Without these filters no sync can be complete; check that base_url is the file service.",
    )


def _key(item: ListItem) -> _Key:
    return item.id, item.instance


def _keys(items: Iterable[ListItem]) -> set[_Key]:
    return {_key(item) for item in items if item.id is not None}


def _is_in(found: dict[_Key, ListItem], item: ListItem) -> bool:
    held = found.get(_key(item))
    return held is not None and held.updated == item.updated


def _ids(items: Iterable[ListItem]) -> tuple[int | None, ...]:
    return tuple(number for item in items for number in (item.id, item.instance))


def _stamps(items: Iterable[ListItem]) -> list[int]:
    return [item.updated // SECOND for item in items if item.updated is not None]


async def _gather(calls: Iterable[Coroutine[None, None, _Result]]) -> list[_Result]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call) for call in calls]
    return [task.result() for task in tasks]
