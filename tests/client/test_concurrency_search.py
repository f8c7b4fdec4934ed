"""Concurrency, in a simulation: it goes as far as throughput gains from it, and no further."""

from __future__ import annotations

import random
from typing import Any

from pipeline.client.concurrency_search import AdaptiveConcurrency
from pipeline.client.rate_limiter import LearnedLimits, RateLimiter
from tests.client.rate_limit_models import Bucket, Course, Simulation
from tests.rows import every

LATENCY = 0.2


def run(latency: Any = lambda _now, _in_flight: LATENCY, *, seconds: float = 30.0, **options: Any) -> Simulation:
    """Return a run against a service without a rate limit; `latency`: seconds or a function."""
    steady = (lambda _now, _in_flight: latency) if isinstance(latency, float) else latency
    return Simulation(Course(seconds), latency=steady, **options)


def queue(workers: int, latency: float = LATENCY) -> Any:
    """Return the latency of a service that works on some requests at once and queues the others."""
    return lambda _now, in_flight: latency * max(1.0, in_flight / workers)


@every(("requests", "least"), [(1_000, 0.84), (3_000, 0.94), (5_000, 0.96)])
def test_a_slow_service_without_a_limit_is_used_fully(requests: int, least: float) -> None:
    """Without a limit the time is close to requests x latency / concurrency, from a cold start."""
    found = run(0.1, seconds=1e6, total=requests, workers=64)
    assert requests * 0.1 / 64 / found.now >= least
    assert found.limiter.concurrency == 64
    assert found.limiter.learned.rate is None


def test_a_slow_service_gets_all_that_is_allowed() -> None:
    """A service of constant latency gets 64 requests after three round trips, `max_concurrency` within four seconds."""
    found = run(seconds=5.0)
    assert found.changes[-1][1] == 512
    assert found.changes[-1][0] < 4.0
    assert max(limit for at, limit in found.changes if at <= 3.1 * LATENCY) >= 64


@every(("most", "expected"), [(100, 100), (4, 4)])
def test_the_ceiling_holds(most: int, expected: int) -> None:
    """No more than `max_concurrency` requests are in flight, also between two steps, and they are named the reason."""
    found = run(options={"max_concurrency": most})
    assert max(limit for _, limit in found.changes) == found.limiter.concurrency == expected
    assert found.limiter.state.limited_by == "ceiling"


@every(
    ("latency", "fails", "most", "share", "least"),
    [
        # It works on N requests at once and queues the others: at most 1.5 N, for most of the time.
        *((queue(workers), None, int(1.5 * workers), 0.1, 0.81 * workers) for workers in (120, 250)),
        (queue(80), None, 120, 0.1, 0.68 * 80),
        # Latency grows with each request in flight, and has doubled at 128.
        (lambda _now, in_flight: LATENCY * (1 + in_flight / 128), None, 192, 0.1, 0.0),
        # It collapses, or drops connections, beyond some requests: each attempt is short, and they become rare.
        (lambda _now, in_flight: LATENCY if in_flight <= 66 else LATENCY * 3, None, 64, 0.12, 0.9 * 64),
        (lambda _now, _in_flight: LATENCY, lambda _now, in_flight: in_flight > 100, 100, 0.1, 0.9 * 64),
    ],
)
def test_the_limit_stays_near_the_best(latency: Any, fails: Any, most: int, share: float, least: float) -> None:
    """A service is driven beyond its best for a small share of the time, never below 64, and its throughput is used."""
    found = run(latency, seconds=60.0, **({"fails": fails} if fails else {}))
    assert found.share_above(most, 5.0) < share
    assert min(found.limits(5.0)) >= 64
    assert found.good >= least / LATENCY * 60


@every(("latency", "most", "least"), [(0.1, 63, 0.95), (0.01, 16, 0.98)])
def test_a_service_with_few_workers_is_not_overloaded(latency: float, most: int, least: float) -> None:
    """Against four workers concurrency stays small, without a loss of throughput; latency is named the reason."""
    found = run(queue(4, latency), seconds=20.0)
    assert found.good >= least * 20 * 4 / latency
    assert found.limiter.concurrency <= most
    assert found.limiter.state.limited_by == "latency"


