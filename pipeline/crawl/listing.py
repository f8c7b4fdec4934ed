"""Reads lists: single pages, and windows in one response, in sub-windows that fit, or by pages until two reads agree.

Single pages show how large the service's pages are, and which of its counts are right.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pipeline.client.errors import RetriesExhaustedError
from pipeline.crawl.models import SharedFileIdError, parse_reference
from pipeline.crawl.windows import (
    MAX_SECOND,
    MIN_SECOND,
    MIN_WINDOW_SECONDS,
    Window,
    split_by_time,
    split_by_timestamps,
)
from pipeline.errors import ProtocolError
from pipeline.output.logs import log
from schemas.timestamps import DAY, SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from pipeline.client.client import Client
    from pipeline.client.protocol import ListItem, ListPage
    from pipeline.crawl.models import CrawlOptions
    from schemas.file_query import FileQuery

_MAX_EMPTY_PAGES: Final = 3
_DAY_SECONDS: Final = DAY // SECOND
FileKey = tuple[int | None, int | None]
"""Id and instance id of a list item."""
_PageKind = tuple[bool, int]  # whether a query has includes, and its page size
_Result = TypeVar("_Result")
_MAX_PASSES: Final = 5
_MAX_PAGES: Final = 4_000  # of one list: a million files, or a service that reports pages without end
_MAX_MOVED_FILES: Final = 5  # files by which a total and the pages may differ while files change
_MAX_SAMPLED_FILES: Final = 20_000  # a window with more is split by time first, so that memory stays bounded
_MAX_SPLITS: Final = 16
_MAX_SEARCH_PAGES: Final = 8
_MAX_SINGLE_LOOKUPS: Final = 10


class EndlessListError(ProtocolError):
    """The pages of a list repeat, or do not end: a sample of them is still good."""


class PageReader:
    """Reads single pages, and learns the real page size of the service.

    If a page is larger than the client accepts, it asks for pages of half as many files, until they fit.
    """

    def __init__(self, client: Client, options: CrawlOptions) -> None:
        """Create a reader. `fetch` raises `SharedFileIdError` if a page shows that two files share an id."""
        self._client = client
        self._options = options
        self._page_divisor = 1  # by which pages are smaller than the service allows
        self._page_caps: dict[_PageKind, int] = {}  # the service's largest page
        self._proven_sizes: dict[_PageKind, int] = {}  # smallest page that a page with files followed
        self._counts_are_wrong = False  # it has announced files that it does not have
        self.shows_times = False  # a list item has had an update time
        self._is_filter_checked = False

    def get_page_limit(self) -> int:
        """Return how many files fit in one response with includes that is seen to be complete."""
        query = self.create_query()
        # A full page does not show whether it is the last one, whatever its counts are: leave one place free.
        return max(1, self._full_size(query) - 1)

    def _full_size(self, query: FileQuery) -> int:
        return min(query.page_size, self._page_caps.get(_page_kind(query), query.page_size))

    def create_query(
        self, window: Window | None = None, *, cheap: bool = False, reference: str | None = None
    ) -> FileQuery:
        """Return the query of a window or of a reference, with pages that fit; `cheap` means without includes."""
        query = self._options.query(window, cheap=cheap, reference=reference)
        if self._page_divisor == 1:
            return query
        return replace(query, limit=max(1, query.page_size // self._page_divisor))

    async def retry_with_smaller_pages(self, read: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return what `read` returns. As long as a page is too large, halve the pages and read again."""
        while True:
            divisor = self._page_divisor
            try:
                return await read()
            except RetriesExhaustedError as error:
                if error.kind != "size":
                    raise
                if self.create_query().page_size == 1:
                    error.hint = "One file alone is too large: set `includes` to fewer parts of a file."
                    raise
            if divisor == self._page_divisor:  # no other window has halved them since
                self._page_divisor *= 2
                files = self.create_query().page_size
                log.warning("pages.halved", files=files, hint="A page of the list is too large.")

    async def fetch(self, query: FileQuery, number: int, window: Window | None) -> ListPage:
        """Fetch one page. Its `has_next` is None if the service does not show whether there is a next one."""
        page = await self._client.list_files(query, page=number)
        self.check_instances(page.items, {})
        self.shows_times = self.shows_times or any(item.updated_at is not None for item in page.items)
        if window is not None:
            _check_bounds(window, page.items)
        if self._counts_are_wrong:
            page = page.without_counts()
        if page.items and (page.has_next or len(page.items) >= query.page_size):
            self._page_caps[_page_kind(query)] = len(page.items)
        client = self._client
        shows_end = client.has_linked_next if self._counts_are_wrong else client.has_announced_next
        is_full = not client.has_linked_next and len(page.items) >= self._full_size(query)
        if page.has_next is False and (is_full or not shows_end):
            # A link that is always null means as little as no link. A total may count the page alone, or too few files.
            return replace(page, has_next=None)
        return page

    async def count(self, window: Window | None = None) -> int | None:
        """Return how many files a list has by the service's counts; None without usable ones."""
        query = replace(self.create_query(window, cheap=True), limit=1)
        return (await self.fetch(query, 1, window)).total

    async def check_counts(self, page: ListPage, query: FileQuery, window: Window) -> ListPage:
        """Return the first page of a window, without its counts if they announce files that no page has.

        A page shorter than those of this service announces more only by mistake: the next pages show whose.
        """
        kind = _page_kind(query)
        if not page.has_next or len(page.items) >= self._proven_sizes.get(kind, query.page_size):
            return page
        following = page
        for number in range(2, 2 + _MAX_EMPTY_PAGES):
            following = await self.fetch(query, number, window)
            if following.items:
                self._proven_sizes[kind] = max(1, len(page.items))
                return page
            if not following.has_next:
                break
        if following.has_next_link:
            raise _empty_pages_error(_MAX_EMPTY_PAGES)
        self._page_caps.pop(kind, None)  # the count of this page alone had set it
        return self.distrust_counts(page)

    def distrust_counts(self, page: ListPage) -> ListPage:
        """Ignore the service's counts from now on. Return the page without them."""
        if not self._counts_are_wrong:
            log.warning("counts.wrong", total=page.total, hint="The list announces files that it does not have.")
        self._counts_are_wrong = True
        return page.without_counts()

    def check_instances(self, items: Iterable[ListItem], instances: dict[int, int]) -> None:
        """Raise `SharedFileIdError` if two instances share an id. `instances` are those seen so far, by id."""
        if self._options.identity == "file_id":
            return
        for item in items:
            if item.id is None or item.instance_id is None:
                continue
            if instances.setdefault(item.id, item.instance_id) != item.instance_id:
                raise SharedFileIdError

    async def is_complete(self, page: ListPage, query: FileQuery, window: Window) -> bool:
        """Return whether `page` is the whole list. Until the page size is known, a further page may have to show it."""
        if page.has_next is not None:
            return not page.has_next
        if len(page.items) > self.get_page_limit():
            return False
        kind = _page_kind(query)
        if not page.items or len(page.items) < self._page_caps.get(kind, 0):
            return True
        following = await self.fetch(query, 2, window)
        if page.total == len(page.items) and get_ids(following.items) == get_ids(page.items):
            return True  # the service ignores the page number, and its total is what this page has
        if following.items:
            self._page_caps[kind] = len(page.items)
            return False
        # Between the two calls a file may have moved up to the first page.
        again = await self.fetch(query, 1, window)
        return len(again.items) == len(page.items) and get_keys(again.items) == get_keys(page.items)

    async def check_filter_is_honoured(self) -> None:
        """Request two windows that must be empty: without timestamps only that shows that the filter works."""
        if self._is_filter_checked:
            return
        for window in (Window(MIN_SECOND, MIN_SECOND + _DAY_SECONDS), Window(MAX_SECOND - _DAY_SECONDS, MAX_SECOND)):
            page = await self._client.list_files(self.create_query(window, cheap=True))
            if page.items:
                raise _filter_ignored_error()
        self._is_filter_checked = True


