"""Rate limiter of the whole process: delays calls to the pace that `limit_search` finds.

tests/client/test_rate_limiter.py has its behaviour, tests/client/test_limit_search.py a case for each kind of limit.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct

from pipeline.client.limit_search import LimitedBy, LimitSearch

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.errors import AuthenticationError


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
        self._search = LimitSearch(
            clock(),
            max_window=max_concurrency,
            max_rate=max_rate or math.inf,
            rate=learned.rate,
            window=learned.concurrency,
        )
        self._in_flight = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._authentication_error: AuthenticationError | None = None

    @property
    def concurrency(self) -> int:
        """The requests that may be in flight now."""
        return self._search.window

    @property
    def state(self) -> LimiterState:
        """The current limits."""
        search = self._search
        rate = search.rate if search.rate == search.max_rate < math.inf else search.learned_rate
        pause = max(0.0, max(search.paused_until, search.asked_until if search.is_paused else 0.0) - self._clock())
        return LimiterState(rate, search.window, self._in_flight, len(self._waiters), pause, search.limited_by)

    @property
    def learned(self) -> LearnedLimits:
        """The limits to start the next run with."""
        return LearnedLimits(self._search.learned_rate, self._search.learned_window)

    async def wait_out_pauses(self) -> None:
        """Wait until no `Retry-After` is left, of any call: for a call that must not ask whose pause it is."""
        while True:
            seconds = self._search.asked_until - self._clock()
            if seconds <= 0:
                return
            await asyncio.sleep(seconds)

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
        self._search.on_answer(now, now - latency)

    def on_failure(self, *, started: float) -> None:
        """Record a request that failed otherwise than by a 429 or 503. `started`: when it was sent."""
        self._search.on_failure(self._clock(), started)

    def on_throttle(
        self, retry_after: float | None = None, *, started: float | None = None, overload: bool = False
    ) -> None:
        """Record a 429 or (`overload`) a 503. `started`: when the request was sent, by the limiter's clock."""
        now = self._clock()
        pause = None if retry_after is None else min(retry_after, self._max_retry_after_seconds)
        self._search.on_refusal(now, now if started is None else started, pause, overload=overload)

    @staticmethod
    def _copy_error(error: AuthenticationError) -> AuthenticationError:
        return type(error)(error.message)

    def _try_acquire(self) -> float:
        """Take a slot and return 0, or return the seconds to wait; infinite means until a request returns."""
        now = self._clock()
        if delay := self._search.delay(now, self._in_flight):
            return delay
        self._search.on_sent(now)
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
