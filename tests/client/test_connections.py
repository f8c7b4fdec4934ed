"""Connections: used again if nothing is left on them, bounded by open files, and refused during an outage."""

from __future__ import annotations

import asyncio
import gzip
import resource
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.client.client import Client, create_client
from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import Detail
from pipeline.emulator import Emulator
from pipeline.settings.settings import Settings
from tests.client.scripted_server import Asked, Close, Wait, answer, scripted
from tests.rows import every

if TYPE_CHECKING:
    from tests.client.conftest import Make

pytestmark = pytest.mark.virtual_time


def echo(asked: Asked) -> bytes:
    """Answer with the file that was asked for."""
    return answer({"id": int(asked.path.rpartition("/")[2])})


async def test_a_connection_is_used_again(client: Make) -> None:
    """Calls one after the other need one connection, while services usually keep it; simultaneous ones one each."""
    async with scripted(echo) as server, client(server.base) as asking:
        for pause, connections in ((0, 1), (14, 1), (16, 2)):
            await asyncio.sleep(pause)
            await asking.get_file(1)
            assert server.connections == connections
        await asyncio.gather(*(asking.get_file(number) for number in range(4)))
        assert server.connections == 5


async def test_a_connection_carries_every_kind_of_answer(client: Make) -> None:
    """Answers without a body, in chunks or parts, compressed, or after an interim one leave the connection usable."""
    chunked = [("Transfer-Encoding", "chunked"), ("Trailer", "X")]
    answers = [
        answer({"id": 5}),
        b"HTTP/1.1 204 Whatever\r\n\r\n",
        [b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", answer({"id": 5})],
        answer(b'4;ext=1\r\n{"id\r\n5\r\n": 5}\r\n0\r\nX: y\r\n\r\n', headers=chunked, length=False),
        answer(gzip.compress(b'{"id": 5}'), headers=[("Content-Encoding", "gzip")]),
        [answer({"id": 5})[:-5], Wait(0.05), answer({"id": 5})[-5:]],
        answer({"id": 5}, status=404),
        answer({"id": 5}),
    ]
    async with scripted([*answers]) as server, client(server.base) as asking:
        found = [await asking.get_file(5) for _ in answers]
        assert [getattr(one, "raw", None) == b'{"id": 5}' for one in found] == [1, 0, 1, 1, 1, 1, 0, 1]
        assert (server.connections, dict(asking.stats.error_kinds)) == (1, {})


@pytest.mark.parametrize(
    "steps",
    [
        [answer({"id": 5}), Close()],
        [answer({"id": 5}, headers=[("Connection", "close")])],
        [answer({"id": 5}, length=False), Close()],
    ],
    ids=["closed", "announced", "ended by close"],
)
async def test_a_closed_connection_is_not_used_again(steps: list[Any], client: Make) -> None:
    """A connection that the service has closed, or is about to close, costs no attempt."""
    async with scripted([steps, answer({"id": 5})]) as server, client(server.base) as asking:
        for _ in range(2):
            assert await asking.get_file(5) == Detail(5, None, None, b'{"id": 5}')
            await asyncio.sleep(0.05)
        assert (server.connections, dict(asking.stats.error_kinds)) == (2, {})


@pytest.mark.parametrize("seconds", [0.0, 0.02])
async def test_an_answer_that_nobody_asked_for(seconds: float, client: Make) -> None:
    """A second answer to one request, at once or later, is never the answer to the next request."""

    def script(asked: Asked) -> list[Any]:
        foreign = answer({"id": 6, "text": "foreign"})
        return [echo(asked), Wait(seconds), foreign] if asked.path.endswith("/5") else [echo(asked)]

    async with scripted(script) as server, client(server.base) as asking:
        await asking.get_file(5)
        await asyncio.sleep(0.05)
        found = await asking.get_file(6)
        assert isinstance(found, Detail)
        assert b"foreign" not in found.raw
        assert dict(asking.stats.error_kinds) == {}


async def test_a_connection_with_a_rest_is_not_used_again(client: Make) -> None:
    """A request that was cancelled, and an error page that was not read to its end, leave no connection behind."""
    page = b"<html>" + b"x" * 1_000_000

    def script(asked: Asked) -> list[Any]:
        if asked.path.endswith("/5"):
            return [answer({"id": 5})[:-2], Wait(30)]
        return [echo(asked)] if len(server.asked) > 2 else [answer(page, status=500)]

    async with scripted(script) as server, client(server.base) as asking:
        task = asyncio.ensure_future(asking.get_file(5))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert isinstance(await asking.get_file(6), Detail)
        assert (server.connections, dict(asking.stats.error_kinds)) == (3, {"status-500": 1})


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


@every(("wanted", "expected"), [(512, 128), (100, 100)])
def test_open_files_bound_the_connections(wanted: int, expected: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Under `ulimit -n 256` at most 128 requests are in flight, and a log event says so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        settings = Settings(base_url="http://127.0.0.1:9", max_concurrency=wanted)
        assert create_client(settings, "token-of-tests").options.max_concurrency == expected
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ("concurrency.limited" in "".join(capfd.readouterr())) == (expected == 128)
