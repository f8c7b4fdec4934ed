"""Concurrency beyond 64, in virtual time: it goes as far as throughput gains from it, and no further."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from typing import TYPE_CHECKING

from pipeline.client.concurrency_search import AdaptiveConcurrency
from pipeline.client.rate_limiter import LearnedLimits, RateLimiter
from tests.client.rate_limit_models import Bucket, Course, Simulation, drive
from tests.rows import every
from tests.virtual_time import run_virtually

if TYPE_CHECKING:
    from collections.abc import Callable

LATENCY = 0.2


def run(
    latency: Callable[[float, int], float],
    *,
    seconds: float = 30.0,
    max_concurrency: int = 512,
    fails: Callable[[float, int], bool] = lambda _now, _in_flight: False,
    workers: int = 600,
) -> tuple[list[tuple[float, int]], int]:
    """Drive a limiter against a service whose latency depends on the instant and the requests in flight.

    Return (instant, limit) for each change of the limit, and the number of answers. Latencies vary by a fifth.
    """
    now, answers, numbers, chance = 0.0, 0, itertools.count(), random.Random(7)
    limiter = RateLimiter(max_concurrency=max_concurrency, clock=lambda: now)
    changes: list[tuple[float, int]] = [(0.0, limiter.concurrency)]
    sent: list[tuple[float, int, float, int]] = []
    while now < seconds:
        in_flight = len(sent)
        while in_flight < workers and not limiter._try_acquire():
            in_flight += 1
        assert in_flight <= limiter.concurrency <= max_concurrency or in_flight == len(sent)
        for _ in range(in_flight - len(sent)):
            answered = now + latency(now, in_flight) * chance.uniform(0.8, 1.2)
            heapq.heappush(sent, (answered, next(numbers), now, in_flight))
        now, _, started, in_flight = heapq.heappop(sent)
        if fails(started, in_flight):
            limiter.on_failure(started=started)
        else:
            answers += 1
            limiter.on_success(now - started)
        limiter._in_flight -= 1
        if limiter.concurrency != changes[-1][1]:
            changes.append((now, limiter.concurrency))
    return changes, answers


def limits_after(changes: list[tuple[float, int]], start: float) -> list[int]:
    """Return the limits in force from an instant on."""
    last_before = [limit for at, limit in changes if at < start][-1]
    return [last_before, *(limit for at, limit in changes if at >= start)]


def share_of_time_above(changes: list[tuple[float, int]], limit: int, start: float, end: float) -> float:
    """Return the share of the time from `start` to `end` in which more than `limit` was allowed."""
    seconds = 0.0
    for (at, value), (until, _) in zip(changes, [*changes[1:], (end, 0)], strict=True):
        seconds += max(0.0, min(until, end) - max(at, start)) * (value > limit)
    return seconds / (end - start)


def test_a_slow_service_gets_all_that_is_allowed() -> None:
    """A service whose latency is constant gets `max_concurrency` requests within four seconds."""
    changes, _ = run(lambda _now, _in_flight: LATENCY, seconds=5.0)
    assert changes[-1][1] == 512
    assert changes[-1][0] < 4.0


def test_the_ceiling_holds() -> None:
    """No more than `max_concurrency` requests are in flight, also between two steps."""
    changes, _ = run(lambda _now, _in_flight: LATENCY, max_concurrency=100)
    assert max(limit for _, limit in changes) == changes[-1][1] == 100


@every("workers_of_service", [80, 120, 250])
def test_the_limit_stays_near_the_service_s_own(workers_of_service: int) -> None:
    """A service that works on N requests at once and queues others gets at most 1.5 N, for most of the time."""
    changes, answers = run(lambda _now, in_flight: LATENCY * max(1.0, in_flight / workers_of_service), seconds=60.0)
    most = workers_of_service / LATENCY * 60
    assert answers >= 0.85 * most * (64 / 80 if workers_of_service == 80 else 0.96)
    assert share_of_time_above(changes, int(1.5 * workers_of_service), 5.0, 60.0) < 0.1


def test_a_service_that_slows_down_is_not_driven_beyond_its_best() -> None:
    """If latency grows with each request in flight, the limit stays within a step of where it has doubled."""
    doubled = 128
    changes, _ = run(lambda _now, in_flight: LATENCY * (1 + in_flight / doubled), seconds=60.0)
    assert share_of_time_above(changes, int(1.5 * doubled), 5.0, 60.0) < 0.1
    assert min(limits_after(changes, 5.0)) >= 64


def test_a_thrashing_service_gets_what_it_got_before() -> None:
    """A service that collapses beyond 64 requests keeps its 64: each attempt is short, and they become rare."""
    changes, answers = run(lambda _now, in_flight: LATENCY if in_flight <= 66 else LATENCY * 3, seconds=60.0)
    assert answers >= 0.9 * 64 / LATENCY * 60
    steps = [at for at, limit in changes if limit > 64]
    assert len(steps) <= 7
    assert share_of_time_above(changes, 64, 0.0, 60.0) < 0.12


def test_growing_latency_takes_the_limit_back() -> None:
    """If answers become slower while the limit is held, it goes back in steps, and returns when they are fast again."""
    changes, _ = run(lambda now, in_flight: LATENCY * (max(1.0, in_flight / 70) if 20 <= now < 50 else 1.0), seconds=90)
    assert [limit for at, limit in changes if at < 20][-1] == 512
    assert min(limit for at, limit in changes if 20 <= at < 50) <= 105
    assert changes[-1][1] > 200


def test_failing_connections_take_the_limit_back() -> None:
    """A service that drops connections beyond 100 keeps 64 to 100; few of its answers are failures."""
    changes, answers = run(lambda _now, _in_flight: LATENCY, fails=lambda _now, in_flight: in_flight > 100, seconds=60)
    assert share_of_time_above(changes, 100, 5.0, 60.0) < 0.1
    assert answers >= 0.9 * 64 / LATENCY * 60


def test_chance_failures_do_not_stop_the_growth() -> None:
    """One failure in 200 requests is chance: the limit reaches its ceiling."""
    chance = random.Random(3)
    changes, _ = run(lambda _now, _in_flight: LATENCY, fails=lambda _now, _in_flight: chance.random() < 0.005)
    assert max(limit for _, limit in changes) == 512


def test_fast_services_stay_at_64() -> None:
    """A service that answers within 50 ms needs no more than 64: the client's processor is its limit."""
    changes, _ = run(lambda _now, _in_flight: 0.02, seconds=10.0)
    assert max(limit for _, limit in changes) == 64


