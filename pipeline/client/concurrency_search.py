"""Search for the concurrency that throughput gains from, from latencies and counts. Pure: no clock, no waiting.

Up to `_UNPROVEN_LIMIT` the limit grows with the throughput. It is in one of these states:

1. *cold start* (`_cold_start`): each successful answer adds `_COLD_START_STEP` slots, until latency rises to
   `_QUEUEING_LATENCY_FACTOR` times the minimum, throughput stops growing, or the service throttles.
2. *hold*: the limit is constant. An epoch ends after as many answers as the limit and the seconds of its `_Epoch`.
3. *increase*: after a saturated epoch outside of a back-off, the limit is multiplied by the growth of its `_Epoch`.
4. *re-measure* (`_previous_limit`): the next epoch must have `_MIN_THROUGHPUT_GAIN` times the former throughput. If
   not, the former limit returns and the next increase waits; that back-off doubles within `_PROBE_BACKOFF_SECONDS`.
5. *decrease*: a 503 halves the limit.

Beyond `_UNPROVEN_LIMIT` each step of `_PROVEN_GROWTH` must prove itself, and only a slow service is asked. A step is
kept if the *power* grows: throughput / latency (Kleinrock 1979). By Little's law throughput is the requests in flight
/ latency, so a step of 1.5 is kept if throughput grows by at least its square root, 1.22, and latency by at most as
much. The limit thus ends within one step of the highest power: for a service with N workers near N, and for one whose
latency grows with the load where it has doubled. Only answers to requests sent after the last change are measured.
A limit whose latency rises to `_SLOWER_FACTOR`, or at which requests fail, is taken back by one step, as after a 429.

tests/client/test_concurrency_search.py and tests/client/test_rate_limiter.py have a case for each of them.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from msgspec import Struct


class _Epoch(NamedTuple):
    """The shortest epoch, and the factor of an increase after it."""

    min_seconds: float
    growth: float


INITIAL_CONCURRENCY: Final = 8
_UNPROVEN_LIMIT: Final = 64  # the first limit that a step must prove
_SLOW_LATENCY_SECONDS: Final = 0.05  # against a slower service, throughput depends on concurrency
_COLD_START_STEP: Final = 3
_QUEUEING_LATENCY_FACTOR: Final = 2.0  # a request that takes so many times the minimum was queued by the service
_SLOW_EPOCH: Final = _Epoch(0.1, 2.0)
_FAST_EPOCH: Final = _Epoch(0.25, 1.5)  # a fast service reaches its limit soon; slower growth causes fewer 429s
_MIN_THROUGHPUT_GAIN: Final = 1.15
_PROBE_BACKOFF_SECONDS: Final = (1.0, 30.0)  # between attempts to increase: first and longest
_PROVEN_GROWTH: Final = 1.5
_SLOWER_FACTOR: Final = 1.5  # of the latency at which a limit was kept
_MAX_FAILURE_RATIO: Final = 0.05  # of the answers at a limit, from `_MIN_FAILURES` on
_MIN_FAILURES: Final = 3


class _Measurement(Struct):
    """Answers to the requests that were sent since an instant. Latencies are in seconds."""

    since: float
    answers: int = 0
    failures: int = 0
    total_latency: float = 0.0
    total_in_flight: int = 0

    @property
    def latency(self) -> float:
        """Mean latency."""
        return self.total_latency / self.answers

    @property
    def power(self) -> float:
        """Throughput / latency, where throughput is requests in flight / latency."""
        return self.total_in_flight / self.answers / self.latency**2

    @property
    def is_failing(self) -> bool:
        """Whether more requests have failed than do by chance."""
        return self.failures >= _MIN_FAILURES and self.failures > _MAX_FAILURE_RATIO * self.answers


class AdaptiveConcurrency:
    """The number of requests that may be in flight: `limit`, at most `ceiling`."""

    def __init__(self, now: float, *, ceiling: int, learned: int | None = None) -> None:
        self.ceiling = ceiling
        self.limit = max(1, min(ceiling, learned or INITIAL_CONCURRENCY, _UNPROVEN_LIMIT))
        self.was_limiting = False  # a request waited for the limit in this epoch
        self._cold_start = learned is None
        self._min_latency = math.inf
        self._epoch_started = now
        self._epoch_successes = 0
        self._previous_limit: tuple[int, float] | None = None  # the limit before an increase, and its throughput
        self._measured = _Measurement(now)
        self._step_from: tuple[int, float] | None = None  # the limit before a step that must be proven, and its power
        self._kept_latency = math.inf  # mean latency at which the limit was kept
        self._backoff_seconds = _PROBE_BACKOFF_SECONDS[0]
        self._backoff_until = 0.0

    def on_success(self, now: float, latency: float, in_flight: int) -> None:
        """Record an answer after `latency` seconds, when so many requests were in flight with it."""
        measured = self._measured
        if now - latency >= measured.since:
            measured.answers += 1
            measured.total_latency += latency
            measured.total_in_flight += in_flight
        epoch = _SLOW_EPOCH if latency >= _SLOW_LATENCY_SECONDS else _FAST_EPOCH
        if self.limit > _UNPROVEN_LIMIT:
            if measured.answers >= self.limit and now - measured.since >= epoch.min_seconds:
                self._finish_measurement(now)
            return
        self._epoch_successes += 1
        self._min_latency = min(self._min_latency, latency)
        is_queued = latency > self._min_latency * _QUEUEING_LATENCY_FACTOR
        if self._cold_start and self.was_limiting and latency >= _SLOW_LATENCY_SECONDS and not is_queued:
            self._set_limit(now, min(self.limit + _COLD_START_STEP, self.ceiling, _UNPROVEN_LIMIT))
        if self._epoch_successes >= self.limit and now - self._epoch_started >= epoch.min_seconds:
            self._finish_epoch(now, growth=epoch.growth)

    def on_failure(self, now: float, started: float) -> None:
        """Record a request, sent at `started`, that failed on the way or with an error of the service."""
        self._measured.failures += started >= self._measured.since
        if self._measured.is_failing and self.limit > _UNPROVEN_LIMIT:
            self._step_back(now)

    def on_throttle(self, now: float, paused_until: float, *, overload: bool) -> None:
        """Take a step back after a 429; halve the limit after a 503 (`overload`)."""
        self._previous_limit, self._cold_start = None, False
        self._start_epoch(now)
        self._measured = _Measurement(now)
        if overload:
            self.limit, self._step_from = max(1, self.limit // 2), None
            self._backoff_until = max(now, paused_until) + self._backoff_seconds
        elif self.limit > _UNPROVEN_LIMIT:
            self._step_back(max(now, paused_until))

    def _finish_epoch(self, now: float, *, growth: float) -> None:
        """Judge the last increase and make the next one, up to `_UNPROVEN_LIMIT`."""
        throughput = self._epoch_successes / (now - self._epoch_started)
        was_limiting = self.was_limiting
        if self.limit == _UNPROVEN_LIMIT < self.ceiling and self._previous_limit is None:
            if self._measured.answers >= self.limit:
                self._finish_measurement(now)
            return
        self._start_epoch(now)
        if self._previous_limit is not None:
            limit, previous_throughput = self._previous_limit
            self._previous_limit = None
            if was_limiting and throughput < previous_throughput * _MIN_THROUGHPUT_GAIN:
                self._cold_start = False
                self._set_limit(now, limit)
                self._back_off(now)
                return
            self._backoff_seconds = _PROBE_BACKOFF_SECONDS[0]
        if was_limiting and now >= self._backoff_until and self.limit < min(self.ceiling, _UNPROVEN_LIMIT):
            self._previous_limit = (self.limit, throughput)
            self._set_limit(now, min(math.ceil(self.limit * growth), self.ceiling, _UNPROVEN_LIMIT))

    def _finish_measurement(self, now: float) -> None:
        """Keep or take back the last step beyond `_UNPROVEN_LIMIT`, and take the next one."""
        measured, was_limiting = self._measured, self.was_limiting
        step_from, self._step_from = self._step_from, None
        self._measured = _Measurement(now)
        self._start_epoch(now)
        if step_from is not None:
            if not was_limiting:
                self._set_limit(now, step_from[0])
                return
            if measured.power < step_from[1]:
                self._step_back(now, step_from)
                return
            self._backoff_seconds = _PROBE_BACKOFF_SECONDS[0]
            self._kept_latency = measured.latency
        elif self.limit == _UNPROVEN_LIMIT:
            self._kept_latency = measured.latency
        elif measured.latency > self._kept_latency * _SLOWER_FACTOR:
            self._step_back(now)
            return
        is_slow = measured.latency >= _SLOW_LATENCY_SECONDS and not measured.is_failing
        if is_slow and was_limiting and now >= self._backoff_until and self.limit < self.ceiling:
            self._step_from = (self.limit, measured.power)
            self._set_limit(now, min(math.ceil(self.limit * _PROVEN_GROWTH), self.ceiling))

    def _step_back(self, now: float, step_from: tuple[int, float] | None = None) -> None:
        """Return to the limit before the step that is being measured, else by one step."""
        step_from, self._step_from = step_from or self._step_from, None
        limit = step_from[0] if step_from else int(self.limit / _PROVEN_GROWTH)
        self._set_limit(now, max(_UNPROVEN_LIMIT, limit))
        self._back_off(now)

    def _back_off(self, now: float) -> None:
        self._backoff_until = now + self._backoff_seconds
        self._backoff_seconds = min(self._backoff_seconds * 2, _PROBE_BACKOFF_SECONDS[1])

    def _set_limit(self, now: float, limit: int) -> None:
        if limit == self.limit:
            return
        self.limit, self._measured = limit, _Measurement(now)
        if limit >= _UNPROVEN_LIMIT:
            self.was_limiting = False  # a step beyond needs a request that waits for this limit

    def _start_epoch(self, now: float) -> None:
        self._epoch_started, self._epoch_successes, self.was_limiting = now, 0, False
