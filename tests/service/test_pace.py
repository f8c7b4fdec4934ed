"""The limiter, in virtual time against every kind of limit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import TokenRefused
from pipeline.service.pace import START, LearnedPace, Pacer
from tests.service.limits import Bucket, FixedWindow, Limit, SlidingWindow, Tally, drive
from tests.service.virtual import run_virtually

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS: dict[str, Callable[[], Limit]] = {
    "bucket of one second": Bucket,
    "bucket of ten seconds": lambda: Bucket(10.0),
    "calendar seconds": FixedWindow,
    "sliding second": SlidingWindow,
}


def run(pacing: dict[str, Any] | None = None, **options: Any) -> tuple[Tally, Pacer]:
    """Drive a new pacer; what came of it, and the pacer."""

    async def main() -> tuple[Tally, Pacer]:
        pacer = Pacer(clock=asyncio.get_running_loop().time, **(pacing or {}))
        return await drive(pacer, **{"limit": None, "rate": lambda _: 0.0, "seconds": 60.0, **options}), pacer

    return run_virtually(main())


@pytest.mark.parametrize(("name", "rate"), [*((name, 200.0) for name in LIMITS), ("bucket of one second", 1000.0)])
@pytest.mark.parametrize("retry_after", [None, 1.0])
def test_an_unknown_limit_is_found(name: str, rate: float, retry_after: float | None) -> None:
    """After ten seconds nine tenths of the allowed rate are used; about one answer in a hundred is a 429."""
    tally, pacer = run(limit=LIMITS[name](), rate=lambda _: rate, warm_up=10.0, retry_after=retry_after, latency=0.02)
    assert tally.share(rate * 50) >= 0.9
    assert tally.refused / (tally.good + tally.refused) < 0.01
    assert pacer.state.why == "server limit"
    assert pacer.learned.rate == pytest.approx(rate, rel=0.35)


@pytest.mark.parametrize("name", LIMITS)
def test_what_was_learned_spares_the_search(name: str) -> None:
    """A run that starts with the learned pace is at nine tenths from its first second, with few 429s."""
    learned = LearnedPace(rate=194.0, concurrency=16)
    tally, _ = run({"learned": learned}, limit=LIMITS[name](), rate=lambda _: 200.0, latency=0.02, retry_after=1.0)
    assert tally.good >= 0.9 * 200 * 60
    assert tally.refused < 0.004 * tally.good


@pytest.mark.parametrize("name", ["bucket of one second", "sliding second"])
def test_a_lowered_limit_is_followed(name: str) -> None:
    """When the limit is halved the pace follows within seconds; 429s stay about one in a hundred."""
    tally, pacer = run(
        limit=LIMITS[name](), rate=lambda now: 400.0 if now < 30 else 200.0, seconds=90.0, warm_up=45.0, retry_after=1.0
    )
    assert tally.good_late >= 0.85 * 200 * 45
    assert tally.refused < 0.01 * tally.good
    assert (pacer.learned.rate or 0) < 320


@pytest.mark.parametrize("name", ["bucket of one second", "sliding second"])
def test_a_raised_limit_is_found(name: str) -> None:
    """When the limit is doubled the pace has climbed there within half a minute."""
    tally, _ = run(
        limit=LIMITS[name](),
        rate=lambda now: 200.0 if now < 30 else 400.0,
        seconds=120.0,
        warm_up=65.0,
        retry_after=1.0,
    )
    assert tally.good_late >= 0.85 * 400 * 55
    assert tally.refused < 0.01 * tally.good


def test_a_slow_service_without_a_limit_is_used_fully() -> None:
    """Against 100 ms and no limit, the time is at most a tenth above requests x latency / concurrency."""
    tally, pacer = run(seconds=1e6, total=3_000, latency=0.1)
    assert tally.seconds <= 3_000 * 0.1 / 64 / 0.9
    assert pacer.state.concurrency == 64
    assert pacer.learned.rate is None


def test_concurrency_stops_growing_where_it_gives_nothing() -> None:
    """A service that does four things at once is not asked 64 at once for long, and loses nothing by it."""
    tally, pacer = run(capacity=4, latency=0.01)
    assert tally.good >= 0.98 * 60 * 4 / 0.01
    assert pacer.state.concurrency <= 16
    assert pacer.state.why == "latency"


@pytest.mark.parametrize("limit", [None, Bucket()])
def test_hard_ceilings_hold(limit: Limit | None) -> None:
    """Neither ceiling is passed, whatever the service would bear."""
    tally, pacer = run(
        {"max_rate": 50.0, "max_concurrency": 4}, limit=limit, rate=lambda _: 500.0, seconds=20.0, latency=0.01
    )
    assert 45 * tally.seconds <= tally.good <= 50 * tally.seconds + 2
    assert pacer.state.concurrency <= 4
    assert pacer.state.why == "ceiling"


def test_the_beginning_is_gentle() -> None:
    """At first no more than a few requests are out at once."""

    async def main() -> int:
        pacer = Pacer(clock=asyncio.get_running_loop().time)
        out = 0

        async def ask() -> None:
            nonlocal out
            async with pacer.slot():
                out += 1
                await asyncio.sleep(10)

        tasks = [asyncio.ensure_future(ask()) for _ in range(100)]
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (pacer.state.in_flight, pacer.state.waiting) == (0, 0)
        return out

    assert run_virtually(main()) == START


async def _pause_of(retry_after: float | None) -> float:
    loop = asyncio.get_running_loop()
    pacer = Pacer(clock=loop.time)
    pacer.throttled(retry_after, started=0.0)
    left: list[float] = []

    async def ask() -> None:
        async with pacer.slot():
            left.append(loop.time())

    await asyncio.gather(*(ask() for _ in range(5)))
    return min(left)


@pytest.mark.parametrize(("retry_after", "pause"), [(30.0, 30.0), (0.0, 0.0), (1e9, 900.0), (None, 1.0)])
def test_one_429_holds_everybody_back(retry_after: float | None, pause: float) -> None:
    """`Retry-After` is obeyed by all and capped; without it everybody takes a breath."""
    assert run_virtually(_pause_of(retry_after)) == pytest.approx(pause, abs=0.01)


def test_many_429s_of_one_moment_count_once() -> None:
    """Answers to requests that left before the cut do not cut again."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        pacer = Pacer(clock=loop.time, learned=LearnedPace(100.0, 64))
        await asyncio.sleep(10)
        pacer.throttled(1.0, started=9.9)
        once = pacer.state.rate
        for number in range(63):
            pacer.throttled(1.0, started=9.9 + number / 1000)
        assert pacer.state.rate == once
        assert once is not None
        assert once > 85

    run_virtually(main())


