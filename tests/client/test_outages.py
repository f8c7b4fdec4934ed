"""A service that stops during the requests and starts again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pipeline.client.client import Client
from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.options import ClientOptions
from pipeline.client.protocol import Detail
from pipeline.client.retry import TimeSource
from tests.client.conftest import CANARY
from tests.client.scripted_server import answer

if TYPE_CHECKING:
    from collections.abc import Callable


class RestartableServer:
    """A service that can be stopped and started again on the same port."""

    def __init__(self) -> None:
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Start to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close every connection and refuse new ones."""
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.close()
        self._open.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer({"id": 5}))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def backing_off(back: Callable[[], bool], service: RestartableServer) -> TimeSource:
    """Return a time source that does not sleep; the service starts again during a sleep when `back()` is true."""

    async def sleep(_: float) -> None:
        if back():
            await service.start()
        await asyncio.sleep(0)

    return TimeSource(sleep=sleep)


@pytest.mark.parametrize("returns", [True, False])
async def test_refused_connections_are_retried(returns: bool) -> None:  # noqa: FBT001
    """Refused connections after the first answers are retried; after all attempts the call fails."""
    service, pauses = RestartableServer(), iter(range(100))
    await service.start()
    time_source = backing_off(lambda: next(pauses) == 2 and returns, service)
    options = ClientOptions(max_attempts=6)
    async with Client(f"http://127.0.0.1:{service.port}", CANARY, options=options, time_source=time_source) as client:
        assert isinstance(await client.get_file(5), Detail)
        await service.stop()
        if returns:
            assert isinstance(await client.get_file(5), Detail)
            assert client.stats.retries == 3
        else:
            with pytest.raises(RetriesExhaustedError, match=r"no connection \(after 6 attempts\)") as raised:
                await client.get_file(5)
            assert raised.value.kind == "connect"
        assert set(client.stats.error_kinds) <= {"connect", "closed"}
    await service.stop()
