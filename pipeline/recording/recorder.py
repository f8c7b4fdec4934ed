"""Records exchanges with the service: reads only, kept in memory until they are anonymised."""

from __future__ import annotations

from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import NotFound
from pipeline.errors import ProtocolError, ServiceUnavailableError
from pipeline.urls import API_PREFIX
from schemas.requests import INCLUDES, MAX_LIMIT_WITH_INCLUDES, FileQuery

if TYPE_CHECKING:
    from pipeline.client.calls import ApiCall
    from pipeline.client.client import Client
    from pipeline.client.protocol import Response

_PAGE_PAST_THE_END: Final = 1_000_000
_UNKNOWN_ID_DISTANCE: Final = 1_000_003
_HEADERS: Final = ("content-type", "date", "retry-after", "cache-control")
_HEADER_PREFIXES: Final = ("x-ratelimit", "ratelimit")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request without its token, and its answer."""

    method: str
    path: str
    parameters: tuple[tuple[str, str], ...]
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Recorder:
    """Makes the calls of a recording with an open client, and keeps every exchange in `exchanges`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.exchanges: list[Exchange] = []
        client.on_response = self._observe

    async def record(self, files: int) -> None:
        """Record list pages with all includes, the details of their files, an unknown id and error bodies.

        Raises the errors of `Client` if the service does not answer or refuses the token.
        """
        client = self._client
        limit = min(MAX_LIMIT_WITH_INCLUDES, -(-files // 2))  # two pages at least, so that both ends are seen
        ids: list[int] = []
        async with aclosing(client.iter_pages(FileQuery(include=INCLUDES, limit=limit))) as pages:
            async for page in pages:
                ids += [item.id for item in page.items if item.id is not None]
                if len(ids) >= files:
                    break
        await client.list_files(FileQuery(limit=min(limit, 5)))
        for file_id in dict.fromkeys(ids):
            with suppress(RetriesExhaustedError):  # an answer for one file that is always an error is one to record
                await client.get_file(file_id)
        await self._record_unknown_id(max(ids, default=0))
        await self._record_errors(limit)

    async def _record_unknown_id(self, highest: int) -> None:
        candidate = highest
        for _ in range(3):
            candidate = candidate + _UNKNOWN_ID_DISTANCE if candidate < 2**62 else candidate - _UNKNOWN_ID_DISTANCE
            with suppress(ServiceUnavailableError):
                if isinstance(await self._client.get_file(candidate), NotFound):
                    return

    async def _record_errors(self, limit: int) -> None:
        """Record what the service answers to a page past the end, and to parameters that the interface forbids."""
        forbidden = (
            FileQuery.model_construct(limit=MAX_LIMIT_WITH_INCLUDES + 1, include=INCLUDES),
            FileQuery.model_construct(limit=1, updated_start="not-a-date"),
        )
        with suppress(ProtocolError, ServiceUnavailableError):
            await self._client.list_files(FileQuery(include=INCLUDES, limit=limit), page=_PAGE_PAST_THE_END)
        for query in forbidden:
            with suppress(ProtocolError, ServiceUnavailableError):
                await self._client.list_files(query)

    def _observe(self, call: ApiCall[Any], response: Response) -> None:
        path = call.url.path
        headers = tuple(
            (name.lower(), value)
            for name, value in response.headers.items()
            if name.lower() in _HEADERS or name.lower().startswith(_HEADER_PREFIXES)
        )
        parameters = tuple((name, value) for name, value in call.url.query.items() if name != "token")
        path = path[path.rindex(API_PREFIX) :]
        self.exchanges.append(Exchange(call.method, path, parameters, response.status, headers, response.body))
