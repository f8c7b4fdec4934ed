"""The concurrent flow: windows to list items, items to versions, versions in batches to the sink.

Three stages with bounded queues between them, so the slow side sets the pace and memory does not grow with
the number of files: a few listers, many expanders, one committer. All tasks live in one TaskGroup.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.crawl.batching import Batcher, Finished
from pipeline.crawl.expansion import Expanded, Expansion
from pipeline.crawl.listing import Listing
from pipeline.crawl.terms import Owners, SharedId, Tally, WindowState, digest
from pipeline.crawl.windows import Window
from pipeline.errors import ContractBroken, ScanlakeError, StorageError
from schemas.instants import SECOND
from schemas.versions import Reject

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from pipeline.crawl.terms import Batch, Known, Revisit, Terms
    from pipeline.service.client import Client
    from pipeline.service.protocol import ListItem

_LISTERS: Final = 6
_SWEEP_ROUNDS: Final = 200
_AHEAD: Final = 4  # list items issued before an expander takes them, for each expander


@dataclass(slots=True, eq=False)
class Ticket:
    """A file on its way from a list to a commit, for every window that showed it."""

    key: int
    item: ListItem
    owners: Owners
    again: Ticket | None = None
    gated: bool = True


class Crawl:
    """One crawl over given windows."""

    def __init__(
        self,
        client: Client,
        terms: Terms,
        *,
        run_id: str,
        lookup: Callable[[Sequence[int]], Mapping[int, Known]],
        now_us: Callable[[], int],
    ) -> None:
        """`lookup` says what the lake holds of some files; `now_us` is the service's clock, microseconds."""
        self.tally = Tally()
        self._terms = terms
        self._run_id = run_id
        self._lookup = lookup
        self._now_us = now_us
        self._instances: dict[int, int] = {}
        self._listing = Listing(client, terms, lambda: now_us() // SECOND, self._notice_instance)
        self._expansion = Expansion(client, terms, self._listing, now_us)
        self._tickets: asyncio.Queue[Ticket] = asyncio.Queue()
        self._ticket_room = asyncio.Semaphore(_AHEAD * terms.workers)
        self._in_flight: dict[int, Ticket] = {}
        self._batcher = Batcher(terms, lambda: len(self._in_flight))

    async def run(
        self,
        windows: Iterable[Window],
        sink: Callable[[Batch], Awaitable[None]],
        *,
        sweep: Window | None = None,
        revisits: Sequence[Revisit] = (),
    ) -> Tally:
        """Read every window, then `sweep` for what moved meanwhile, and hand batches to `sink`.

        Whatever was finished is handed on even when the crawl fails or is cancelled. Raises the first
        `ScanlakeError`, or `SharedId` when the key of a file must be its instance.
        """
        try:
            async with asyncio.TaskGroup() as group:
                committer = group.create_task(self._batcher.run(sink, self._committed))
                workers = [group.create_task(self._expand_loop()) for _ in range(self._terms.workers)]
                whole = await self._list_all(windows)
                await self._revisit(revisits)
                if sweep is not None and not whole:
                    await self._sweep(sweep)
                self._batcher.last_call()
                await committer
                for task in workers:
                    task.cancel()
        except BaseExceptionGroup as failures:
            first = _first(failures)
            if not isinstance(first, OSError | StorageError):
                await self._batcher.flush(sink)
            raise first from None
        except asyncio.CancelledError:
            await self._batcher.flush(sink)
            raise
        return self.tally

    # Listing

    async def _list_all(self, windows: Iterable[Window]) -> bool:
        """Read all windows, oldest first. True when one response held everything: nothing can have moved."""
        heap = [(_order(window), window) for window in windows]
        heapq.heapify(heap)
        read = 0
        busy = 0
        wake = asyncio.Event()

        async def lister() -> None:
            nonlocal read, busy
            while heap or busy:
                if not heap:
                    wake.clear()
                    await wake.wait()
                    continue
                _, window = heapq.heappop(heap)
                busy += 1
                try:
                    for part in await self._list(window):
                        heapq.heappush(heap, (_order(part), part))
                    read += 1
                finally:
                    busy -= 1
                    wake.set()

        async with asyncio.TaskGroup() as group:
            for _ in range(_LISTERS):
                group.create_task(lister())
        return read <= 1

    async def _sweep(self, window: Window) -> None:
        """Read the newest window once more, in order of time, for files that moved there during the crawl."""
        heap = [(_order(window), window)]
        for _ in range(_SWEEP_ROUNDS):
            if not heap:
                return
            _, oldest = heapq.heappop(heap)
            for part in await self._list(oldest):
                heapq.heappush(heap, (_order(part), part))
        # What changes faster than it can be listed lies beyond the horizon: the next run asks for it.

    async def _list(self, window: Window) -> tuple[Window, ...]:
        state = WindowState(window)
        # The picture is taken between asking and answer; the earlier moment is the safe one.
        state.listed_at = self._now_us() // SECOND
        reading = await self._listing.read(window)
        state.proven = reading.proven
        self.tally.windows += not reading.rest
        self.tally.unproven += not reading.proven
        await self._issue(reading.items, state)
        if not reading.rest:
            for _ in state.rejects:
                self._count_reject()
            self._batcher.window_listed(state)
        return reading.rest

    async def _revisit(self, revisits: Sequence[Revisit]) -> None:
        for revisit in revisits:
            item = await self._listing.find(revisit.file_id, revisit.reference) if revisit.reference else None
            if item is not None:
                await self._issue((item,), WindowState(Window(None, None)), force=True)

    # Tickets

    async def _issue(self, items: Sequence[ListItem], state: WindowState, *, force: bool = False) -> None:
        self.tally.listed += len(items)
        keyed = [(self._key(item), item) for item in items]
        known = self._lookup([key for key, _ in keyed if key is not None])
        for key, item in keyed:
            state.files += 1
            if key is None:
                self._reject_nameless(item, state)
            elif not self._joins_flight(key, item, state):
                if not force and key in known and self._is_held(item, known[key]):
                    self.tally.skipped += 1
                else:
                    ticket = self._in_flight[key] = Ticket(key, item, Owners([state]))
                    state.waiting += 1
                    await self._ticket_room.acquire()
                    self._tickets.put_nowait(ticket)

    def _key(self, item: ListItem) -> int | None:
        if self._terms.identity == "file_id" and item.instance is not None:
            return item.instance
        return item.id

    def _notice_instance(self, item: ListItem) -> None:
        """Find out, wherever a list item is met, whether two share an id and differ in `file_id`."""
        if item.id is None or item.instance is None or self._terms.identity == "file_id":
            return
        # An instance that bears its file's own number needs remembering only once another one was seen.
        unusual = item.instance != item.id or item.id in self._instances
        if unusual and self._instances.setdefault(item.id, item.instance) != item.instance:
            raise SharedId

    def _joins_flight(self, key: int, item: ListItem, state: WindowState) -> bool:
        """Whether the file is on its way already; a newer item of it is fetched once that is committed."""
        ticket = self._in_flight.get(key)
        if ticket is None:
            return False
        same = item.updated == ticket.item.updated and digest(item.raw) == digest(ticket.item.raw)
        if same and ticket.owners.taken:
            return True
        state.waiting += 1
        if same:
            ticket.owners.windows.append(state)
        elif ticket.again is None:
            ticket.again = Ticket(key, item, Owners([state]), gated=False)
        else:
            ticket.again.owners.windows.append(state)
            ticket.again.item = max(ticket.again.item, item, key=lambda each: each.updated or 0)
        return True

    def _is_held(self, item: ListItem, known: Known) -> bool:
        """Whether the lake holds this very version, fetched in the same shape."""
        if known.deleted:
            return False
        same = known.updated_at == item.updated and known.digest == digest(item.raw)
        if not same or known.shape != self._terms.shape:
            return False
        # What this very run has fetched is not fetched again, whatever the terms.
        return known.run_id == self._run_id or (known.settled and self._terms.expand != "always")

    def _reject_nameless(self, item: ListItem, state: WindowState) -> None:
        bounds = (state.window.start, state.window.end)
        state.rejects.append(Reject(None, "list item without a usable id", item.raw, bounds))

    def _count_reject(self) -> None:
        self.tally.rejects += 1
        most = self._terms.max_rejects
        if most is not None and self.tally.rejects > most:
            raise ContractBroken(
                f"more than {most} rejects in one run (max_rejects)",
                remedy="Look at meta.rejects; raise max_rejects if they are acceptable.",
            )

    # Expanding and committing

    async def _expand_loop(self) -> None:
        while True:
            ticket = await self._tickets.get()
            if ticket.gated:
                self._ticket_room.release()
            expanded = await self._expansion.expand(ticket.key, ticket.item)
            self._count(expanded)
            await self._batcher.put(Finished(ticket.key, expanded, ticket.owners))

    def _count(self, expanded: Expanded) -> None:
        if expanded.reject is not None:
            self._count_reject()
        elif expanded.version is None:
            self.tally.gone += 1
        else:
            self.tally.expanded += expanded.version.detail is not None

    def _committed(self, finished: Sequence[Finished]) -> None:
        """Let the next version of a file start only now: commits keep the order of its versions."""
        for each in finished:
            ticket = self._in_flight.pop(each.key, None)
            if ticket is not None and ticket.again is not None:
                self._in_flight[each.key] = ticket.again
                self._tickets.put_nowait(ticket.again)


def _order(window: Window) -> tuple[float, float]:
    low = float("-inf") if window.start is None else window.start
    return low, float("inf") if window.end is None else window.end


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that says most: one of ours before any other."""
    flat: list[BaseException] = []
    stack: list[BaseException] = [failures]
    while stack:
        failure = stack.pop()
        if isinstance(failure, BaseExceptionGroup):
            stack.extend(reversed(failure.exceptions))
        else:
            flat.append(failure)
    ours = (failure for failure in flat if isinstance(failure, ScanlakeError | SharedId))
    return next(ours, flat[0])