def test_an_overloaded_service_gets_fewer_at_once() -> None:
    """A 503 halves the concurrency, once, and sets no rate; it recovers afterwards."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        pacer = Pacer(clock=loop.time, learned=LearnedPace(None, 64))
        await asyncio.sleep(1)
        for _ in range(64):
            pacer.throttled(None, started=0.5, overload=True)
        assert pacer.state.concurrency == 32
        assert pacer.state.rate is None
        await drive(pacer, limit=None, rate=lambda _: 0.0, seconds=30.0, latency=0.1)
        assert pacer.state.concurrency == 64

    run_virtually(main())


def test_a_closed_pacer_lets_nobody_go() -> None:
    """Whoever waits, and whoever comes later, is told that the token was refused."""

    async def main() -> None:
        pacer = Pacer(max_concurrency=1, clock=asyncio.get_running_loop().time)

        async def ask() -> None:
            async with pacer.slot():
                await asyncio.sleep(1)

        first, *others = [asyncio.ensure_future(ask()) for _ in range(10)]
        await asyncio.sleep(0.5)
        pacer.close(TokenRefused("no"))
        results = await asyncio.gather(*others, return_exceptions=True)
        assert all(isinstance(result, TokenRefused) for result in results)
        assert asyncio.get_running_loop().time() == 0.5
        await first
        with pytest.raises(TokenRefused):
            await ask()

    run_virtually(main())


def test_places_of_cancelled_waiters_are_given_on() -> None:
    """A waiter cancelled in the moment of its turn does not take the place with it."""

    async def main() -> None:
        pacer = Pacer(max_concurrency=1, clock=asyncio.get_running_loop().time)
        done: list[int] = []

        async def ask(number: int) -> None:
            async with pacer.slot():
                await asyncio.sleep(1)
                done.append(number)
            if number == 0:
                second.cancel()  # its place was given to it just now, and it has not woken yet

        first, second, third = [asyncio.ensure_future(ask(number)) for number in range(3)]
        await asyncio.gather(first, second, third, return_exceptions=True)
        assert done == [0, 2]
        assert pacer.state.in_flight == 0

    run_virtually(main())


def test_first_come_first_served() -> None:
    """Requests leave in the order in which they came."""

    async def main() -> None:
        pacer = Pacer(max_rate=10.0, clock=asyncio.get_running_loop().time)
        left: list[int] = []

        async def ask(number: int) -> None:
            async with pacer.slot():
                left.append(number)

        await asyncio.gather(*(ask(number) for number in range(50)))
        assert left == list(range(50))
        assert asyncio.get_running_loop().time() == pytest.approx(4.9, abs=0.3)

    run_virtually(main())
