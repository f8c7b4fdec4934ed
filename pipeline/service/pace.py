"""How fast to ask: one limiter for the whole process, which tunes itself.

Two limits hold at once. *Concurrency* starts small and grows fast while the throughput grows with it; that is
all a service without a limit needs. A *rate* exists from the first 429 on: requests leave evenly spaced, a
little below what the service was seen to allow; the rate is then raised in steps, with rests in between that
grow when raising fails. A 429 counts once: answers to requests that left before the last cut are old news.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pipeline.service.rate import RateSearch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pipeline.errors import TokenRefused

START: Final = 8  # requests at once in the beginning
_LATE: Final = 0.02  # seconds of spacing that may be made up for: timers are late by that much
_SLOW: Final = 0.05  # seconds; against a service that takes longer, concurrency is what counts,
_QUADRUPLE: Final = 3  # so each answer of a cold start makes room for three more,
_QUEUED: Final = 2.0  # unless it took so many times as long as the quickest: it stood in a queue there
_EPOCH: Final = (0.1, 2.0)  # seconds at least, and what concurrency is then raised by, as a factor;
_UNHURRIED: Final = (0.25, 1.5)  # the same where answers come quickly
_GROWS: Final = 1.15  # a raised concurrency that gives less than this is no growth
_REST: Final = (1.0, 30.0)  # seconds between attempts to grow further, first and longest
_OVERLOAD_PAUSE: Final = 0.5


@dataclass(frozen=True, slots=True)
class LearnedPace:
    """What one run learned for the next: requests per second (None: no limit was met), and concurrency."""

    rate: float | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class PaceState:
    """The pace at this moment, for display."""

    rate: float | None
    concurrency: int
    in_flight: int
    waiting: int
    paused_for: float
    why: Literal["server limit", "latency", "ceiling"]


class Pacer:
    """Lets requests go at the pace the service bears. Use: `async with pacer.slot(): ...`."""

    def __init__(
        self,
        *,
        max_concurrency: int = 64,
        max_rate: float | None = None,
        learned: LearnedPace | None = None,
        retry_after_cap: float = 900.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        learned = learned or LearnedPace()
        self._clock = clock
        self._ceiling = max_concurrency
        self._cap = retry_after_cap
        self._limit = max(1, min(max_concurrency, learned.concurrency or START))
        self._rates = RateSearch(ceiling=max_rate, learned=learned.rate)
        self._in_flight = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0  # when the next request may leave, where a rate holds
        self._paused_until = 0.0
        self._cut_at = -1.0
        self._refusal: TokenRefused | None = None
        # The epoch: what is counted between two looks at concurrency.
        self._epoch_at = clock()
        self._epoch_done = 0
        self._fresh = learned.concurrency is None  # a cold start: concurrency has met no bound yet
        self._quickest = float("inf")  # seconds
        self._full = False  # somebody waited for concurrency in this epoch
        self._before: tuple[int, float] | None = None  # the limit before it was raised, and its throughput
        self._rest = _REST[0]
        self._rest_until = 0.0
        self._slot = _Slot(self)

    def slot(self) -> _Slot:
        """A place for one request: waits until it may leave. `TokenRefused` once the pacer is closed."""
        return self._slot

    @property
    def state(self) -> PaceState:
        """The pace at this moment."""
        rate = self._rates.rate
        if rate is not None and self._rates.rate != self._rates.ceiling:
            why: Literal["server limit", "latency", "ceiling"] = "server limit"
        elif rate is not None or self._limit >= self._ceiling:
            why = "ceiling"
        else:
            why = "latency"
        pause = max(0.0, self._paused_until - self._clock())
        return PaceState(rate, self._limit, self._in_flight, len(self._waiters), pause, why)

    @property
    def learned(self) -> LearnedPace:
        """What is worth keeping for the next run."""
        return LearnedPace(self._rates.learned, self._limit)

    def close(self, refusal: TokenRefused) -> None:
        """Let nothing more go: the token was refused. Whoever waits gets that error at once."""
        self._refusal = self._refusal or refusal
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(self._refused())

    def succeeded(self, latency: float) -> None:
        """A request was answered well, after `latency` seconds."""
        now = self._clock()
        self._rates.look(now, latency)
        self._epoch_done += 1
        self._quickest = min(self._quickest, latency)
        if self._fresh and self._full and _SLOW <= latency <= self._quickest * _QUEUED:
            self._limit = min(self._limit + _QUADRUPLE, self._ceiling)
        # A quick service gives much with little, and its limit, if it has one, is soon met: fewer 429s then.
        least, growth = _EPOCH if latency >= _SLOW else _UNHURRIED
        if self._epoch_done >= self._limit and now - self._epoch_at >= least:
            self._end_epoch(now, growth=growth)

    def throttled(
        self, retry_after: float | None = None, *, started: float | None = None, overload: bool = False
    ) -> None:
        """The service asked for less. `started`: when the refused request left, by the pacer's clock."""
        now = self._clock()
        if retry_after is not None:
            self._paused_until = max(self._paused_until, now + min(retry_after, self._cap))
        if started is not None and started < self._cut_at:
            if not overload:
                self._rates.refused_again()
            return
        self._cut_at = now
        self._before, self._fresh = None, False
        self._start_epoch(now)
        if overload:
            # A struggling service: fewer at once, and a breath. Its rate limit is another matter.
            self._limit = max(1, self._limit // 2)
            self._rest_until = max(now, self._paused_until) + self._rest
            self._paused_until = max(self._paused_until, now + _OVERLOAD_PAUSE)
            return
        told = None if retry_after is None else self._paused_until - now
        self._paused_until = max(self._paused_until, now + self._rates.cut(now, told=told))

    def _end_epoch(self, now: float, *, growth: float) -> None:
        throughput = self._epoch_done / (now - self._epoch_at)
        full = self._full
        self._start_epoch(now)
        if self._before is not None:
            limit, former = self._before
            self._before = None
            if full and throughput < former * _GROWS:
                self._limit, self._fresh = limit, False
                self._rest_until, self._rest = now + self._rest, min(self._rest * 2, _REST[1])
                return
            self._rest = _REST[0]
        if full and now >= self._rest_until and self._limit < self._ceiling:
            self._before = (self._limit, throughput)
            self._limit = min(math.ceil(self._limit * growth), self._ceiling)
            self._wake()

    def _start_epoch(self, now: float) -> None:
        self._epoch_at, self._epoch_done, self._full = now, 0, False

    def _refused(self) -> TokenRefused:
        assert self._refusal is not None  # noqa: S101
        return type(self._refusal)(self._refusal.message)

    def _delay(self) -> float:
        """0: a request may leave now and counts as gone. Else seconds; infinite: when one returns."""
        if self._in_flight >= self._limit:
            self._full = True
            return float("inf")
        rate = self._rates.rate
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
                self._rates.held = True
                return self._next_at - now
            self._next_at = max(self._next_at, now - _LATE) + 1 / rate
        self._in_flight += 1
        return 0.0

    def _wake(self) -> None:
        """Let those go who may; set the one timer for the next."""
        waiters = self._waiters
        while waiters:
            if waiters[0].done():
                waiters.popleft()
                continue
            delay = self._delay()
            if delay:
                if delay != float("inf") and self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(delay, self._ring)
                return
            waiters.popleft().set_result(None)

    def _ring(self) -> None:
        self._timer = None
        self._wake()

    async def _enter(self) -> None:
        if self._refusal is not None:
            raise self._refused()
        if not self._waiters and not self._delay():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wake()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._leave()
            raise

    def _leave(self) -> None:
        self._in_flight -= 1
        if self._waiters:
            self._wake()


class _Slot:
    """The pacer as an asynchronous context; one object serves every request."""

    __slots__ = ("_pacer",)

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer

    async def __aenter__(self) -> None:
        await self._pacer._enter()  # noqa: SLF001

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pacer._leave()  # noqa: SLF001