def _empty_pages_error(count: int) -> EndlessListError:
    """Return the error for a list that has no end."""
    return EndlessListError(f"GET /files: {count} empty pages in a row announce a next page.")


def get_key(item: ListItem) -> FileKey:
    """Return the key of a list item."""
    return item.id, item.instance_id


def get_keys(items: Iterable[ListItem]) -> set[FileKey]:
    """Return the keys of the items that have an id."""
    return {get_key(item) for item in items if item.id is not None}


def select_newest(items: Iterable[ListItem]) -> list[ListItem]:
    """Return the items without those that name a file again, but for the newest of each file."""
    newest: dict[object, ListItem] = {}
    for item in items:
        key = get_key(item) if item.id is not None else item.raw
        if key not in newest or (newest[key].updated_at or 0) < (item.updated_at or 0):
            newest[key] = item
    return list(newest.values())


def get_ids(items: Iterable[ListItem]) -> tuple[int | None, ...]:
    """Return the ids and instance ids, by which repeated pages are found."""
    return tuple(number for item in items for number in (item.id, item.instance_id))


def get_timestamps(items: Iterable[ListItem]) -> list[int]:
    """Return the update times in seconds, of the items that have one."""
    return [item.updated_at // SECOND for item in items if item.updated_at is not None]


def _check_bounds(window: Window, items: Iterable[ListItem]) -> None:
    timestamps = get_timestamps(items)
    outside = sum(not window.may_contain(timestamp) for timestamp in timestamps)
    # One or two files may be updated while the answer is created; a service that filters has no more.
    if outside > max(2, len(timestamps) // 2):
        raise _filter_ignored_error()


def _filter_ignored_error() -> ProtocolError:
    return ProtocolError(
        "GET /files returns files outside updated_start and updated_end.",
        hint="Check that base_url is the file service; without these filters no sync can be complete.",
    )


def _page_kind(query: FileQuery) -> _PageKind:
    return bool(query.include), query.page_size


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
        self.pages = PageReader(client, options)

    async def read(self, window: Window) -> WindowResult:
        """Read `window`, or return the sub-windows to split it into."""
        return await self.pages.retry_with_smaller_pages(lambda: self._read(window))

    async def _read(self, window: Window) -> WindowResult:
        if window.overflows:
            return await self._read_by_pages(window)
        query = self.pages.create_query(window)
        page = await self.pages.check_counts(await self.pages.fetch(query, 1, window), query, window)
        if await self.pages.is_complete(page, query, window):
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
            item = await self.pages.retry_with_smaller_pages(lambda: self._search(file_id, None, reference))
        if item is None and updated_at is not None:
            second = Window(updated_at // SECOND, updated_at // SECOND + 1)
            item = await self.pages.retry_with_smaller_pages(lambda: self._search(file_id, second, None))
        return item

    async def _search(self, file_id: int, window: Window | None, reference: str | None) -> ListItem | None:
        query = self.pages.create_query(window, reference=reference)
        same_id = None
        for number in range(1, _MAX_SEARCH_PAGES + 1):
            page = await self.pages.fetch(query, number, window)
            for item in select_newest(page.items):
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
        limit = self.pages.get_page_limit()
        total = page.total or 0
        if page.items and all(item.updated_at is None for item in page.items):
            await self.pages.check_filter_is_honoured()
        elif total <= _MAX_SAMPLED_FILES:
            sub_windows = split_by_timestamps(window, await self._sample_timestamps(window, page), limit)
            if len(sub_windows) > 1 or sub_windows[0].overflows:
                return sub_windows
        pieces = min(max(2, total // limit), _MAX_SPLITS)
        return split_by_time(window, known=get_timestamps(page.items), now=self._now(), pieces=pieces)

    async def _sample_timestamps(self, window: Window, page: ListPage) -> Sequence[int]:
        """Return the sorted timestamps of a window in seconds. Read by pages, so good for planning only.

        At most about `_MAX_SAMPLED_FILES`, those of a list without an end too. `page` is the first page with includes.
        """
        timestamps: list[int] = []
        files = 0
        with suppress(EndlessListError):
            query = self.pages.create_query(window, cheap=True)
            async for sampled in self.iter_pages(query, window, max_files=_MAX_SAMPLED_FILES):
                timestamps += get_timestamps(sampled.items)
                files += len(sampled.items)
        if page.total is not None and files + max(_MAX_MOVED_FILES, page.total // 10) < page.total:
            self.pages.distrust_counts(page)
        return sorted(timestamps)

    # Many pages

    async def _read_by_pages(self, window: Window) -> WindowResult:
        """Read a window that cannot be split until two passes agree, or one response confirms all its files.

        A long window whose files change is split after all: its overflow is at its end.
        """
        query, cheap_query = self.pages.create_query(window), self.pages.create_query(window, cheap=True)
        items: dict[FileKey, ListItem] = {}
        items_without_id: tuple[ListItem, ...] = ()
        previous_keys: set[FileKey] | None = None
        for _ in range(_MAX_PASSES):
            pages = await self._read_all_pages(query, window)
            items.update({get_key(item): item for item in select_newest(pages.items) if item.id is not None})
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
        pages = [page async for page in self.iter_pages(query, window)]
        items = tuple(item for page in pages for item in page.items)
        keys = [get_key(item) for item in items if item.id is not None]
        is_consistent = pages[-1].total in {None, len(items)} and len(set(keys)) == len(keys)
        single_response = is_consistent and len(pages) - (not pages[-1].items) <= 1
        return PagedList(items, is_consistent, single_response)

    async def iter_pages(
        self, query: FileQuery, window: Window | None, *, max_files: float = math.inf
    ) -> AsyncIterator[ListPage]:
        """Yield the pages of a list until they have `max_files`. Raises `EndlessListError` after those so far."""
        page_hashes = set[int]()
        number = files = empty_pages = 0
        while files < max_files:
            number += 1
            page = await self.pages.fetch(query, number, window)
            yield page
            files += len(page.items)
            empty_pages = 0 if page.items else empty_pages + 1
            has_all = page.total == files and not page.has_next_link  # a wrong page size announces more than all
            if page.has_next is False or (not page.items and (page.has_next is None or has_all)):
                return
            _check_pagination_ends(page, number, empty_pages, page_hashes)


def _check_pagination_ends(page: ListPage, number: int, empty_pages: int, page_hashes: set[int]) -> None:
    """Raise `EndlessListError` if a list has pages without end. `page_hashes` are those of the pages so far."""
    if empty_pages == _MAX_EMPTY_PAGES:
        raise _empty_pages_error(empty_pages)
    if number >= _MAX_PAGES:
        raise EndlessListError(f"GET /files: page {number} of one list announces a next page.")
    page_hash = hash(get_ids(page.items))
    # A list with a total ends by itself, and in an unordered one a short page may be repeated.
    has_total_left = page.total is not None and number * len(page.items) < page.total and number < 3 * len(page_hashes)
    if page.items and page_hash in page_hashes and not has_total_left:
        raise EndlessListError(f"GET /files: page {number} repeats an earlier page; the list has no end.")
    page_hashes.add(page_hash)


def _has_version(items: dict[FileKey, ListItem], item: ListItem) -> bool:
    listed = items.get(get_key(item))
    return listed is not None and listed.updated_at == item.updated_at
