"""Pretended services for the pacer, in virtual time: each kind of limit that gateways are known to have."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.service.pace import Pacer


class Limit(Protocol):
    """Whether a request that arrives now may pass at `rate` requests per second."""

    def passes(self, now: float, rate: float) -> bool:
        """Judge and count one request."""
        ...


@dataclass
class Bucket:
    """Tokens that refill steadily; `burst` seconds' worth fit in."""

    burst: float = 1.0
    tokens: float | None = None
    at: float = 0.0

    def passes(self, now: float, rate: float) -> bool:
        """Take a token, if there is one."""
        room = max(1.0, rate * self.burst)
        held = room if self.tokens is None else min(room, self.tokens + (now - self.at) * rate)
        self.at = now
        passed = held >= 1
        self.tokens = held - passed
        return passed


@dataclass
class FixedWindow:
    """So many requests per calendar `length`."""

    length: float = 1.0
    window: int = -1
    count: int = 0

    def passes(self, now: float, rate: float) -> bool:
        """Count in the present window."""
        if (window := int(now / self.length)) != self.window:
            self.window, self.count = window, 0
        self.count += 1
        return self.count <= rate * self.length


@dataclass
class SlidingWindow:
    """So many requests in any second."""

    passed: deque[float] = field(default_factory=deque)

    def passes(self, now: float, rate: float) -> bool:
        """Look at the last second."""
        while self.passed and now - self.passed[0] >= 1.0:
            self.passed.popleft()
        if len(self.passed) >= rate:
            return False
        self.passed.append(now)
        return True


@dataclass
class Tally:
    """What a run came to."""

    good: int = 0
    refused: int = 0
    seconds: float = 0.0
    good_late: int = 0  # after warm-up
    refused_late: int = 0

    def share(self, allowed: float) -> float:
        """Good answers after warm-up as a share of those allowed."""
        return self.good_late / allowed


async def drive(
    pacer: Pacer,
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
) -> Tally:
    """Workers ask as fast as the pacer lets them, until the time is over or `total` answers are good.

    `capacity`: how many requests the service works on at once; the others wait in its queue.
    """
    loop, tally, chance = asyncio.get_running_loop(), Tally(), random.Random(7)
    at_work = asyncio.Semaphore(capacity or workers)

    async def ask() -> None:
        async with pacer.slot():
            started = loop.time()
            async with at_work:
                await asyncio.sleep(latency * chance.uniform(0.8, 1.2) / 2)
                passed = limit is None or limit.passes(loop.time(), rate(loop.time()))
                await asyncio.sleep(latency * chance.uniform(0.8, 1.2) / 2)
            if passed:
                pacer.succeeded(loop.time() - started)
            else:
                pacer.throttled(retry_after, started=started)
        late = loop.time() >= warm_up
        tally.good += passed
        tally.refused += not passed
        tally.good_late += passed and late
        tally.refused_late += late and not passed

    async def work() -> None:
        while loop.time() < seconds and (total is None or tally.good < total):
            await ask()

    await asyncio.gather(*(work() for _ in range(workers)))
    tally.seconds = loop.time()
    return tally