def test_growing_latency_takes_the_limit_back() -> None:
    """If answers become slower while the limit is held, it goes back in steps, and returns when they are fast again."""
    found = run(lambda now, in_flight: LATENCY * (max(1.0, in_flight / 70) if 20 <= now < 50 else 1.0), seconds=90.0)
    assert found.limits(20.0)[0] == 512
    assert min(found.limits(20.0, 50.0)) <= 105
    assert found.changes[-1][1] > 200


def test_chance_failures_do_not_stop_the_growth() -> None:
    """One failure in 200 requests is chance: the limit reaches its ceiling."""
    chance = random.Random(3)
    found = run(fails=lambda _now, _in_flight: chance.random() < 0.005)
    assert max(limit for _, limit in found.changes) == 512


@every(("latency", "options"), [(0.02, {}), (LATENCY, {"workers": 64})])
def test_nothing_grows_beyond_64_without_need(latency: float, options: dict[str, Any]) -> None:
    """A service that answers within 50 ms gets no more than 64, nor does one for which no request waits."""
    assert max(limit for _, limit in run(latency, **options).changes) == 64


def test_a_service_that_hangs_is_not_called_its_rate_limit() -> None:
    """Requests that wait for answers, not for the rate, are limited by latency, also under a known rate."""
    learned = LearnedLimits(200.0, 8)
    found = Simulation(
        Course(35.0, lambda _: 200.0),
        Bucket(),
        latency=lambda now, _: 0.02 if now < 5.0 else 20.0,
        workers=64,
        options={"learned": learned},
    )
    assert found.limiter.state.limited_by == "latency"


def saturate(search: AdaptiveConcurrency, start: float, seconds: float, latency: float) -> None:
    """Let a search have answers for some seconds, while requests wait for its limit."""
    now = start
    while now < start + seconds:
        now += latency / search.limit
        search.was_limiting = True
        search.on_success(now, latency, search.limit)


def test_a_step_that_nobody_needs_is_taken_back() -> None:
    """If no request waits any more while a step beyond 64 is measured, the former limit returns."""
    search = AdaptiveConcurrency(0.0, ceiling=144, learned=64)
    saturate(search, 0.0, 0.45, LATENCY)
    assert search.limit == 96
    search.was_limiting = False
    for answer in range(200):
        search.on_success(0.65 + answer / 1_000, LATENCY, 64)
    assert search.limit == 64


def test_refusals_take_back_a_step() -> None:
    """A 429 beyond 64 takes back one step, at 64 none; a 503 halves, and fifteen seconds later that has passed."""
    search = AdaptiveConcurrency(0.0, ceiling=144, learned=64)
    saturate(search, 0.0, 6.0, LATENCY)
    for overload, limit in ((False, 96), (False, 64), (False, 64), (True, 32)):
        search.on_throttle(100.0, 100.0, overload=overload)
        assert search.limit == limit
    saturate(search, 100.0, 15.0, 0.1)
    assert search.limit == 144


@every(("overload", "limit"), [(False, 341), (True, 256)])
def test_refusals_of_one_burst_take_back_one_step(overload: bool, limit: int) -> None:  # noqa: FBT001 - a table
    """Refused requests that were sent before the first refusal take nothing back again; a 503 sets no rate."""
    found = run(seconds=5.0)
    for number in range(300):
        found.limiter.on_throttle(None, started=4.0 + number / 1000, overload=overload)
    assert found.limiter.concurrency == limit
    assert (found.limiter.state.rate is None) is overload


def test_a_rate_limit_keeps_its_share() -> None:
    """A slow service with a rate limit gets nine tenths of it, with few 429s, whatever the concurrency may become."""
    course = Course(120.0, lambda _: 150.0, ((0.0, 20.0),))
    found = Simulation(course, Bucket(), latency=lambda _now, _in_flight: LATENCY)
    assert found.share >= 0.9
    assert found.refused_late < 0.01 * found.good_late


def test_learned_concurrency_is_proven_anew() -> None:
    """A run starts with at most 64 of what an earlier one learned: the service may be another today."""
    assert RateLimiter(learned=LearnedLimits(concurrency=400)).concurrency == 64
    assert RateLimiter(learned=LearnedLimits(concurrency=20)).concurrency == 20
