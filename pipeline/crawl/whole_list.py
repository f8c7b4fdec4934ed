"""The list without bounds: whether windows show all of its files, and its files themselves.

A window shows no file without an update time, nor one that the service's index misses.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pipeline.crawl.listing import EndlessListError, get_key, select_newest
from pipeline.crawl.windows import Window
from pipeline.output.logs import log
from schemas.timestamps import DAY, SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pipeline.client.protocol import ListItem
    from pipeline.crawl.listing import FileKey, PageReader, WindowReader
    from pipeline.crawl.models import ListedWindow

_MAX_PASSES: Final = 5
_FIRST_DAY: Final = DAY // SECOND  # some services take the second 0 for no bound
TIMED: Final = Window(_FIRST_DAY + 1, None)
"""It shows all files but those of the oldest day, and hidden ones."""
_OLDEST: Final = Window(None, _FIRST_DAY)


async def has_hidden(pages: PageReader, untimed: int) -> bool:
    """Return whether the list may have more files that no window shows than the `untimed` ones that were found.

    Both lists are counted at almost one time, so neither deletions nor new files hide a difference.
    """
    hidden = known = 0
    for _ in range(2):  # a file that is created between both calls seems to be hidden
        timed, total = await pages.count(TIMED), await pages.count()
        if timed is None or total is None:
            return True
        hidden, known = total - timed, untimed if pages.shows_times else 0
        if hidden <= known:
            return False
    return hidden - (await pages.count(_OLDEST) or 0) > known


async def read_whole_list(
    reader: WindowReader, take: Callable[[Sequence[ListItem]], Awaitable[None]], window: ListedWindow
) -> int:
    """Pass the files of the whole list to `take`, each once. Return how many are not proven to be among them.

    Files that change move between pages, so the list is read until as many are listed as it had at the start of a pass.
    Without counts it is read until a pass shows none that were not listed before and have not changed meanwhile.
    """
    log.warning("list.read_whole", hint="Windows of update time do not show all files, or nothing counts them.")
    listed_keys: set[FileKey] = set()
    unproven = 0
    for number in range(_MAX_PASSES):
        total = await reader.pages.count()
        added = others = split = 0  # others have no id, or are twice on a page; split ones are twice on two in a row
        last: FileKey | None = None
        with suppress(EndlessListError):
            async for page in reader.iter_pages(reader.pages.create_query(), None):
                items = {get_key(item): item for item in select_newest(page.items) if item.id is not None}
                new = [item for key, item in items.items() if key not in listed_keys]
                others += len(page.items) - len(items)
                split += bool(page.items) and last == get_key(page.items[0])
                last = get_key(page.items[-1]) if page.items else None
                added += sum((item.updated_at or 0) < window.requested_us for item in new)
                listed_keys |= items.keys()
                await take(new)
        unproven = added if total is None else total - others - len(listed_keys)
        if unproven <= (split if number and not added else 0):
            return 0
    return unproven
