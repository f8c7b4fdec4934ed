"""The limiter with the real client against the emulated service's limit, which changes during the run.

What is counted are requests and refusals, never seconds: how much of a limit is used is `make bench`'s to say.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.client.client import Client
from pipeline.client.options import ClientOptions
from pipeline.client.rate_limiter import LearnedLimits, RateLimiter
from pipeline.emulator import Emulator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SEED = 4
WORKERS = 16


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    """Run a small service."""
    async with Emulator(30, seed=SEED) as emulator:
        yield emulator


async def set_faults(emulator: Emulator, **faults: Any) -> None:
    """Change the running service by its control route."""
    reader, writer = await asyncio.open_connection("127.0.0.1", emulator.port)
    body = json.dumps(faults).encode()
    head = f"POST /_emulator/faults HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    assert b" 200 " in (await reader.read()).partition(b"\r\n")[0]
    writer.close()


async def fetch_files(client: Client, ids: list[int], count: int, *, until: Callable[[], bool] = lambda: False) -> int:
    """Fetch files until there are `count` answers, and return the number of answers."""
    got = 0

    async def work(number: int) -> None:
        nonlocal got
        while got < count and not until():
            await client.get_file(ids[(got + number) % len(ids)])
            got += 1

    await asyncio.gather(*(work(number) for number in range(WORKERS)))
    return got


def create_client(emulator: Emulator, learned: LearnedLimits | None = None, cap: float = 900.0) -> Client:
    """Return a client with its own rate limiter."""
    limiter = RateLimiter(max_concurrency=WORKERS, learned=learned, max_retry_after_seconds=cap)
    options = ClientOptions(max_concurrency=WORKERS, max_retry_after_seconds=cap)
    return Client(emulator.base_url, emulator.token, options=options, rate_limiter=limiter)


async def test_a_limit_that_changes_is_learned(emulator: Emulator) -> None:
    """The rate follows a limit that is unknown and then lowered, with few 429s after the start."""
    ids = emulator.world.keys()
    await set_faults(emulator, rate_limit=150.0, retry_after="absent")  # a slow machine reaches it, too
    async with create_client(emulator) as client:
        await fetch_files(client, ids, 500)
        unknown = client.rate_limiter.learned.rate
        assert unknown is not None
        assert unknown < 250
        assert emulator.statuses[429] <= 3 * WORKERS
        await set_faults(emulator, rate_limit=40.0, rate_burst=10.0)
        before, limiter = emulator.statuses[429], client.rate_limiter
        got = await fetch_files(client, ids, 600, until=lambda: (limiter.learned.rate or 0.0) < 55)
        assert got < 600, "it never came down"
        assert emulator.statuses[429] - before <= 2 * WORKERS
        assert emulator.statuses[429] == client.stats.throttled


async def test_learned_limits_are_reused(emulator: Emulator) -> None:
    """A client that starts with learned limits gets less than one 429 in a hundred requests."""
    await set_faults(emulator, rate_limit=300.0, rate_burst=60.0)
    async with create_client(emulator, LearnedLimits(285.0, 8)) as client:
        await fetch_files(client, emulator.world.keys(), 400)
        assert emulator.statuses[429] < 4
        assert client.rate_limiter.learned.rate == pytest.approx(285, rel=0.15)


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
async def test_one_429_pauses_all_workers(
    emulator: Emulator, form: str, seconds: int, cap: float, least: float, most: float
) -> None:
    """After one 429 no worker sends a request until `Retry-After` is over, in either form."""
    ids = emulator.world.keys()
    async with create_client(emulator, LearnedLimits(None, WORKERS), cap) as client:
        await fetch_files(client, ids, 50)
        await set_faults(emulator, retry_after=form, retry_after_seconds=seconds, script=[{"kind": "429", "skip": 20}])
        resumed: list[bool] = []
        rest = asyncio.ensure_future(fetch_files(client, ids, 10**9, until=lambda: bool(resumed)))
        while not client.stats.throttled:
            await asyncio.sleep(0)
        paused = client.rate_limiter.state.pause_remaining_seconds
        assert least <= paused <= most
        while client.rate_limiter.state.in_flight:
            await asyncio.sleep(0)
        sent = emulator.requests
        while client.rate_limiter.state.pause_remaining_seconds > 0:
            assert emulator.requests == sent
            await asyncio.sleep(0.005)
        resumed.append(True)
        await rest
        assert client.stats.throttled == emulator.statuses[429] == 1
        assert emulator.requests > sent
