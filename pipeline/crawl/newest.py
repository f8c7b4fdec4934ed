"""The window of the newest files, for a sync that fetches only some of them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from pipeline.crawl.listing import EndlessListError, get_key, get_timestamps
from pipeline.crawl.windows import ALL_TIME, Window

if TYPE_CHECKING:
    from pipeline.client.protocol import ListItem
    from pipeline.crawl.listing import WindowReader

_FIRST_SECONDS: Final = 3600
_GROWTH: Final = 4
_SPARE_FILES: Final = 250  # a page without includes


async def find_newest(reader: WindowReader, files: int, *, now: int) -> Window:
    """Return the window of the `files` newest files, with all files of its first second; ALL_TIME if there are no more.

    Neither the order of the list nor its counts are used: a window grows until it has enough files, and is halved while
    it has far too many, or its pages do not show the time of each. `now` is the service's clock in seconds.
    """
    too_short, age, longest = 0, _FIRST_SECONDS, 0
    while True:
        window = Window(now - age, None) if age < now else ALL_TIME
        read = partial(_read_seconds, reader, window, _GROWTH * files + _SPARE_FILES)
        count, seconds = await reader.pages.retry_with_smaller_pages(read)
        if count < files:
            if window == ALL_TIME:
                return ALL_TIME
            too_short = age
        elif seconds is not None:
            return Window(seconds[-files], None)
        elif age - too_short <= 1:
            return window
        else:
            longest = age
        age = (too_short + longest) // 2 if longest else _GROWTH * age


async def _read_seconds(reader: WindowReader, window: Window, limit: int) -> tuple[int, list[int] | None]:
    """Return how many files a window has, at most about `limit`, and their sorted times if each was seen once."""
    items: list[ListItem] = []
    query = reader.pages.create_query(window, cheap=True)
    with suppress(EndlessListError):
        async for page in reader.iter_pages(query, window, max_files=limit):
            items += page.items
    count, seconds = len({get_key(item) for item in items}), sorted(get_timestamps(items))
    return count, seconds if count == len(items) == len(seconds) < limit else None
