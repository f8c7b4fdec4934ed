"""A service that stops during the requests and starts again, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.client.client import Client
from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import Detail
from pipeline.emulator import Emulator

pytestmark = pytest.mark.virtual_time
PORT = 8_000


async def test_refused_connections_are_retried() -> None:
    """After the first answers refused connections are retried until the service is back, or the attempts are used."""
    loop, service = asyncio.get_running_loop(), Emulator(3, port=PORT)
    key = service.world.keys()[0]
    async with Client(service.base_url, service.token) as client:
        async with service:
            assert isinstance(await client.get_file(key), Detail)
        call = asyncio.create_task(client.get_file(key))
        await asyncio.sleep(2.0)
        async with Emulator(3, port=PORT):
            assert isinstance(await call, Detail)
        assert client.stats.retries >= 1
        assert loop.time() <= 2.0 + 16.0  # the pause that had begun
        started = loop.time()
        with pytest.raises(RetriesExhaustedError, match=r"no connection \(after 6 attempts\)") as raised:
            await client.get_file(key)
        assert raised.value.kind == "connect"
        assert loop.time() - started <= 0.5 + 1 + 2 + 4 + 8
        assert set(client.stats.error_kinds) <= {"connect", "closed"}
