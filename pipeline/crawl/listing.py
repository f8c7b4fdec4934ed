"""Reads one window: in one response, split into sub-windows that fit, or by pages until the list is consistent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.crawl.models import parse_reference
from pipeline.crawl.pages import (
    MAX_EMPTY_PAGES,
    FileKey,
    PageReader,
    empty_pages_error,
    get_ids,
    get_key,
    get_keys,
    get_timestamps,
)
from pipeline.crawl.windows import MIN_WINDOW_SECONDS, Window, split_by_time, split_by_timestamps
from pipeline.errors import ProtocolError
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipeline.client.client import Client
    from pipeline.client.protocol import ListItem, ListPage
    from pipeline.crawl.models import CrawlOptions
    from schemas.requests import FileQuery

_MAX_PASSES: Final = 5
_MAX_PAGES: Final = 4_000  # of one list: a million files, or a service that reports pages without end
_MAX_MOVED_FILES: Final = 5  # files by which a total and the pages may differ while files change
_MAX_SAMPLED_FILES: Final = 20_000  # a window with more is split by time first, so that memory stays bounded
_MAX_SPLITS: Final = 16
_MAX_SEARCH_PAGES: Final = 8
_MAX_SINGLE_LOOKUPS: Final = 10


class WindowResult(Struct, frozen=True):
    """Result of reading a window: its items, the sub-windows to read instead, and whether it is consistent.

    With `sub_windows` the items are used too, but the list of the window is not complete.
    """

    items: tuple[ListItem, ...]
    sub_windows: tuple[Window, ...] = ()
    is_consistent: bool = True


class PagedList(Struct, frozen=True):
    """All pages of a list, read one after the other.

    `is_consistent`: no file is in it twice, and the number of files equals the service's total.
    `single_response`: it is consistent and came in one response.
    """

    items: tuple[ListItem, ...]
    is_consistent: bool
    single_response: bool

    @property
    def keys(self) -> set[FileKey]:
        """The keys of the files."""
        return get_keys(self.items)


class WindowReader:
    """Reads windows, and splits those that are too large for one response."""

    def __init__(self, client: Client, options: CrawlOptions, now: Callable[[], int]) -> None:
        """Create a reader; `now` is the service's clock in seconds.

        Every method that reads pages raises `SharedFileIdError` if a page shows that two files share an id.
        """
        self._options = options
        self._now = now
        self._pages = PageReader(client, options)

    async def read(self, window: Window) -> WindowResult:
        """Read `window`, or return the sub-windows to split it into."""
        return await self._pages.retry_with_smaller_pages(lambda: self._read(window))

    async def _read(self, window: Window) -> WindowResult:
        if window.overflows:
            return await self._read_by_pages(window)
        query = self._pages.create_query(window)
        page = await self._pages.check_counts(await self._pages.fetch(query, 1, window), query, window)
        if await self._pages.is_complete(page, query, window):
            return WindowResult(page.items)
        if window.is_narrow or not page.items:
            return await self._read_by_pages(window)
        return WindowResult(page.items, tuple(await self._split(window, page)))

    async def find_item(self, file_id: int, reference: str | None, updated_at: int | None) -> ListItem | None:
        """Return the list item of one file, by its reference or by its timestamp in microseconds.

        None if neither list contains the file.
        """
        item = None
        if reference is not None:
            item = await self._pages.retry_with_smaller_pages(lambda: self._search(file_id, None, reference))
        if item is None and updated_at is not None:
            second = Window(updated_at // SECOND, updated_at // SECOND + 1)
            item = await self._pages.retry_with_smaller_pages(lambda: self._search(file_id, second, None))
        return item

    async def _search(self, file_id: int, window: Window | None, reference: str | None) -> ListItem | None:
        query = self._pages.create_query(window, reference=reference)
        same_id = None
        for number in range(1, _MAX_SEARCH_PAGES + 1):
            page = await self._pages.fetch(query, number, window)
            for item in page.items:
                if file_id in {item.instance_id, item.id}:
                    if item.instance_id in {file_id, None}:
                        return item
                    # If the instance is the key, this is another file whose id is the same number.
                    same_id = same_id or (None if self._options.identity == "file_id" else item)
            if page.has_next is False or not page.items:
                break
            if reference is not None and all(parse_reference(item.raw) != reference for item in page.items):
                break  # the service ignores the filter: this is the list of all files
        return same_id

    # Planning

    async def _split(self, window: Window, page: ListPage) -> list[Window]:
        limit = self._pages.get_page_limit()
        total = page.total or 0
        if page.items and all(item.updated_at is None for item in page.items):
            await self._pages.check_filter_is_honoured()
        elif total <= _MAX_SAMPLED_FILES:
            sub_windows = split_by_timestamps(window, await self._sample_timestamps(window, page), limit)
            if len(sub_windows) > 1 or sub_windows[0].overflows:
                return sub_windows
        pieces = min(max(2, total // limit), _MAX_SPLITS)
        return split_by_time(window, known=get_timestamps(page.items), now=self._now(), pieces=pieces)

    async def _sample_timestamps(self, window: Window, page: ListPage) -> Sequence[int]:
        """Return the sorted timestamps of a window in seconds. Read by pages, so good for planning only.

        Empty for a list without an end. `page` is the first page with includes.
        """
        try:
            pages = await self._read_all_pages(self._pages.create_query(window, cheap=True), window)
        except ProtocolError:
            return ()
        if page.total is not None and len(pages.items) + max(_MAX_MOVED_FILES, page.total // 10) < page.total:
            self._pages.distrust_counts(page)
        return sorted(get_timestamps(pages.items))

    # Many pages

    async def _read_by_pages(self, window: Window) -> WindowResult:
        """Read a window that cannot be split until two passes agree, or one response confirms all its files.

        A long window whose files change is split after all: its overflow is at its end.
        """
        query, cheap_query = self._pages.create_query(window), self._pages.create_query(window, cheap=True)
        items: dict[FileKey, ListItem] = {}
        items_without_id: tuple[ListItem, ...] = ()
        previous_keys: set[FileKey] | None = None
        for _ in range(_MAX_PASSES):
            pages = await self._read_all_pages(query, window)
            items.update({get_key(item): item for item in pages.items if item.id is not None})
            items_without_id = tuple(item for item in pages.items if item.id is None) or items_without_id
            if pages.is_consistent and pages.keys == previous_keys:
                return WindowResult((*items.values(), *items_without_id))
            # Without includes five times as many files fit in one response, and one response is consistent.
            snapshot = await self._read_all_pages(cheap_query, window)
            agree = pages.is_consistent and snapshot.is_consistent and pages.keys == snapshot.keys
            if agree or (snapshot.single_response and await self._fetch_missing(items, snapshot)):
                return WindowResult((*items.values(), *items_without_id))
            if not window.is_narrow and window.end is not None:
                middle = window.end - MIN_WINDOW_SECONDS
                sub_windows = (Window(window.start, middle), Window(middle, window.end, overflows=True))
                return WindowResult((*items.values(), *items_without_id), sub_windows)
            previous_keys = pages.keys if pages.is_consistent else None
        await self._fetch_missing(items, snapshot)
        return WindowResult((*items.values(), *items_without_id), is_consistent=False)

    async def _fetch_missing(self, items: dict[FileKey, ListItem], snapshot: PagedList) -> bool:
        """Look up the few files of `snapshot` that `items` lacks. Return whether all are there, in that version."""
        listed = (item for item in snapshot.items if item.id is not None)
        missing = {get_key(item): item for item in listed if not _has_version(items, item)}
        if len(missing) > _MAX_SINGLE_LOOKUPS:
            return False
        for key, item in missing.items():
            file_id = item.instance_id or item.id or 0
            latest = await self.find_item(file_id, parse_reference(item.raw), None)
            if latest is not None:
                items[key] = latest
        return all(_has_version(items, item) for item in missing.values())

    async def _read_all_pages(self, query: FileQuery, window: Window) -> PagedList:
        items: list[ListItem] = []
        page_hashes = set[int]()
        number = empty_pages = 0
        while True:
            number += 1
            page = await self._pages.fetch(query, number, window)
            items += page.items
            empty_pages = 0 if page.items else empty_pages + 1
            if page.has_next is False or (page.has_next is None and not page.items):
                break
            _check_pagination_ends(page, number, empty_pages, page_hashes)
        keys = [get_key(item) for item in items if item.id is not None]
        is_consistent = page.total in {None, len(items)} and len(set(keys)) == len(keys)
        single_response = is_consistent and number - bool(empty_pages) <= 1
        return PagedList(tuple(items), is_consistent, single_response)


def _check_pagination_ends(page: ListPage, number: int, empty_pages: int, page_hashes: set[int]) -> None:
    """Raise if a list has pages without end. `page_hashes` are those of the pages so far."""
    if empty_pages == MAX_EMPTY_PAGES:
        raise empty_pages_error(empty_pages)
    if number >= _MAX_PAGES:
        raise ProtocolError(f"GET /files: page {number} of one list announces a next page.")
    page_hash = hash(get_ids(page.items))
    # A list with a total ends by itself, and in an unordered one a short page may be repeated.
    has_total_left = page.total is not None and number * len(page.items) < page.total and number < 3 * len(page_hashes)
    if page.items and page_hash in page_hashes and not has_total_left:
        raise ProtocolError(f"GET /files: page {number} repeats an earlier page; the list has no end.")
    page_hashes.add(page_hash)


def _has_version(items: dict[FileKey, ListItem], item: ListItem) -> bool:
    listed = items.get(get_key(item))
    return listed is not None and listed.updated_at == item.updated_at
