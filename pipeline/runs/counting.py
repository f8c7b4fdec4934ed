"""How far a crawl is: what it has done, how much the service counts before it, and what sets its pace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.progress import Speed, Standing
from pipeline.service.client import Client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.crawl.terms import Tally, Terms
    from pipeline.crawl.windows import Window
    from pipeline.service.protocol import ListPage
    from schemas.requests import FileQuery

_COUNTED: Final = 16  # windows; with more, the service's count of all files says best what there is to do


class CountingClient(Client):
    """Asks the service, and notes how many files it counts in the windows that a crawl begins with."""

    def __init__(self, *given: object, **more: object) -> None:
        super().__init__(*given, **more)  # type: ignore[arg-type]
        self._counted: dict[tuple[object, object], int | None] = {}

    def expect(self, queries: Sequence[FileQuery]) -> None:
        """The crawl begins with these."""
        self._counted = {(query.updated_start, query.updated_end): None for query in queries}

    @property
    def expected(self) -> int | None:
        """Files in the windows the crawl began with; None while the service has not counted them all."""
        counts = [count for count in self._counted.values() if count is not None]
        return sum(counts) if counts and len(counts) == len(self._counted) else None

    async def list(self, query: FileQuery, *, page: int = 1) -> ListPage:
        """One page of `GET /files`."""
        found = await super().list(query, page=page)
        if self._counted and page == 1 and found.total is not None:
            key = (query.updated_start, query.updated_end)
            if key in self._counted and self._counted[key] is None:
                self._counted[key] = found.total
        return found


class Outlook:
    """What there is to tell of one crawl while it runs. `total`: files in the service, where it has said so."""

    def __init__(self, client: Client, windows: Sequence[Window], terms: Terms, total: int | None) -> None:
        self._client = client
        self._total = total
        self._speed = Speed()
        self._counting = client if isinstance(client, CountingClient) and len(windows) <= _COUNTED else None
        if self._counting is not None:
            self._counting.expect([terms.query(window) for window in windows])

    def standing(self, tally: Tally) -> tuple[Standing, int | None]:
        """How the crawl stands, and how many files it has to deal with, where that is known."""
        pace, counts = self._client.pacer.state, self._client.counts
        total = self._total
        if self._counting is not None and self._counting.expected is not None:
            total = self._counting.expected
        done = tally.expanded + tally.skipped + tally.gone + tally.rejects
        rate = self._speed.note(done)
        standing = Standing(
            listed=tally.listed,
            expanded=tally.expanded,
            skipped=tally.skipped,
            gone=tally.gone,
            rejects=tally.rejects,
            rate=rate,
            why=pace.why,
            eta=max(total - done, 0) / rate if total is not None and rate else None,
            windows=tally.windows,
            windows_known=tally.known,
            retries=counts.retries,
            throttled=counts.throttled,
            pace=pace.rate,
            at_once=pace.concurrency,
            paused_for=pace.paused_for,
        )
        return standing, total
