"""Models of rate limits in virtual time: each kind of limit that gateways are known to have."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.client.rate_limiter import RateLimiter


class Limit(Protocol):
    """A limit of `rate` requests per second."""

    def passes(self, now: float, rate: float) -> bool:
        """Return whether one request passes, and count it."""
        ...


@dataclass
class Bucket:
    """A token bucket that refills steadily and contains at most `burst` seconds' worth."""

    burst: float = 1.0
    tokens: float | None = None
    at: float = 0.0

    def passes(self, now: float, rate: float) -> bool:
        """Take a token if there is one."""
        room = max(1.0, rate * self.burst)
        held = room if self.tokens is None else min(room, self.tokens + (now - self.at) * rate)
        self.at = now
        passed = held >= 1
        self.tokens = held - passed
        return passed


@dataclass
class FixedWindow:
    """At most `rate` requests per second in each calendar window of `length` seconds."""

    length: float = 1.0
    window: int = -1
    count: int = 0

    def passes(self, now: float, rate: float) -> bool:
        """Count in the current window."""
        if (window := int(now / self.length)) != self.window:
            self.window, self.count = window, 0
        self.count += 1
        return self.count <= rate * self.length


@dataclass
class SlidingWindow:
    """At most `rate` requests in any second."""

    passed: deque[float] = field(default_factory=deque)

    def passes(self, now: float, rate: float) -> bool:
        """Count the requests of the last second."""
        while self.passed and now - self.passed[0] >= 1.0:
            self.passed.popleft()
        if len(self.passed) >= rate:
            return False
        self.passed.append(now)
        return True


@dataclass
class AnswerCounts:
    """The answers of a run."""

    good: int = 0
    refused: int = 0
    seconds: float = 0.0
    good_late: int = 0  # after warm-up
    refused_late: int = 0

    def share(self, allowed: float) -> float:
        """Return the good answers after the warm-up as a share of the allowed ones."""
        return self.good_late / allowed


async def drive(
    limiter: RateLimiter,
    *,
    limit: Limit | None,
    rate: Callable[[float], float],
    seconds: float,
    warm_up: float = 0.0,
    latency: float = 0.02,
    retry_after: float | None = None,
    workers: int = 64,
    total: int | None = None,
    capacity: int | None = None,
) -> AnswerCounts:
    """Run workers as fast as the limiter allows, until the time is over or `total` answers are good.

    `capacity`: how many requests the service works on at once; the others wait in its queue.
    """
    loop, counts, chance = asyncio.get_running_loop(), AnswerCounts(), random.Random(7)
    at_work = asyncio.Semaphore(capacity or workers)

    async def ask() -> None:
        async with limiter.slot():
            started = loop.time()
            async with at_work:
                await asyncio.sleep(latency * chance.uniform(0.8, 1.2) / 2)
                passed = limit is None or limit.passes(loop.time(), rate(loop.time()))
                await asyncio.sleep(latency * chance.uniform(0.8, 1.2) / 2)
            if passed:
                limiter.on_success(loop.time() - started)
            else:
                limiter.on_throttle(retry_after, started=started)
        late = loop.time() >= warm_up
        counts.good += passed
        counts.refused += not passed
        counts.good_late += passed and late
        counts.refused_late += late and not passed

    async def work() -> None:
        while loop.time() < seconds and (total is None or counts.good < total):
            await ask()

    await asyncio.gather(*(work() for _ in range(workers)))
    counts.seconds = loop.time()
    return counts


@dataclass(frozen=True, slots=True)
class Course:
    """How the allowed rate changes during a run, and which of its seconds are measured."""

    seconds: float
    rate: Callable[[float], float]
    unjudged: tuple[tuple[float, float], ...]  # warm-up, and the time after each change

    def counts(self, now: float) -> bool:
        """Return whether this instant is measured."""
        return not any(start <= now < end for start, end in self.unjudged)

    @property
    def allowed(self) -> float:
        """Requests that were allowed in the measured time."""
        steps = (number / 100 for number in range(int(self.seconds * 100)))
        return sum(self.rate(at) for at in steps if self.counts(at)) / 100


def true_retry_after(limit: Limit, now: float, rate: float) -> float:
    """Return the seconds until the next request would pass."""
    if isinstance(limit, FixedWindow):
        return (limit.window + 1) * limit.length - now
    if isinstance(limit, SlidingWindow):
        return max(0.0, limit.passed[0] + 1.0 - now)
    assert isinstance(limit, Bucket)
    return (1 - (limit.tokens or 0.0)) / rate


@dataclass
class Simulation:
    """Endless demand against a limit, without an event loop: a run of a minute takes milliseconds.

    `retry_after`: seconds, None for none, "accurate" for what is true. Timers ring up to a millisecond late.
    """

    create_limiter: Callable[[Callable[[], float]], RateLimiter]
    limit: Limit
    course: Course
    latency: float = 0.02
    retry_after: float | str | None = None
    seed: int = 7
    now: float = 0.0
    counts: AnswerCounts = field(default_factory=AnswerCounts)

    def run(self) -> AnswerCounts:
        """Run the simulation; `good_late` counts the measured answers."""
        chance = random.Random(self.seed)
        self.limiter = self.create_limiter(lambda: self.now)
        events: list[tuple[float, int, float, Callable[[float], None] | None]] = []
        ready, number = 0.0, 0

        def half() -> float:
            return self.latency * chance.uniform(0.8, 1.2) / 2

        while self.now < self.course.seconds:
            while self.now >= ready:
                if delay := self.limiter._try_acquire():
                    ready = self.now + delay + 0.001 * chance.random()
                else:
                    number += 1
                    heapq.heappush(events, (self.now + half(), number, self.now, None))
            if not events or ready <= events[0][0]:
                self.now = ready
                continue
            self.now, order, left, answer = heapq.heappop(events)
            if answer is None:
                heapq.heappush(events, (self.now + half(), order, left, self._judge()))
                continue
            answer(left)
            self.limiter._in_flight -= 1
            ready = self.now if math.isinf(ready) else ready
        return self.counts

    def _judge(self) -> Callable[[float], None]:
        rate = self.course.rate(self.now)
        if self.limit.passes(self.now, rate):
            return self._passed
        after = true_retry_after(self.limit, self.now, rate) if isinstance(self.retry_after, str) else self.retry_after
        return lambda left: self._refused(left, after)

    def _passed(self, left: float) -> None:
        self.counts.good += 1
        self.counts.good_late += self.course.counts(self.now)
        self.limiter.on_success(self.now - left)

    def _refused(self, left: float, after: float | None) -> None:
        self.counts.refused += 1
        self.counts.refused_late += self.course.counts(self.now)
        self.limiter.on_throttle(after, started=left)
