"""The rate limiter in virtual time, against every kind of limit."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.client.concurrency_search import INITIAL_CONCURRENCY
from pipeline.client.rate_limiter import LearnedLimits, RateLimiter
from pipeline.client.rate_search import AdaptiveRate
from pipeline.errors import AuthenticationError
from tests.client.rate_limit_models import (
    AnswerCounts,
    Bucket,
    Course,
    FixedWindow,
    Limit,
    Simulation,
    SlidingWindow,
    drive,
)
from tests.rows import every
from tests.soaking import SOAKING
from tests.virtual_time import run_virtually

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS: dict[str, Callable[[], Limit]] = {
    "bucket of one second": Bucket,
    "bucket of ten seconds": lambda: Bucket(10.0),
    "calendar seconds": FixedWindow,
    "sliding second": SlidingWindow,
}


def run(limits: dict[str, Any] | None = None, **options: Any) -> tuple[AnswerCounts, RateLimiter]:
    """Run a new limiter and return the answers and the limiter."""

    async def main() -> tuple[AnswerCounts, RateLimiter]:
        limiter = RateLimiter(clock=asyncio.get_running_loop().time, **(limits or {}))
        return await drive(limiter, **{"limit": None, "rate": lambda _: 0.0, "seconds": 60.0, **options}), limiter

    return run_virtually(main())


@pytest.mark.parametrize(("name", "retry_after"), [*zip(LIMITS, (None, 1.0, 1.0, None), strict=True)])
def test_an_unknown_limit_is_found(name: str, retry_after: float | None) -> None:
    """After ten seconds nine tenths of the allowed rate are used; about one answer in a hundred is a 429."""
    counts, limiter = run(
        limit=LIMITS[name](), rate=lambda _: 200.0, warm_up=10.0, retry_after=retry_after, latency=0.02
    )
    assert counts.share(200.0 * 50) >= 0.9
    assert counts.refused / (counts.good + counts.refused) < 0.01
    assert limiter.state.limited_by == "server limit"
    assert limiter.learned.rate == pytest.approx(200.0, rel=0.35)


@every(("retry_after", "least"), [(None, 0.88), ("accurate", 0.91), (1.0, 0.83)])
def test_a_small_bucket_is_found_in_the_first_minute(retry_after: float | str | None, least: float) -> None:
    """A bucket of 20 hides 200 a second: nine tenths are used after ten seconds, and most of the first minute."""
    minute = Course(60.0, lambda _: 200.0, ((0.0, 10.0),))
    simulation = Simulation(lambda clock: RateLimiter(clock=clock), Bucket(0.1), minute, retry_after=retry_after)
    counts = simulation.run()
    assert counts.share(minute.allowed) >= 0.9
    assert counts.good >= least * 200 * 60
    assert counts.refused < 0.01 * counts.good


@every("name", LIMITS)
def test_learned_limits_need_no_search(name: str) -> None:
    """A run that starts with the learned rate uses nine tenths of the limit from its first second, with few 429s."""
    learned = LearnedLimits(rate=194.0, concurrency=16)
    limit_course = Course(60.0, lambda _: 200.0, ())
    counts = Simulation(
        lambda clock: RateLimiter(clock=clock, learned=learned), LIMITS[name](), limit_course, retry_after=1.0
    ).run()
    assert counts.good >= 0.9 * 200 * 60
    assert counts.refused < 0.004 * counts.good


def test_a_low_learned_rate_is_left_behind_by_short_runs() -> None:
    """After a disturbance short runs become faster again, although each begins with what the one before learned."""
    learned, seconds = LearnedLimits(0.5, 16), []
    for _ in range(3):
        counts, limiter = run({"learned": learned}, seconds=1e5, total=14)
        learned = limiter.learned
        seconds.append(counts.seconds)
    assert seconds[0] < 60  # at 0.5 requests per second the requests of each run take 150 s
    assert seconds[2] < seconds[1] < seconds[0] / 4


def course(kind: str, rate: float, after: float) -> Course:
    """Return a course whose limit is constant, halved, raised, or drifts, with `after` seconds after each change."""
    if kind == "stays":
        return Course(70.0, lambda _: rate, ((0.0, 10.0),))
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


@pytest.mark.parametrize(
    ("name", "kind", "retry_after"), [case for *case, is_usual in CHANGES if is_usual or SOAKING], ids=str
)
def test_a_changing_limit_is_followed(name: str, kind: str, retry_after: float | str | None) -> None:
    """Nine tenths of the allowed rate are used however the limit changes; under one answer in a hundred is a 429."""
    limit_course = course(kind, 200.0, 35.0 if retry_after == 1.0 else 15.0)
    simulation = Simulation(
        lambda clock: RateLimiter(clock=clock), LIMITS[name](), limit_course, retry_after=retry_after, seed=5
    )
    counts = simulation.run()
    # A window gives nothing back for the second that a 429 costs. Each attempt must then last 20 seconds, so a
    # limit that keeps moving is followed from afar.
    least = 0.85 if kind == "drifts" and retry_after == 1.0 and "bucket" not in name else 0.9
    assert counts.share(limit_course.allowed) >= least
    assert counts.refused < 0.01 * (counts.good + counts.refused)


@pytest.mark.parametrize("rate", [20.0, 2000.0])
@pytest.mark.parametrize("name", LIMITS)
def test_slow_and_fast_limits_are_used(name: str, rate: float) -> None:
    """Limits of 20 and of 2,000 a second are used to nine tenths; of 5,000 answers at 20 a second one in 80 is a 429.

    One in a hundred but for a bucket of ten seconds, which hands out 200 at once and then refuses all that is out.
    """
    limit_course = Course(250.0 if rate < 100 else 20.0, lambda _: rate, ((0.0, 10.0),))
    counts = Simulation(lambda clock: RateLimiter(clock=clock), LIMITS[name](), limit_course, latency=0.01).run()
    assert counts.share(limit_course.allowed) >= 0.9
    assert counts.refused < (0.0125 if name == "bucket of ten seconds" else 0.01) * (counts.good + counts.refused)


def test_a_limit_without_any_burst_is_used() -> None:
    """With strict spacing nine tenths of the allowed rate are used."""
    limit_course = Course(250.0, lambda _: 20.0, ((0.0, 10.0),))
    counts = Simulation(lambda clock: RateLimiter(clock=clock), Bucket(0.0), limit_course, latency=0.005).run()
    assert counts.share(limit_course.allowed) >= 0.9
    assert counts.refused < 0.01 * counts.good


def test_429s_in_a_row_decrease_the_rate_fast() -> None:
    """An empty bucket after a burst causes few more 429s than requests were in flight."""
    limit_course = Course(30.0, lambda _: 200.0, ((0.0, 10.0),))
    simulation = Simulation(lambda clock: RateLimiter(clock=clock), Bucket(10.0), limit_course, retry_after="accurate")
    assert simulation.run().refused < 200


@every(("requests", "least"), [(1_000, 0.84), (3_000, 0.94), (5_000, 0.96)])
def test_a_slow_service_without_a_limit_is_used_fully(requests: int, least: float) -> None:
    """Without a limit the time is close to requests x latency / concurrency, from a cold start."""
    counts, limiter = run(seconds=1e6, total=requests, latency=0.1)
    assert requests * 0.1 / 64 / counts.seconds >= least
    assert limiter.state.concurrency == 64
    assert limiter.learned.rate is None


def test_full_concurrency_takes_few_round_trips() -> None:
    """A cold start against a slow service reaches full concurrency within three round trips."""
    _, limiter = run(seconds=0.3, latency=0.1)
    assert limiter.state.concurrency == 64


def test_a_queueing_service_is_not_overloaded() -> None:
    """Growing latency ends the fast growth: with four workers in the service concurrency stays below 64."""
    counts, limiter = run(capacity=4, latency=0.1, seconds=10.0)
    assert counts.good >= 0.95 * 10 * 4 / 0.1
    assert limiter.state.concurrency < 64


def test_concurrency_stops_growing_without_a_gain() -> None:
    """Against a service with four workers concurrency stays near four, without a loss of throughput."""
    counts, limiter = run(capacity=4, latency=0.01, seconds=20.0)
    assert counts.good >= 0.98 * 20 * 4 / 0.01
    assert limiter.state.concurrency <= 16
    assert limiter.state.limited_by == "latency"


@every("limit", [None, Bucket()])
def test_hard_ceilings_hold(limit: Limit | None) -> None:
    """Neither ceiling is exceeded, whatever the service allows."""
    counts, limiter = run(
        {"max_rate": 50.0, "max_concurrency": 4}, limit=limit, rate=lambda _: 500.0, seconds=20.0, latency=0.01
    )
    assert 45 * counts.seconds <= counts.good <= 50 * counts.seconds + 2
    assert limiter.state.concurrency <= 4
    assert limiter.state.limited_by == "ceiling"


def test_a_service_that_hangs_is_not_called_its_rate_limit() -> None:
    """Requests that wait for answers, not for the rate, are limited by latency, also under a known rate."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        limiter = RateLimiter(clock=loop.time, learned=LearnedLimits(200.0, 8))
        await drive(limiter, limit=Bucket(), rate=lambda _: 200.0, seconds=5.0)
        reasons = [limiter.state.limited_by]
        await drive(limiter, limit=None, rate=lambda _: 0.0, seconds=loop.time() + 30.0, latency=20.0)
        assert [*reasons, limiter.state.limited_by] == ["server limit", "latency"]

    run_virtually(main())


