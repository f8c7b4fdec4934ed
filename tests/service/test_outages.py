"""A service that goes away in the middle and comes back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pipeline.service.client import Client
from pipeline.service.faults import RequestFailed
from pipeline.service.options import ClientOptions
from pipeline.service.protocol import Detail
from pipeline.service.retry import Seams
from tests.service.conftest import CANARY
from tests.service.scripted import answer

if TYPE_CHECKING:
    from collections.abc import Callable


class Coming:
    """A service that can be stopped and started again on the same port."""

    def __init__(self) -> None:
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close every connection, and refuse new ones."""
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


def backing_off(back: Callable[[], bool], service: Coming) -> Seams:
    """Sleeps that take no time; the service comes back during one of them, when `back` says so."""

    async def sleep(_: float) -> None:
        if back():
            await service.start()
        await asyncio.sleep(0)

    return Seams(sleep=sleep)


@pytest.mark.parametrize("returns", [True, False])
async def test_refused_in_the_middle(returns: bool) -> None:  # noqa: FBT001
    """Connections refused after the first answers are tried again; once the tries are over it is one clear failure."""
    service, pauses = Coming(), iter(range(100))
    await service.start()
    seams = backing_off(lambda: next(pauses) == 2 and returns, service)
    options = ClientOptions(attempts=6)
    async with Client(f"http://127.0.0.1:{service.port}", CANARY, options=options, seams=seams) as client:
        assert isinstance(await client.get(5), Detail)
        await service.stop()
        if returns:
            assert isinstance(await client.get(5), Detail)
            assert client.counts.retries == 3
        else:
            with pytest.raises(RequestFailed, match=r"no connection \(6 tries\)") as raised:
                await client.get(5)
            assert raised.value.kind == "connect"
        assert set(client.counts.faults) <= {"connect", "closed"}
    await service.stop()
