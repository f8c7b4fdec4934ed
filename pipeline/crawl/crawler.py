"""The concurrent flow: windows to list items, items to versions, versions in batches to the sink.

Three stages with bounded queues between them, so the slow side sets the pace and memory does not grow with
the number of files: a few listers, many expanders, one committer. All tasks live in one TaskGroup.
"""

from __future__ import annotations

import asyncio
import heapq
from time import monotonic
from typing import TYPE_CHECKING, Final

from pipeline.crawl.batching import Batcher, Finished
from pipeline.crawl.expansion import Expanded, Expansion
from pipeline.crawl.flight import Flight
from pipeline.crawl.listing import Listing
from pipeline.crawl.terms import SharedId, Sight, Tally, WindowState, reference_of
from pipeline.crawl.windows import Window
from pipeline.errors import ContractBroken, ScanlakeError
from pipeline.service.protocol import ListItem
from schemas.instants import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pipeline.crawl.batching import Sink
    from pipeline.crawl.terms import Known, Revisit, Terms
    from pipeline.service.client import Client

_LISTERS: Final = 6
_SWEEP_ROUNDS: Final = 200


class Crawl:
    """One crawl over given windows. For one `run`."""

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
        self._now_us = now_us
        self._listing = Listing(client, terms, lambda: now_us() // SECOND)
        self._expansion = Expansion(client, terms, self._listing, now_us)
        self._flight = Flight(terms, self.tally, run_id=run_id, lookup=lookup)

    async def run(
        self,
        windows: Iterable[Window],
        sink: Sink,
        *,
        sweep: Window | None = None,
        revisits: Sequence[Revisit] = (),
    ) -> Tally:
        """Read every window, then `sweep` for what moved meanwhile, and hand batches to `sink` (see `Batcher`).

        Whatever was finished is handed on even when the crawl fails or is cancelled. Raises the first
        `ScanlakeError`, or `SharedId` when the key of a file must be its instance.
        """
        batcher = Batcher(self._terms, lambda: len(self._flight), sink)
        try:
            async with asyncio.TaskGroup() as group:
                committer = group.create_task(batcher.run(self._flight.landed))
                workers = [group.create_task(self._expand_all(batcher)) for _ in range(self._terms.workers)]
                whole = await self._list_all(windows, batcher)
                await self._revisit_all(revisits, batcher)
                if sweep is not None and not whole:
                    await self._sweep(sweep, batcher)
                batcher.last_call()
                await committer
                for task in workers:
                    task.cancel()
        except BaseExceptionGroup as failures:
            first = _first(failures)
            await batcher.close(first)
            raise first from first.__cause__  # without the group around it
        except asyncio.CancelledError:
            await batcher.close(None)
            raise
        return self.tally

    # Listing

    async def _list_all(self, windows: Iterable[Window], batcher: Batcher) -> bool:
        """Read all windows, oldest first. True when one response held everything: nothing can have moved."""
        heap = [(_order(window), window) for window in windows]
        heapq.heapify(heap)
        self.tally.known += len(heap)
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
                    for part in await self._list(window, batcher):
                        heapq.heappush(heap, (_order(part), part))
                    read += 1
                finally:
                    busy -= 1
                    wake.set()

        async with asyncio.TaskGroup() as group:
            for _ in range(_LISTERS):
                group.create_task(lister())
        return read <= 1

    async def _sweep(self, window: Window, batcher: Batcher) -> None:
        """Read the newest window once more, in order of time, for files that moved there during the crawl."""
        heap = [(_order(window), window)]
        self.tally.known += 1
        for _ in range(_SWEEP_ROUNDS):
            if not heap:
                return
            _, oldest = heapq.heappop(heap)
            for part in await self._list(oldest, batcher):
                heapq.heappush(heap, (_order(part), part))
        # What changes faster than it can be listed lies beyond the horizon: the next run asks for it.

    async def _list(self, window: Window, batcher: Batcher) -> tuple[Window, ...]:
        state = WindowState(window)
        # The picture is taken between asking and answer; the earlier moment is the safe one.
        state.listed_at = self._now_us() // SECOND
        asked = monotonic()
        reading = await self._listing.read(window)
        state.sight = Sight(asked, monotonic(), self._now_us())
        state.proven = reading.proven
        self.tally.windows += not reading.rest
        self.tally.known += len(reading.rest) - bool(reading.rest)
        self.tally.unproven += not reading.proven
        await self._flight.issue(reading.items, state)
        if not reading.rest:
            for _ in state.rejects:
                self._count_reject()
            batcher.window_listed(state)
        return reading.rest

    async def _revisit_all(self, revisits: Sequence[Revisit], batcher: Batcher) -> None:
        left = iter(revisits)

        async def reviser() -> None:
            for revisit in left:
                await self._revisit(revisit, batcher)

        async with asyncio.TaskGroup() as group:
            for _ in range(_LISTERS):
                group.create_task(reviser())

    async def _revisit(self, revisit: Revisit, batcher: Batcher) -> None:
        key, state = revisit.file_id, WindowState(Window(None, None))
        asked = monotonic()
        item = await self._listing.find(key, revisit.reference, revisit.updated_at)
        state.sight = Sight(asked, monotonic(), self._now_us())
        if item is None and revisit.document is not None:
            # The list shows it no more; its id may be known all the same, and if not, it is gone.
            item = ListItem(key, None, revisit.updated_at, revisit.document)
        if item is not None:
            await self._flight.issue_again(key, item, state)
        elif (gone := await self._expansion.gone(key)) is not None:
            batcher.found_gone(gone)

    def _count_reject(self) -> None:
        self.tally.rejects += 1
        most = self._terms.max_rejects
        if most is not None and self.tally.rejects > most:
            raise ContractBroken(
                f"more than {most} rejects in one run (max_rejects)",
                remedy="Look at meta.rejects; raise max_rejects if they are acceptable.",
            )

    # Expanding

    async def _expand_all(self, batcher: Batcher) -> None:
        while True:
            ticket = await self._flight.take()
            item = ticket.item
            if ticket.outdated:
                item = await self._listing.find(ticket.key, reference_of(item.raw), None) or item
            expanded = await self._expansion.expand(ticket.key, item)
            self._count(expanded)
            await batcher.put(Finished(ticket.key, expanded, ticket.owners))

    def _count(self, expanded: Expanded) -> None:
        if expanded.reject is not None:
            self._count_reject()
        elif expanded.version is None:
            self.tally.gone += 1
        else:
            self.tally.expanded += expanded.version.detail is not None


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