def test_initial_concurrency_is_small() -> None:
    """At first only a few requests are in flight."""

    async def main() -> int:
        limiter = RateLimiter(clock=asyncio.get_running_loop().time)
        out = 0

        async def ask() -> None:
            nonlocal out
            async with limiter.slot():
                out += 1
                await asyncio.sleep(10)

        tasks = [asyncio.ensure_future(ask()) for _ in range(100)]
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (limiter.state.in_flight, limiter.state.waiting) == (0, 0)
        return out

    assert run_virtually(main()) == INITIAL_CONCURRENCY


async def _pause_of(retry_after: float | None) -> float:
    loop = asyncio.get_running_loop()
    limiter = RateLimiter(clock=loop.time)
    limiter.on_throttle(retry_after, started=0.0)
    left: list[float] = []

    async def ask() -> None:
        async with limiter.slot():
            left.append(loop.time())

    await asyncio.gather(*(ask() for _ in range(5)))
    return min(left)


@every(("retry_after", "pause"), [(30.0, 30.0), (0.0, 0.0), (1e6, 900.0), (None, 1.0)])
def test_one_429_pauses_all_requests(retry_after: float | None, pause: float) -> None:
    """All requests wait for `Retry-After` up to its maximum; without it all pause briefly."""
    assert run_virtually(_pause_of(retry_after)) == pytest.approx(pause, abs=0.01)


