"""Reads single pages of the list, and learns from them how large pages are and which counts of them are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from pipeline.client.errors import RetriesExhaustedError
from pipeline.crawl.models import SharedFileIdError
from pipeline.crawl.windows import MAX_SECOND, MIN_SECOND, Window
from pipeline.errors import ProtocolError
from pipeline.logs import get_logger
from schemas.timestamps import DAY, SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from pipeline.client.client import Client
    from pipeline.client.protocol import ListItem, ListPage
    from pipeline.crawl.models import CrawlOptions
    from schemas.requests import FileQuery

MAX_EMPTY_PAGES: Final = 3
_DAY_SECONDS: Final = DAY // SECOND
FileKey = tuple[int | None, int | None]
"""Id and instance id of a list item."""
_PageKind = tuple[bool, int]  # whether a query has includes, and its page size
_Result = TypeVar("_Result")
_log = get_logger()


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
        self._has_counts = False  # the service has reported a total or a number of pages
        self._counts_are_wrong = False  # it has announced files that it does not have
        self._is_filter_checked = False

    def get_page_limit(self) -> int:
        """Return how many files fit in one response with includes that is seen to be complete."""
        query = self.create_query()
        limit = min(query.page_size, self._page_caps.get(_page_kind(query), query.page_size))
        # Without counts a full page does not show whether it is the last one: leave one place free.
        return limit if self._has_counts else max(1, limit - 1)

    def create_query(
        self, window: Window | None = None, *, cheap: bool = False, reference: str | None = None
    ) -> FileQuery:
        """Return the query of a window or of a reference, with pages that fit; `cheap` means without includes."""
        query = self._options.query(window, cheap=cheap, reference=reference)
        if self._page_divisor == 1:
            return query
        return query.model_copy(update={"limit": max(1, query.page_size // self._page_divisor)})

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
                _log.warning("pages.halved", files=files, hint="A page of the list is too large.")

    async def fetch(self, query: FileQuery, number: int, window: Window | None) -> ListPage:
        """Fetch one page. Its `has_next` is None if the service does not show whether there is a next one."""
        page = await self._client.list_files(query, page=number)
        self.check_instances(page.items, {})
        if window is not None:
            _check_bounds(window, page.items)
        if self._client.has_contradicted_itself and not self._counts_are_wrong:
            self.distrust_counts(page, "The counts of the list contradict its pages, or each other.")
        if self._counts_are_wrong:
            page = page.without_counts()
        self._has_counts |= page.total is not None or page.last_page is not None
        if page.items and (page.has_next or len(page.items) >= query.page_size):
            self._page_caps[_page_kind(query)] = len(page.items)
        if page.has_next is False and not self._client.has_announced_next:
            # A link that is always null means as little as no link, and a total may count the page alone.
            return replace(page, has_next=None)
        return page

    async def check_counts(self, page: ListPage, query: FileQuery, window: Window) -> ListPage:
        """Return the first page of a window, without its counts if they announce files that no page has.

        A page shorter than those of this service announces more only by mistake: the next pages show whose.
        """
        kind = _page_kind(query)
        if not page.has_next or len(page.items) >= self._proven_sizes.get(kind, query.page_size):
            return page
        following = page
        for number in range(2, 2 + MAX_EMPTY_PAGES):
            following = await self.fetch(query, number, window)
            if following.items:
                self._proven_sizes[kind] = max(1, len(page.items))
                return page
            if not following.has_next:
                break
        if following.has_next_link:
            raise empty_pages_error(MAX_EMPTY_PAGES)
        self._page_caps.pop(kind, None)  # the count of this page alone had set it
        return self.distrust_counts(page)

    def distrust_counts(
        self, page: ListPage, reason: str = "The list announces files that it does not have."
    ) -> ListPage:
        """Ignore the service's counts from now on. Return the page without them."""
        if not self._counts_are_wrong:
            _log.warning("counts.wrong", total=page.total, hint=reason)
        self._counts_are_wrong, self._has_counts = True, False
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
        kind = _page_kind(query)
        if len(page.items) >= self._page_caps.get(kind, query.page_size):
            return False
        if not page.items or kind in self._page_caps:
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


def empty_pages_error(count: int) -> ProtocolError:
    """Return the error for a list that has no end."""
    return ProtocolError(f"GET /files: {count} empty pages in a row announce a next page.")


def get_key(item: ListItem) -> FileKey:
    """Return the key of a list item."""
    return item.id, item.instance_id


def get_keys(items: Iterable[ListItem]) -> set[FileKey]:
    """Return the keys of the items that have an id."""
    return {get_key(item) for item in items if item.id is not None}


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
