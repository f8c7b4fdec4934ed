"""The rate limiter against every kind of limit: in a simulation, and with the client against the emulated service."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.client.calls import ClientOptions
from pipeline.client.client import Client
from pipeline.client.concurrency_search import INITIAL_CONCURRENCY
from pipeline.client.rate_limiter import LearnedLimits, RateLimiter
from pipeline.client.rate_search import AdaptiveRate
from pipeline.emulator import Emulator
from pipeline.errors import AuthenticationError
from tests.client.rate_limit_models import Bucket, Course, Limit, Simulation, Window
from tests.rows import every
from tests.soaking import SOAKING

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.virtual_time
WORKERS: Final = 16
LIMITS: Final[dict[str, Callable[[], Limit]]] = {
    "bucket of one second": Bucket,
    "bucket of ten seconds": lambda: Bucket(10.0),
    "calendar seconds": lambda: Window(is_sliding=False),
    "sliding second": Window,
}


def steady(rate: float, seconds: float, warm_up: float = 10.0) -> Course:
    """Return a course with one rate, measured after the warm-up."""
    return Course(seconds, lambda _: rate, ((0.0, warm_up),))


@every(("name", "retry_after"), zip(LIMITS, (None, 1.0, 1.0, None), strict=True))
def test_a_limit_is_found_and_learned(name: str, retry_after: float | None) -> None:
    """After ten seconds nine tenths of a limit are used, in the next run at once; one answer in a hundred is a 429."""
    run = Simulation(steady(200.0, 60.0), LIMITS[name](), retry_after=retry_after)
    assert run.share >= 0.9
    assert run.refused_share < 0.01
    assert run.limiter.state.limited_by == "server limit"
    assert run.limiter.learned.rate == pytest.approx(200.0, rel=0.35)
    learned = {"learned": LearnedLimits(rate=194.0, concurrency=16)}
    run = Simulation(steady(200.0, 60.0, 0.0), LIMITS[name](), retry_after=1.0, options=learned)
    assert run.share >= 0.9
    assert run.refused_share < 0.004


@every(("retry_after", "least"), [(None, 0.88), ("accurate", 0.91), (1.0, 0.83)])
def test_a_small_bucket_is_found_in_the_first_minute(retry_after: float | str | None, least: float) -> None:
    """A bucket of 20 hides 200 a second: nine tenths are used after ten seconds, and most of the first minute."""
    run = Simulation(steady(200.0, 60.0), Bucket(0.1), retry_after=retry_after)
    assert run.share >= 0.9
    assert run.good >= least * 200 * 60
    assert run.refused_share < 0.01


def test_a_low_learned_rate_is_left_behind_by_short_runs() -> None:
    """After a disturbance short runs become faster again, although each begins with what the one before learned."""
    learned, seconds = LearnedLimits(0.5, 16), []
    for _ in range(3):
        run = Simulation(Course(1e5), total=77, options={"learned": learned})
        learned = run.limiter.learned
        seconds.append(run.now)
    assert seconds[0] < 60  # at 0.5 requests per second the requests of each run take 154 s
    assert seconds[2] < seconds[1] < seconds[0] / 4


def course(kind: str, rate: float, after: float) -> Course:
    """Return a course whose limit is constant, halved, raised, or drifts, with `after` seconds after each change."""
    if kind == "stays":
        return steady(rate, 70.0)
    if kind == "drifts":
        return Course(120.0, lambda now: rate * (1 + 0.2 * math.sin(now / 180 * math.tau)), ((0.0, 10.0),))
    factor = {"halved": 0.5, "doubled": 2.0, "tripled": 3.0}[kind]
    return Course(85.0 + after, lambda now: rate if now < 40 else rate * factor, ((0.0, 10.0), (40.0, 40.0 + after)))


CHANGES: Final = [
    (name, kind, retry_after, (first + second + third) % 3 == 0)
    for first, name in enumerate(["bucket of one second", "calendar seconds", "sliding second"])
    for second, kind in enumerate(["stays", "halved", "doubled", "tripled", "drifts"])
    for third, retry_after in enumerate([None, "accurate", 1.0])
]
"""Each pair of limit, change and `Retry-After` is in `make test`, each triple in a soak."""


@every(("name", "kind", "retry_after"), [case for *case, is_usual in CHANGES if is_usual or SOAKING])
def test_a_changing_limit_is_followed(name: str, kind: str, retry_after: float | str | None) -> None:
    """Nine tenths of the allowed rate are used however the limit changes; under one answer in a hundred is a 429."""
    run = Simulation(
        course(kind, 200.0, 35.0 if retry_after == 1.0 else 15.0), LIMITS[name](), retry_after=retry_after, seed=5
    )
    # A window gives nothing back for the second that a 429 costs. Each attempt must then last 20 seconds, so a
    # limit that keeps moving is followed from afar.
    assert run.share >= (0.85 if kind == "drifts" and retry_after == 1.0 and "bucket" not in name else 0.9)
    assert run.refused_share < 0.01


@every(
    ("limit", "rate", "latency", "refused"),
    [
        # A bucket of ten seconds hands out 200 at once and then refuses all that is out.
        *((create, 20.0, 0.01, 0.0125 if "ten" in name else 0.01) for name, create in LIMITS.items()),
        *((create, 2000.0, 0.01, 0.01) for create in LIMITS.values()),
        (lambda: Bucket(0.0), 20.0, 0.005, 0.01),
    ],
)
def test_slow_and_fast_limits_are_used(limit: Callable[[], Limit], rate: float, latency: float, refused: float) -> None:
    """Limits of 20 and of 2,000 a second, and strict spacing, are used to nine tenths; one answer in 80 is a 429."""
    run = Simulation(steady(rate, 250.0 if rate < 100 else 20.0), limit(), latency=lambda _now, _others: latency)
    assert run.share >= 0.9
    assert run.refused_share < refused


def test_429s_in_a_row_decrease_the_rate_fast() -> None:
    """An empty bucket after a burst causes few more 429s than requests were in flight."""
    assert Simulation(steady(200.0, 30.0), Bucket(10.0), retry_after="accurate").refused < 200


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
    await asyncio.sleep(10)
    now = limiter._clock()
    limiter.on_throttle(1.0, started=now - 0.1)
    once = limiter.state.rate or 0.0
    for number in range(63):
        limiter.on_throttle(1.0, started=now - 0.1 + number / 1000)
    assert 85 < once == limiter.state.rate


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


def test_an_unused_rate_does_not_increase() -> None:
    """Successes do not raise the learned rate while no request waits for it, nor immediately after the start."""
    search = AdaptiveRate(learned=100.0)
    for second in range(100):
        search.on_success(1000.0 + second, 0.02)
    assert search.rate == 100.0
    search = AdaptiveRate(learned=100.0)
    search.was_limiting = True
    search.on_success(1000.0, 0.02)
    assert search.rate == 100.0
    search.on_success(1010.0, 0.02)
    assert search.rate == pytest.approx(102.0)


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
    async with Emulator(30, seed=4) as emulator, create_client(emulator, LearnedLimits(285.0, 8)) as client:
        emulator.set_faults(rate_limit=300.0, rate_burst=60.0, latency_ms=20)
        await fetch_files(emulator, client, 400)
        assert emulator.statuses[429] == 0
        assert client.rate_limiter.learned.rate == pytest.approx(285, rel=0.15)
        assert asyncio.get_running_loop().time() <= 400 / (0.9 * 300)


@pytest.mark.parametrize(
    ("form", "seconds", "pause"),
    [("seconds", 600, 600.0), ("http-date", 600, 600.0), ("huge", 1, 900.0), ("absent", 1, 1.0), ("past-date", 1, 0.0)],
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