def test_429s_of_one_burst_count_once() -> None:
    """Answers to requests that were sent before the decrease do not decrease the rate again."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        limiter = RateLimiter(clock=loop.time, learned=LearnedLimits(100.0, 64))
        await asyncio.sleep(10)
        limiter.on_throttle(1.0, started=9.9)
        once = limiter.state.rate
        for number in range(63):
            limiter.on_throttle(1.0, started=9.9 + number / 1000)
        assert limiter.state.rate == once
        assert once is not None
        assert once > 85

    run_virtually(main())


def test_an_overload_halves_concurrency() -> None:
    """A 503 halves the concurrency once and sets no rate; concurrency recovers afterwards."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        limiter = RateLimiter(clock=loop.time, learned=LearnedLimits(None, 64))
        await asyncio.sleep(1)
        for _ in range(64):
            limiter.on_throttle(None, started=0.5, overload=True)
        assert limiter.state.concurrency == 32
        assert limiter.state.rate is None
        await drive(limiter, limit=None, rate=lambda _: 0.0, seconds=15.0, latency=0.1)
        assert limiter.state.concurrency == 64

    run_virtually(main())


def test_a_refused_token_fails_all_requests() -> None:
    """Waiting and later requests get the authentication error."""

    async def main() -> None:
        limiter = RateLimiter(max_concurrency=1, clock=asyncio.get_running_loop().time)

        async def ask() -> None:
            async with limiter.slot():
                await asyncio.sleep(1)

        first, *others = [asyncio.ensure_future(ask()) for _ in range(10)]
        await asyncio.sleep(0.5)
        limiter.fail_all(AuthenticationError("no"))
        results = await asyncio.gather(*others, return_exceptions=True)
        assert all(isinstance(result, AuthenticationError) for result in results)
        assert asyncio.get_running_loop().time() == 0.5
        await first
        with pytest.raises(AuthenticationError):
            await ask()

    run_virtually(main())


def test_slots_of_cancelled_waiters_are_freed() -> None:
    """A waiter that is cancelled when it gets its slot frees the slot."""

    async def main() -> None:
        limiter = RateLimiter(max_concurrency=1, clock=asyncio.get_running_loop().time)
        done: list[int] = []

        async def ask(number: int) -> None:
            async with limiter.slot():
                await asyncio.sleep(1)
                done.append(number)
            if number == 0:
                second.cancel()  # its place was given to it just now, and it has not woken yet

        first, second, third = [asyncio.ensure_future(ask(number)) for number in range(3)]
        await asyncio.gather(first, second, third, return_exceptions=True)
        assert done == [0, 2]
        assert limiter.state.in_flight == 0

    run_virtually(main())


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


def test_first_come_first_served() -> None:
    """Requests are sent in the order in which they arrived."""

    async def main() -> None:
        limiter = RateLimiter(max_rate=10.0, clock=asyncio.get_running_loop().time)
        left: list[int] = []

        async def ask(number: int) -> None:
            async with limiter.slot():
                left.append(number)

        await asyncio.gather(*(ask(number) for number in range(50)))
        assert left == list(range(50))
        assert asyncio.get_running_loop().time() == pytest.approx(4.9, abs=0.3)

    run_virtually(main())
