"""The limiter with the real client against the emulated service's limit, in virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from pipeline.client.client import Client
from pipeline.client.options import ClientOptions
from pipeline.client.rate_limiter import LearnedLimits, RateLimiter
from pipeline.emulator import Emulator

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.virtual_time
SEED = 4
WORKERS = 16


async def fetch_files(
    emulator: Emulator, client: Client, count: int, *, until: Callable[[], bool] = lambda: False
) -> int:
    """Fetch files until there are `count` answers, and return the number of answers."""
    ids, got = emulator.world.keys(), 0

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


async def test_a_limit_that_changes_is_learned() -> None:
    """The rate follows a limit that is unknown and then lowered, with few 429s after the start."""
    async with Emulator(30, seed=SEED) as emulator, create_client(emulator) as client:
        emulator.set_faults(rate_limit=150.0, retry_after="absent", latency_ms=20)
        await fetch_files(emulator, client, 500)
        assert client.rate_limiter.learned.rate == pytest.approx(200.0, abs=50.0)  # with what the bucket had at first
        assert emulator.statuses[429] <= 3 * WORKERS
        emulator.set_faults(rate_limit=40.0, rate_burst=10.0)
        before, limiter = emulator.statuses[429], client.rate_limiter
        got = await fetch_files(emulator, client, 600, until=lambda: (limiter.learned.rate or 0.0) < 55)
        assert got < 600, "it never came down"
        assert emulator.statuses[429] - before <= 2 * WORKERS
        assert emulator.statuses[429] == client.stats.throttled


async def test_learned_limits_are_reused() -> None:
    """A client that starts with learned limits uses nine tenths of the rate, with no 429."""
    async with Emulator(30, seed=SEED) as emulator, create_client(emulator, LearnedLimits(285.0, 8)) as client:
        emulator.set_faults(rate_limit=300.0, rate_burst=60.0, latency_ms=20)
        await fetch_files(emulator, client, 400)
        assert emulator.statuses[429] == 0
        assert client.rate_limiter.learned.rate == pytest.approx(285, rel=0.15)
        assert asyncio.get_running_loop().time() <= 400 / (0.9 * 300)


@pytest.mark.parametrize(
    ("form", "seconds", "cap", "pause"),
    [
        ("seconds", 600, 900.0, 600.0),
        ("http-date", 600, 900.0, 600.0),
        ("huge", 1, 900.0, 900.0),
        ("absent", 1, 900.0, 1.0),
        ("garbage", 1, 900.0, 1.0),
        ("negative", 1, 900.0, 1.0),
        ("past-date", 1, 900.0, 0.0),
    ],
)
async def test_one_429_pauses_all_workers(form: str, seconds: int, cap: float, pause: float) -> None:
    """After one 429 no worker sends a request until exactly `Retry-After` is over, in either form."""
    learned = LearnedLimits(None, WORKERS)
    async with Emulator(30, seed=SEED) as emulator, create_client(emulator, learned, cap) as client:
        emulator.set_faults(retry_after=form, retry_after_seconds=seconds, latency_ms=20)
        emulator.script("429", skip=100)
        times: list[float] = []
        emulator.on_request = lambda _: times.append(asyncio.get_running_loop().time())
        await fetch_files(emulator, client, 200)
        assert client.stats.throttled == emulator.statuses[429] == 1
        assert max(later - former for former, later in pairwise(times)) == pytest.approx(pause, abs=0.05)
