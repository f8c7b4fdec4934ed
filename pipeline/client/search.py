"""Reads a search page by page, each file once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pipeline.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable

    from pipeline.client.protocol import ListItem, ListPage
    from schemas.requests import FileQuery


class ListFiles(Protocol):
    """`Client.list_files`."""

    def __call__(self, query: FileQuery, *, page: int) -> Awaitable[ListPage]:
        """Return one page."""


async def iter_pages(list_files: ListFiles, query: FileQuery) -> AsyncGenerator[ListPage, None]:
    """Yield all pages. Raises `ProtocolError` for a page that is empty or a repetition, but announces a next one.

    A service without any hint at a next page can send shorter pages than requested. It is asked until a page is empty
    or a repetition.
    """
    number = 1
    page_hashes: set[int] = set()
    while True:
        page = await list_files(query, page=number)
        page_hash = hash(tuple(item.raw for item in page.items))
        is_new = bool(page.items) and page_hash not in page_hashes
        if page.has_next is None and number > 1 and not is_new:
            return
        yield page
        if page.has_next is False or (page.has_next is None and not page.items):
            return
        if not is_new:
            raise ProtocolError(f"GET /files: page {number} is empty or a repetition, but announces a next page.")
        page_hashes.add(page_hash)
        number += 1


async def iter_items(pages: AsyncIterator[ListPage]) -> AsyncGenerator[ListItem, None]:
    """Yield each file of the pages once: files move to a later page while others are updated."""
    keys: set[tuple[int, int | None]] = set()
    async for page in pages:
        for item in page.items:
            if item.id is None:
                yield item
            elif (item.id, item.instance_id) not in keys:
                keys.add((item.id, item.instance_id))
                yield item
