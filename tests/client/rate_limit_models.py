"""Models of services with each kind of limit that gateways are known to have, and a simulation of demand for them."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.client.rate_limiter import RateLimiter

if TYPE_CHECKING:
    from collections.abc import Callable


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

    def wait(self, now: float, rate: float) -> float:  # noqa: ARG002 - since the last request no time has passed
        """Return the time of the part of a token that is missing."""
        return (1 - (self.tokens or 0.0)) / rate


@dataclass
class Window:
    """At most `rate` requests in any second, or in each calendar second."""

    is_sliding: bool = True
    passed: deque[float] = field(default_factory=deque)

    def passes(self, now: float, rate: float) -> bool:
        """Count the requests of the last or the current second."""
        while self.passed and self._end(self.passed[0]) <= now:
            self.passed.popleft()
        if len(self.passed) >= rate:
            return False
        self.passed.append(now)
        return True

    def wait(self, now: float, rate: float) -> float:  # noqa: ARG002 - a second ends whatever its rate is
        """Return the time until the oldest request no longer counts."""
        return max(0.0, self._end(self.passed[0]) - now)

    def _end(self, at: float) -> float:
        return (at if self.is_sliding else int(at)) + 1.0


Limit = Bucket | Window
"""A limit of so many requests per second."""


@dataclass(frozen=True, slots=True)
class Course:
    """How the allowed rate changes during a run, and which of its seconds are measured."""

    seconds: float
    rate: Callable[[float], float] = lambda _: math.inf
    unjudged: tuple[tuple[float, float], ...] = ()  # warm-up, and the time after each change

    def counts(self, now: float) -> bool:
        """Return whether this instant is measured."""
        return not any(start <= now < end for start, end in self.unjudged)

    @property
    def allowed(self) -> float:
        """Requests that were allowed in the measured time."""
        steps = (number / 100 for number in range(int(self.seconds * 100)))
        return sum(self.rate(at) for at in steps if self.counts(at)) / 100


@dataclass
class Simulation:
    """Demand of `workers` for a service, without an event loop: a minute takes milliseconds. It runs when made.

    It ends with its course, or when `total` answers are good. Timers ring up to a millisecond late; latencies vary by
    a fifth. `latency` and `fails` get the instant and the requests in flight.
    `retry_after`: seconds, None for none, "accurate" for what is true.
    """

    course: Course
    limit: Limit | None = None
    latency: Callable[[float, int], float] = lambda _now, _in_flight: 0.02
    fails: Callable[[float, int], bool] = lambda _now, _in_flight: False
    retry_after: float | str | None = None
    workers: int = 600
    total: float = math.inf
    seed: int = 7
    options: dict[str, Any] = field(default_factory=dict)  # of the limiter
    now: float = 0.0
    in_flight: int = 0
    good: int = 0
    refused: int = 0
    good_late: int = 0  # in the measured time
    refused_late: int = 0

    def __post_init__(self) -> None:
        self.limiter = RateLimiter(clock=lambda: self.now, **self.options)
        self.changes = [(0.0, self.limiter.concurrency)]  # instant and limit of each change of the concurrency
        self._chance = random.Random(self.seed)
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._run()

    @property
    def share(self) -> float:
        """The good answers of the measured time as a share of the allowed ones."""
        return self.good_late / self.course.allowed

    @property
    def refused_share(self) -> float:
        """The 429s as a share of all answers."""
        return self.refused / (self.good + self.refused)

    def limits(self, start: float, end: float = math.inf) -> list[int]:
        """Return the limits of the concurrency in force at some time from `start` to `end`."""
        return [limit for at, limit in self.changes if at < start][-1:] + [
            limit for at, limit in self.changes if start <= at < end
        ]

    def share_above(self, limit: int, start: float) -> float:
        """Return the share of the time from `start` on in which a higher concurrency was allowed."""
        ends = [*(at for at, _ in self.changes[1:]), self.course.seconds]
        above = (end - max(at, start) for (at, value), end in zip(self.changes, ends, strict=True) if value > limit)
        return sum(max(0.0, seconds) for seconds in above) / (self.course.seconds - start)

    def _run(self) -> None:
        ready = 0.0
        while self.now < self.course.seconds and self.good < self.total:
            while self.now >= ready and self.in_flight < self.workers:
                if delay := self.limiter._try_acquire():
                    ready = self.now + delay + 0.001 * self._chance.random()
                else:
                    self.in_flight += 1
                    assert self.in_flight <= self.limiter.concurrency
                    self._after_half(partial(self._arrive, self.now))
            if self.in_flight < self.workers and (not self._events or ready <= self._events[0][0]):
                self.now = ready
                continue
            self.now, _, act = heapq.heappop(self._events)
            act()
            if self.limiter.concurrency != self.changes[-1][1]:
                self.changes.append((self.now, self.limiter.concurrency))
            if math.isinf(ready) and self.in_flight < self.limiter.concurrency:
                ready = self.now

    def _after_half(self, act: Callable[[], None]) -> None:
        seconds = self.latency(self.now, self.in_flight) * self._chance.uniform(0.8, 1.2) / 2
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), act))

    def _arrive(self, sent: float) -> None:
        rate = self.course.rate(self.now)
        if self.fails(self.now, self.in_flight):
            self._after_half(partial(self._return, partial(self.limiter.on_failure, started=sent)))
        elif self.limit is None or self.limit.passes(self.now, rate):
            self._after_half(partial(self._return, partial(self._pass, sent)))
        else:
            wait = self.limit.wait(self.now, rate) if isinstance(self.retry_after, str) else self.retry_after
            self._after_half(partial(self._return, partial(self._refuse, sent, wait)))

    def _return(self, answer: Callable[[], None]) -> None:
        answer()
        self.limiter._in_flight -= 1
        self.in_flight -= 1

    def _pass(self, sent: float) -> None:
        self.good += 1
        self.good_late += self.course.counts(self.now)
        self.limiter.on_success(self.now - sent)

    def _refuse(self, sent: float, wait: float | None) -> None:
        self.refused += 1
        self.refused_late += self.course.counts(self.now)
        self.limiter.on_throttle(wait, started=sent)
