"""The limiter with the real client against the emulated service's limit, which changes during the run.

What is counted are requests and refusals, never seconds: how much of a limit is used is `make bench`'s to say.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.service.client import Client
from pipeline.service.options import ClientOptions
from pipeline.service.pace import LearnedPace, Pacer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SEED = 4
WORKERS = 16


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    """A small service."""
    async with Emulator(30, seed=SEED) as emulator:
        yield emulator


async def told(emulator: Emulator, **wish: Any) -> None:
    """Change the running service by its control route, as a person would."""
    reader, writer = await asyncio.open_connection(emulator.host, emulator.port)
    body = json.dumps(wish).encode()
    head = f"POST /_emulator/faults HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    assert b" 200 " in (await reader.read()).partition(b"\r\n")[0]
    writer.close()


async def fetched(client: Client, ids: list[int], count: int, *, until: Callable[[], bool] = lambda: False) -> int:
    """Let workers get files until there are `count` answers; how many there were."""
    got = 0

    async def work(number: int) -> None:
        nonlocal got
        while got < count and not until():
            await client.get(ids[(got + number) % len(ids)])
            got += 1

    await asyncio.gather(*(work(number) for number in range(WORKERS)))
    return got


def pacing(emulator: Emulator, learned: LearnedPace | None = None, cap: float = 900.0) -> Client:
    """A client with a pacer of its own."""
    pacer = Pacer(max_concurrency=WORKERS, learned=learned, retry_after_cap=cap)
    options = ClientOptions(max_concurrency=WORKERS, retry_after_cap=cap)
    return Client(emulator.base_url, emulator.token, options=options, pacer=pacer)


async def test_a_limit_that_changes_is_learned(emulator: Emulator) -> None:
    """Under a limit that is unknown, then lowered, the pace follows, and refusals are few beside those of the start."""
    ids = emulator.world.keys()
    await told(emulator, rate_limit=300.0, retry_after="absent")
    async with pacing(emulator) as client:
        await fetched(client, ids, 500)
        unknown = client.pacer.learned.rate
        assert unknown is not None
        assert unknown < 500
        assert emulator.statuses[429] <= 3 * WORKERS
        await told(emulator, rate_limit=80.0, rate_burst=20.0)
        before, pacer = emulator.statuses[429], client.pacer
        got = await fetched(client, ids, 600, until=lambda: (pacer.learned.rate or 0.0) < 110)
        assert got < 600, "it never came down"
        assert emulator.statuses[429] - before <= 2 * WORKERS
        assert emulator.statuses[429] == client.counts.throttled


async def test_what_was_learned_is_kept(emulator: Emulator) -> None:
    """A client that begins with the pace another one learned is refused less than once in a hundred requests."""
    await told(emulator, rate_limit=300.0, rate_burst=60.0)
    async with pacing(emulator, LearnedPace(285.0, 8)) as client:
        await fetched(client, emulator.world.keys(), 400)
        assert emulator.statuses[429] < 4
        assert client.pacer.learned.rate == pytest.approx(285, rel=0.15)


@pytest.mark.parametrize(
    ("form", "seconds", "cap", "least", "most"),
    [
        ("seconds", 1, 900.0, 0.5, 1.0),
        ("http-date", 2, 900.0, 0.2, 2.0),
        ("huge", 1, 0.8, 0.5, 0.8),
        ("absent", 1, 900.0, 0.1, 1.0),
        ("garbage", 1, 900.0, 0.1, 1.0),
        ("negative", 1, 900.0, 0.1, 1.0),
        ("past-date", 1, 900.0, 0.0, 0.1),
    ],
)
async def test_one_429_slows_everybody(
    emulator: Emulator, form: str, seconds: int, cap: float, least: float, most: float
) -> None:
    """After one 429 none of the workers sends anything until the time that it told, in whatever form, is over."""
    ids = emulator.world.keys()
    async with pacing(emulator, LearnedPace(None, WORKERS), cap) as client:
        await fetched(client, ids, 50)
        await told(emulator, retry_after=form, retry_after_seconds=seconds, script=[{"kind": "429", "skip": 20}])
        resumed: list[bool] = []
        rest = asyncio.ensure_future(fetched(client, ids, 10**9, until=lambda: bool(resumed)))
        while not client.counts.throttled:
            await asyncio.sleep(0)
        paused = client.pacer.state.paused_for
        assert least <= paused <= most
        while client.pacer.state.in_flight:
            await asyncio.sleep(0)
        sent = emulator.requests
        while client.pacer.state.paused_for > 0:
            assert emulator.requests == sent
            await asyncio.sleep(0.005)
        resumed.append(True)
        await rest
        assert client.counts.throttled == emulator.statuses[429] == 1
        assert emulator.requests > sent
