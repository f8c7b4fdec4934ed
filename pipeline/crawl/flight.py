"""Files on their way: from a list item that the lake does not hold to its commit, each at most once at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.crawl.terms import Owners, SharedId
from schemas.versions import Reject, digest, say_the_same

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pipeline.crawl.batching import Finished
    from pipeline.crawl.terms import Known, Sight, Tally, Terms, WindowState
    from pipeline.service.protocol import ListItem

_AHEAD: Final = 4  # list items issued before an expander takes them, for each expander
_AT_ONCE: Final = 500  # files looked up at once


@dataclass(slots=True, eq=False)
class Ticket:
    """A file on its way from a list to a commit, for every window that showed it.

    `again` is what a list showed of it later; it starts when this one is committed, so that versions are
    committed in the order in which they were seen.
    """

    key: int
    item: ListItem
    sight: Sight
    owners: Owners
    again: Ticket | None = None
    gated: bool = True
    outdated: bool = False  # a later version was fetched since: the list must be asked again

    def is_newer_than(self, item: ListItem, sight: Sight) -> bool:
        """Whether this was seen after `item`. Lists that were read side by side leave it to the stamps."""
        if sight.answered < self.sight.asked:
            return True
        if sight.asked > self.sight.answered:
            return False
        return (self.item.updated or 0) > (item.updated or 0)


class Flight:
    """Issues tickets for what the lake does not hold. Bounded: `issue` waits while too many wait to be taken."""

    def __init__(
        self,
        terms: Terms,
        tally: Tally,
        *,
        run_id: str,
        lookup: Callable[[Sequence[int]], Mapping[int, Known]],
    ) -> None:
        self._terms = terms
        self._shape = terms.shape
        self._tally = tally
        self._run_id = run_id
        self._lookup = lookup
        self._waiting: asyncio.Queue[Ticket] = asyncio.Queue()
        self._room = asyncio.Semaphore(_AHEAD * terms.workers)
        self._tickets: dict[int, Ticket] = {}
        self._landed: dict[WindowState, set[int]] = {}  # what was committed while a window is being issued

    def __len__(self) -> int:
        """Files that were issued and are not committed."""
        return len(self._tickets)

    async def issue(self, items: Sequence[ListItem], state: WindowState) -> None:
        """Issue what a window showed. Raises `SharedId` where the key of a file must be its instance."""
        landed = self._landed[state] = set()
        try:
            for start in range(0, len(items), _AT_ONCE):
                keyed = [(self._key(item), item) for item in items[start : start + _AT_ONCE]]
                landed.clear()
                known = dict(self._lookup([key for key, _ in keyed if key is not None]))
                self._tally.listed += len(keyed)
                state.files += len(keyed)
                for key, item in keyed:
                    if key is None:
                        bounds = (state.window.start, state.window.end)
                        state.rejects.append(Reject(None, "list item without a usable id", item.raw, bounds))
                        continue
                    if key in landed:
                        known.update(self._lookup([key]))
                    await self._issue_one(key, item, state, known.get(key))
        finally:
            del self._landed[state]

    async def issue_again(self, key: int, item: ListItem, state: WindowState) -> None:
        """Issue a file whatever the lake holds of it, but for what this very run has fetched already."""
        known = self._lookup([key]).get(key)
        if known is None or known.run_id != self._run_id:
            await self._issue_one(key, item, state, None)

    async def take(self) -> Ticket:
        """The next file to be expanded."""
        ticket = await self._waiting.get()
        if ticket.gated:
            self._room.release()
        return ticket

    def landed(self, finished: Sequence[Finished]) -> None:
        """Files were committed: what was seen of them later may start now."""
        for each in finished:
            ticket = self._tickets.pop(each.key)
            for landed in self._landed.values():
                landed.add(each.key)
            if ticket.again is not None:
                self._tickets[each.key] = ticket.again
                self._waiting.put_nowait(ticket.again)

    async def _issue_one(self, key: int, item: ListItem, state: WindowState, known: Known | None) -> None:
        ticket = self._tickets.get(key)
        self._check_instance(item, ticket, known)
        if ticket is not None:
            self._join(ticket, item, state)
            return
        outdated = known is not None and self._is_outdated(item, state.sight, known)
        if known is not None and (self._is_held(item, known) or (outdated and known.settled)):
            self._tally.skipped += 1
        else:
            ticket = self._tickets[key] = Ticket(key, item, state.sight, Owners([state]), outdated=outdated)
            state.waiting += 1
            # Until there is room the ticket is joined like any other, and its windows wait for it.
            await self._room.acquire()
            self._waiting.put_nowait(ticket)

    def _join(self, ticket: Ticket, item: ListItem, state: WindowState) -> None:
        """A file that is on its way already; another version of it is fetched once that is committed."""
        latest = ticket.again or ticket
        same = item.updated == latest.item.updated and say_the_same(item.raw, latest.item.raw)
        if same or latest.is_newer_than(item, state.sight):
            if latest.owners.taken:
                return
            latest.owners.windows.append(state)
        elif latest is ticket:
            ticket.again = Ticket(ticket.key, item, state.sight, Owners([state]), gated=False)
        else:
            # What was seen last counts, even when its stamp is older: a stamp may be set back.
            latest.owners.windows.append(state)
            latest.item, latest.sight = item, state.sight
        state.waiting += 1

    def _key(self, item: ListItem) -> int | None:
        if self._terms.identity == "file_id" and item.instance is not None:
            return item.instance
        return item.id

    def _check_instance(self, item: ListItem, ticket: Ticket | None, known: Known | None) -> None:
        """Two list items that share an id and differ in `file_id` are two files: the id is no key."""
        if self._terms.identity == "file_id" or item.instance is None:
            return
        met = ticket.item.instance if ticket is not None else None
        held = known.instance if known is not None and not known.deleted else None
        if met not in {None, item.instance} or held not in {None, item.instance}:
            raise SharedId

    def _is_outdated(self, item: ListItem, sight: Sight, known: Known) -> bool:
        """Whether this run has fetched a later version since the list was seen: it may have waited for its turn."""
        return (
            known.run_id == self._run_id
            and sight.answered_us < known.fetched_at
            and (item.updated or 0) < (known.updated_at or 0)
        )

    def _is_held(self, item: ListItem, known: Known) -> bool:
        """Whether the lake holds this very version, fetched in the same shape."""
        if known.deleted:
            return False
        if self._terms.stamps_only:
            return known.updated_at == item.updated
        if known.updated_at != item.updated or known.shape != self._shape or known.digest != digest(item.raw):
            return False
        # What this very run has fetched is not fetched again, whatever the terms.
        return known.run_id == self._run_id or (known.settled and self._terms.expand != "always")
