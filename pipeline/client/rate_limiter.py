"""Rate limiter of the whole process: a concurrency limit and a request rate, both adaptive.

*Concurrency* starts small and grows while the throughput grows with it (see `concurrency_search`). A service without a
limit needs nothing else. A *rate* exists from the first 429 on (see `rate_search`): requests are spaced evenly. One
burst of 429s counts once: answers to requests that were sent before the last decrease are ignored.

tests/client/test_rate_limiter.py has a case for each kind of limit.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from pipeline.client.concurrency_search import AdaptiveConcurrency
from pipeline.client.rate_search import AdaptiveRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.errors import AuthenticationError


_MAX_CATCH_UP_SECONDS: Final = 0.02  # spacing that may be made up for, because timers are late by that much
_OVERLOAD_PAUSE_SECONDS: Final = 0.5

LimitedBy = Literal["server limit", "latency", "ceiling"]


class LearnedLimits(Struct, frozen=True):
    """Limits that one run learned for the next: requests per second (None: no limit), and concurrency."""

    rate: float | None = None
    concurrency: int | None = None


class LimiterState(Struct, frozen=True):
    """The current limits, for display."""

    rate: float | None
    concurrency: int
    in_flight: int
    waiting: int
    pause_remaining_seconds: float
    limited_by: LimitedBy


class RateLimiter:
    """Delays requests to what the service allows. Use: `async with limiter: ...`."""

    def __init__(
        self,
        *,
        max_concurrency: int = 512,
        max_rate: float | None = None,
        learned: LearnedLimits | None = None,
        max_retry_after_seconds: float = 900.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        learned = learned or LearnedLimits()
        self._clock = clock
        self._max_retry_after_seconds = max_retry_after_seconds
        self._concurrency = AdaptiveConcurrency(clock(), ceiling=max_concurrency, learned=learned.concurrency)
        self._adaptive_rate = AdaptiveRate(ceiling=max_rate, learned=learned.rate)
        self._in_flight = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0  # when the next request may be sent, if there is a rate
        self._paused_until = 0.0
        self._decreased_at = -1.0
        self._waited_for_rate = False  # the last request that waited, rather than for an answer
        self._authentication_error: AuthenticationError | None = None

    @property
    def concurrency(self) -> int:
        """The requests that may be in flight now."""
        return self._concurrency.limit

    @property
    def state(self) -> LimiterState:
        """The current limits."""
        rate = self._adaptive_rate.rate
        limited_by: LimitedBy = "latency"
        if self._waited_for_rate and rate is not None:
            limited_by = "ceiling" if rate == self._adaptive_rate.ceiling else "server limit"
        elif self.concurrency >= self._concurrency.ceiling:
            limited_by = "ceiling"
        pause = max(0.0, self._paused_until - self._clock())
        return LimiterState(rate, self.concurrency, self._in_flight, len(self._waiters), pause, limited_by)

    @property
    def learned(self) -> LearnedLimits:
        """The limits to start the next run with."""
        return LearnedLimits(self._adaptive_rate.learned, self.concurrency)

    def fail_all(self, error: AuthenticationError) -> None:
        """Fail all waiting and later requests with `error`, because the service refused the token."""
        self._authentication_error = self._authentication_error or error
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(self._copy_error(self._authentication_error))

    def on_success(self, latency: float) -> None:
        """Record a successful request that took `latency` seconds."""
        now = self._clock()
        self._adaptive_rate.on_success(now, latency)
        self._concurrency.on_success(now, latency, self._in_flight)

    def on_failure(self, *, started: float) -> None:
        """Record a request that failed otherwise than by a 429 or 503. `started`: when it was sent."""
        self._concurrency.on_failure(self._clock(), started)

    def on_throttle(
        self, retry_after: float | None = None, *, started: float | None = None, overload: bool = False
    ) -> None:
        """Record a 429 or (`overload`) a 503. `started`: when the request was sent, by the limiter's clock."""
        now = self._clock()
        if retry_after is not None:
            self._paused_until = max(self._paused_until, now + min(retry_after, self._max_retry_after_seconds))
        if started is not None and started < self._decreased_at:
            if not overload:
                self._adaptive_rate.on_repeated_throttle()
            return
        self._decreased_at = now
        self._concurrency.on_throttle(now, self._paused_until, overload=overload)
        if overload:
            # An overloaded service needs fewer concurrent requests and a pause; its rate limit is another matter.
            self._paused_until = max(self._paused_until, now + _OVERLOAD_PAUSE_SECONDS)
            return
        pause = None if retry_after is None else self._paused_until - now
        self._paused_until = max(self._paused_until, now + self._adaptive_rate.on_throttle(now, retry_after=pause))

    @staticmethod
    def _copy_error(error: AuthenticationError) -> AuthenticationError:
        return type(error)(error.message)

    def _try_acquire(self) -> float:
        """Take a slot and return 0, or return the seconds to wait; infinite means until a request returns."""
        if self._in_flight >= self._concurrency.limit:
            self._concurrency.was_limiting, self._waited_for_rate = True, False
            return math.inf
        rate = self._adaptive_rate.rate
        if rate is None and not self._paused_until:
            self._in_flight += 1
            return 0.0
        now = self._clock()
        if now < self._paused_until:
            return self._paused_until - now
        if self._paused_until:
            self._next_at, self._paused_until = now, 0.0  # a pause is not made up for
        if rate is not None:
            if now < self._next_at:
                self._adaptive_rate.was_limiting = self._waited_for_rate = True
                return self._next_at - now
            self._next_at = max(self._next_at, now - _MAX_CATCH_UP_SECONDS) + 1 / rate
        self._in_flight += 1
        return 0.0

    def _release_waiters(self) -> None:
        """Release all waiters that may send now, and set the timer for the next one."""
        waiters = self._waiters
        while waiters:
            if waiters[0].done():
                waiters.popleft()
                continue
            delay = self._try_acquire()
            if delay:
                if delay != math.inf and self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)
                return
            waiters.popleft().set_result(None)

    def _on_timer(self) -> None:
        self._timer = None
        self._release_waiters()

    async def __aenter__(self) -> None:
        """Wait until a request may be sent, and take a slot for it. Raises `AuthenticationError` after `fail_all`."""
        if self._authentication_error is not None:
            raise self._copy_error(self._authentication_error)
        if not self._waiters and not self._try_acquire():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._release_waiters()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        self._in_flight -= 1
        if self._waiters:
            self._release_waiters()
