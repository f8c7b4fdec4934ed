"""The rate limiter: slots, ceilings, pauses and what is learned, alone and with the client against the service."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.client.calls import ClientOptions
from pipeline.client.client import Client
from pipeline.client.limit_search import INITIAL_CONCURRENCY
from pipeline.client.rate_limiter import LearnedLimits, RateLimiter
from pipeline.emulator import Emulator
from pipeline.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.virtual_time
WORKERS: Final = 16


async def get_pass_times(limiter: RateLimiter, requests: int, seconds: float = 0.0) -> dict[int, float]:
    """Let requests of some seconds through a limiter, and return when each was sent, in the order sent."""
    loop, times = asyncio.get_running_loop(), dict[int, float]()

    async def ask(number: int) -> None:
        async with limiter:
            times[number] = loop.time()
            await asyncio.sleep(seconds)

    await asyncio.gather(*(ask(number) for number in range(requests)))
    return times


@pytest.mark.parametrize(("max_rate", "max_concurrency"), [(50.0, 4), (10.0, 512)])
async def test_hard_ceilings_hold_in_order_of_arrival(max_rate: float, max_concurrency: int) -> None:
    """Neither ceiling is exceeded, both are used, and requests are sent in the order in which they arrived."""
    limiter = RateLimiter(max_rate=max_rate, max_concurrency=max_concurrency)
    times = await get_pass_times(limiter, 200, 0.01)
    assert list(times) == list(range(200))
    assert max(times.values()) == pytest.approx(199 / max_rate, rel=0.1)
    assert limiter.state.limited_by == "ceiling"


async def test_initial_concurrency_is_small() -> None:
    """At first only a few requests are in flight; cancelling them frees their slots."""
    limiter = RateLimiter()
    asking = asyncio.ensure_future(get_pass_times(limiter, 100, 10.0))
    await asyncio.sleep(1)
    assert (limiter.state.in_flight, limiter.state.waiting) == (INITIAL_CONCURRENCY, 100 - INITIAL_CONCURRENCY)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert (limiter.state.in_flight, limiter.state.waiting) == (0, 0)


async def test_429s_of_one_burst_count_once() -> None:
    """Answers to requests that were sent before the decrease do not decrease the rate again."""
    limiter = RateLimiter(learned=LearnedLimits(100.0, 64))
    await get_pass_times(limiter, 200)
    assert limiter.state.rate is not None
    before, now = limiter._search.rate, limiter._clock()
    limiter.on_throttle(1.0, started=now - 0.1)
    for number in range(63):
        limiter.on_throttle(1.0, started=now - 0.1 + number / 1000)
    assert limiter.state.pause_remaining_seconds == pytest.approx(1.0, abs=0.01)
    assert limiter._search.rate == before, "what got through is measured when the pause is over, once"


async def test_a_refused_token_fails_all_requests() -> None:
    """Waiting and later requests get the authentication error at once."""
    limiter = RateLimiter(max_concurrency=1)
    first, *others = [asyncio.ensure_future(get_pass_times(limiter, 1, 1.0)) for _ in range(10)]
    await asyncio.sleep(0.5)
    limiter.fail_all(AuthenticationError("no"))
    results = await asyncio.gather(*others, return_exceptions=True)
    assert {type(result) for result in results} == {AuthenticationError}
    assert asyncio.get_running_loop().time() == pytest.approx(0.5, abs=0.001)
    await first
    with pytest.raises(AuthenticationError):
        await get_pass_times(limiter, 1)


async def test_slots_of_cancelled_waiters_are_freed() -> None:
    """A waiter that is cancelled when it gets its slot frees the slot."""
    limiter, done = RateLimiter(max_concurrency=1), list[int]()

    async def ask(number: int) -> None:
        async with limiter:
            await asyncio.sleep(1)
            done.append(number)
        if number == 0:
            second.cancel()  # its place was given to it just now, and it has not woken yet

    first, second, third = [asyncio.ensure_future(ask(number)) for number in range(3)]
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert done == [0, 2]
    assert limiter.state.in_flight == 0


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


def create_client(emulator: Emulator, learned: LearnedLimits | None = None) -> Client:
    """Return a client with its own rate limiter."""
    limiter = RateLimiter(max_concurrency=WORKERS, learned=learned)
    options = ClientOptions(max_concurrency=WORKERS)
    return Client(emulator.base_url, emulator.token, options=options, rate_limiter=limiter)


async def test_a_limit_that_changes_is_learned() -> None:
    """The rate follows a limit that is unknown and then lowered, with few 429s after the start."""
    async with Emulator(30, seed=4) as emulator, create_client(emulator) as client:
        emulator.set_faults(rate_limit=150.0, retry_after="absent", latency_ms=20)
        await fetch_files(emulator, client, 1_000)
        assert client.rate_limiter.learned.rate == pytest.approx(150.0, rel=0.2)
        assert emulator.statuses[429] <= 0.1 * emulator.requests
        emulator.set_faults(rate_limit=40.0, rate_burst=10.0)
        before, limiter = emulator.statuses[429], client.rate_limiter
        got = await fetch_files(emulator, client, 600, until=lambda: (limiter.learned.rate or 0.0) < 55)
        assert got < 600, "it never came down"
        assert emulator.statuses[429] - before <= 3 * WORKERS
        assert emulator.statuses[429] == client.stats.throttled


async def test_learned_limits_are_reused() -> None:
    """A client that starts with learned limits uses nine tenths of the rate, with one 429 in a hundred at most."""
    async with Emulator(30, seed=4) as emulator, create_client(emulator, LearnedLimits(285.0, 8)) as client:
        emulator.set_faults(rate_limit=300.0, rate_burst=60.0, latency_ms=20)
        await fetch_files(emulator, client, 400)
        assert emulator.statuses[429] <= 4
        assert client.rate_limiter.learned.rate == pytest.approx(300, rel=0.2)
        assert asyncio.get_running_loop().time() <= 400 / (0.9 * 300)


@pytest.mark.parametrize(
    ("form", "seconds", "pause"),
    [("seconds", 600, 600.0), ("http-date", 600, 600.0), ("huge", 1, 900.0), ("absent", 1, 0.0), ("past-date", 1, 0.0)],
)
async def test_one_429_pauses_all_workers(form: str, seconds: int, pause: float) -> None:
    """After one 429 no worker sends a request until exactly `Retry-After`, or its maximum, is over."""
    async with Emulator(30, seed=4) as emulator, create_client(emulator, LearnedLimits(None, WORKERS)) as client:
        emulator.set_faults(retry_after=form, retry_after_seconds=seconds, latency_ms=20)
        emulator.script("429", skip=100)
        times: list[float] = []
        emulator.on_request = lambda _: times.append(asyncio.get_running_loop().time())
        await fetch_files(emulator, client, 200)
        assert client.stats.throttled == emulator.statuses[429] == 1
        assert max(later - former for former, later in pairwise(times)) == pytest.approx(pause, abs=0.05)
