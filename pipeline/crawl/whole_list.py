"""The list without bounds: whether windows show all of its files, and its files themselves.

A window shows no file without an update time, nor one that the service's index misses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.crawl.listing import get_key, select_newest
from pipeline.crawl.windows import Window
from pipeline.logs import log
from schemas.timestamps import DAY, SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pipeline.client.protocol import ListItem
    from pipeline.crawl.listing import FileKey, WindowReader

_MAX_PASSES: Final = 5
_FIRST_DAY: Final = DAY // SECOND  # some services take the second 0 for no bound
_TIMED: Final = Window(_FIRST_DAY + 1, None)
_OLDEST: Final = Window(None, _FIRST_DAY)


async def count_hidden(reader: WindowReader, *, known: int) -> int | None:
    """Return how many files no window shows, by the service's counts; None without usable ones.

    Both lists are counted at almost one time, so neither deletions nor new files hide a difference. One that is not
    beyond `known` files is not looked into.
    """
    hidden = 0
    for _ in range(2):  # a file that is created between both calls seems to be hidden
        timed, total = await reader.count_files(_TIMED), await reader.count_files()
        if timed is None or total is None:
            return None
        hidden = total - timed
        if hidden <= known:
            return hidden
    return hidden - (await reader.count_files(_OLDEST) or 0)


async def read_whole_list(
    reader: WindowReader, take: Callable[[Sequence[ListItem]], Awaitable[int]], started_us: int
) -> int:
    """Pass the files of the whole list to `take`, which returns how many the lake lacks; each once.

    Returns how many files are not proven to be among them: files that change move between pages, so the list is read
    until as many are listed as it had at the start of a pass. Without counts it is read until a pass shows none that
    the lake lacks, but for those that have changed since `started_us`.
    """
    log.warning("list.read_whole", hint="Windows of update time do not show all files, or nothing counts them.")
    listed_keys: set[FileKey] = set()
    unproven = 0
    for number in range(_MAX_PASSES):
        total = await reader.count_files()
        lacking = others = split = 0  # others have no id, or are twice on a page; split ones are twice on two in a row
        last: FileKey | None = None
        async for page in reader.iter_whole_list():
            items = {get_key(item): item for item in select_newest(page.items) if item.id is not None}
            new = [item for key, item in items.items() if key not in listed_keys]
            others += len(page.items) - len(items)
            split += bool(page.items) and last == get_key(page.items[0])
            last = get_key(page.items[-1]) if page.items else None
            listed_keys |= items.keys()
            lacking += await take([item for item in new if (item.updated_at or 0) < started_us])
            await take([item for item in new if (item.updated_at or 0) >= started_us])
        unproven = lacking if total is None else total - others - len(listed_keys)
        if unproven <= (split if number and not lacking else 0):
            return 0
    return unproven