def test_a_run_without_demand_stays_where_it_is() -> None:
    """Nothing grows beyond 64 if no request waits for it."""
    changes, _ = run(lambda _now, _in_flight: LATENCY, workers=64)
    assert changes[-1][1] == 64


def grown() -> AdaptiveConcurrency:
    """Return a search that holds 144."""
    search = AdaptiveConcurrency(0.0, ceiling=144, learned=64)
    now = 0.0
    for _ in range(30):
        for _ in range(search.limit):
            now += LATENCY / search.limit
            search.was_limiting = True
            search.on_success(now, LATENCY, search.limit)
    assert search.limit == 144
    return search


def test_a_429_takes_back_one_step() -> None:
    """A 429 beyond 64 takes back one step, at 64 none; a 503 halves."""
    search = grown()
    for limit in (96, 64, 64):
        search.on_throttle(100.0, 100.0, overload=False)
        assert search.limit == limit
    search.on_throttle(100.0, 100.0, overload=True)
    assert search.limit == 32


def test_429s_of_one_burst_take_back_one_step() -> None:
    """Answers to requests that were sent before the first 429 do not decrease the concurrency again."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        limiter = RateLimiter(clock=loop.time)
        await drive(limiter, limit=None, rate=lambda _: 0.0, seconds=5.0, latency=LATENCY, workers=600)
        assert limiter.concurrency == 512
        for number in range(300):
            limiter.on_throttle(None, started=4.0 + number / 1000)
        assert limiter.concurrency == 341

    run_virtually(main())


def test_a_rate_limit_keeps_its_share() -> None:
    """A slow service with a rate limit gets nine tenths of it, with few 429s, whatever the concurrency may become."""
    course = Course(120.0, lambda _: 150.0, ((0.0, 20.0),))
    counts = Simulation(lambda clock: RateLimiter(clock=clock), Bucket(), course, latency=LATENCY).run()
    assert counts.share(course.allowed) >= 0.9
    assert counts.refused_late < 0.01 * counts.good_late


def test_learned_concurrency_is_proven_anew() -> None:
    """A run starts with at most 64 of what an earlier one learned: the service may be another today."""
    assert RateLimiter(learned=LearnedLimits(concurrency=400)).concurrency == 64
    assert RateLimiter(learned=LearnedLimits(concurrency=20)).concurrency == 20
