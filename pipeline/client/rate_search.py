"""Search for the request rate that a service allows, from its 429s only. Pure: no clock, no waiting.

Services limit by token buckets, fixed windows or strict spacing, and document none of them. The search is of the AIMD
family (multiplicative decrease, stepped increase) and treats all three alike. It is in one of four states:

1. *hold*: the rate stays just below the last one that was allowed. It lasts `_MIN_HOLD_SECONDS`, longer after an
   expensive 429 (`_HOLD_PER_RETRY_AFTER`, `_MAX_THROTTLE_RATIO`, `_MAX_HOLD_SECONDS`), and only
   `_UNCERTAIN_HOLD_SECONDS` while the limit is not known well.
2. *increase* (`_base` is set): the rate grows in steps of `_STEP_SECONDS`, from `_INITIAL_INCREASE` (or
   `_COLD_INCREASE`); the distance from the base grows by `_INCREASE_GROWTH` until a 429, or until requests no longer
   wait for the rate. A first 429 within `_BURST_SECONDS` has measured a window or a small bucket: the first increase
   then holds each step for a whole window, and doubles the rate from the second step on.
3. *decrease*: a 429 near the base (`_NEAR_BASE_FACTOR`) returns to the base; one far above it returns to the last rate
   that held for a whole window. A 429 during *hold* means that the limit was lowered or never known well: it leads to
   `_DECREASE_FACTORS`, and soon after a decrease (`_EARLY_THROTTLE_SECONDS`) to the measured rate.
4. *re-measure*: after the first 429, and after a burst (a bucket that ran empty), the rate is what
   the last second or the time since the last decrease has allowed, with doubling pauses (`_BURST_END_PAUSE_SECONDS`).

tests/client/test_rate_limiter.py shows each case against models of such limits (tests/client/rate_limit_models.py).
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

_BIN_SECONDS: Final = 0.05
_WINDOW_SECONDS: Final = 5.0
_MIN_RATE: Final = 0.5  # requests per second; below it the service is down rather than limited
_INITIAL_RATE: Final = 5.0  # requests per second; the first 429 often arrives before the first successes
_BURST_SECONDS: Final = 0.5  # a first 429 within it has measured a burst rather than a rate
_MIN_FLOW_SECONDS: Final = 0.2  # shorter measurements mean nothing
_MIN_SAMPLES: Final = 30  # successes; fewer measure nothing
_EARLY_THROTTLE_SECONDS: Final = 3.0  # a 429 this soon after the last one means that the last decrease was too small
_STEP_SECONDS: Final = (0.5, 1.0)  # near the base, and far above it: there a step must hold for a whole window
_INITIAL_INCREASE: Final = 0.02  # the first step above the base
_COLD_INCREASE: Final = (0.1, 0.4)  # the first step if little is known, and if nothing is known
_INCREASE_GROWTH: Final = (1.45, 2.0)  # of the distance from the base per step: near the base, and far above it
_MAX_STEP_FACTOR: Final = (1.4, 2.0)  # of one rate to the next, and if only a burst was measured
_NEAR_BASE_FACTOR: Final = 1.15  # a 429 within this of the base means that the limit has not changed
_DECREASE_FACTORS: Final = (0.93, 0.93, 0.7, 0.5)  # by the number of 429s since a burst ended
_MIN_HOLD_SECONDS: Final = 5.0  # if the limit is well known
_HOLD_PER_RETRY_AFTER: Final = 20.0  # seconds of hold per second of `Retry-After`
_MAX_THROTTLE_RATIO: Final = 0.006  # the hold lasts until 429s are at most this share of the answers
_MAX_HOLD_SECONDS: Final = (30.0, 300.0)  # because of their share, and because of `Retry-After`
_UNCERTAIN_HOLD_SECONDS: Final = 1.0
_DEFAULT_PAUSES_SECONDS: Final = (0.2, 0.5, 1.0)  # without `Retry-After`: after an increase, later ones, the first
_BURST_END_PAUSE_SECONDS: Final = 0.1  # at least, after a burst; doubled each time


class SuccessCounter:
    """Successes of the last seconds, in bins."""

    def __init__(self) -> None:
        self._bins: deque[list[float]] = deque()

    def record(self, now: float) -> None:
        """Add one success."""
        bins = self._bins
        if bins and now - bins[-1][0] < _BIN_SECONDS:
            bins[-1][1] += 1
            return
        bins.append([now, 1])
        while now - bins[0][0] > _WINDOW_SECONDS:
            bins.popleft()

    def count_all(self, now: float) -> tuple[float, float]:
        """Return the successes of the last `_WINDOW_SECONDS`, and the seconds since the first of them."""
        return sum(count for _, count in self._bins), now - self._bins[0][0] if self._bins else 0.0

    def count_since(self, then: float) -> float:
        """Return the successes since `then`, at most `_WINDOW_SECONDS` ago."""
        return sum(count for at, count in self._bins if at >= then)


class AdaptiveRate:
    """Requests per second; None until the first 429, unless there is a ceiling."""

    def __init__(self, *, ceiling: float | None = None, learned: float | None = None) -> None:
        self.ceiling = ceiling
        self.rate = self._clamp(learned) if learned else ceiling
        self.was_limiting = False  # a request waited for the rate: nothing else was the limit
        self._successes = SuccessCounter()
        self._limit_seen = learned is not None
        # The rate is near the limit, not far below it. One this low is of a disturbance more often than of a limit.
        self._known = learned is not None and learned >= _INITIAL_RATE
        self._burst, self._burst_seconds = 0.0, math.inf  # successes before the first 429, and the time they took
        self._knows_burst_only = False  # nothing else is measured yet
        self._is_token_bucket = False  # the service adds what it did not allow in a pause to what follows
        self._base: float | None = None  # where the current increase began; None during hold
        self._first_step = _INITIAL_INCREASE if self._known else _COLD_INCREASE[1]  # of the next increase
        self._step = 0.0  # distance above the base, as a share of it
        self._recent_steps: deque[float] = deque(maxlen=4)  # rates before the current one
        self._fallback: float | None = None  # where to go if the rate after a long increase is throttled too
        self._decreased_at = 0.0
        self._resumed_at = 0.0  # when requests were sent again after the last decrease
        self._hold_seconds = _MIN_HOLD_SECONDS if self._known else _UNCERTAIN_HOLD_SECONDS
        self._next_step_at: float | None = None
        self._successes_since_decrease = 0
        self._burst_ends = 0  # 429s in a row since a burst ended
        self._success_budget = 0.0  # successes to wait for before 429s are risked again

    @property
    def learned(self) -> float | None:
        """The rate to start the next run with, None if no limit was met: during an increase, the last one that held."""
        if not self._limit_seen or self.rate is None:
            return None
        return self.rate if self._base is None else self._recent_steps[-1]

    def on_throttle(self, now: float, *, retry_after: float | None) -> float:
        """Decrease the rate. Return the seconds to pause; `retry_after` are those that the service named."""
        is_early = self._limit_seen and now - self._resumed_at < 1.0
        # Random 429s come in a row as well; the end of a burst is one that was faster than this.
        burst_ended = is_early and self._successes.count_since(now - 1.0) > max(self.rate or 0.0, _MIN_SAMPLES)
        self._burst_ends = self._burst_ends + burst_ended if is_early else 0
        pause, hold = retry_after, _MIN_HOLD_SECONDS
        if pause is None:
            near_base = self._base is not None and (self.rate or 0.0) <= self._base * _NEAR_BASE_FACTOR
            pause = _DEFAULT_PAUSES_SECONDS[0 if near_base else 1 if self._limit_seen and not is_early else 2]
        else:
            hold = min(max(hold, _HOLD_PER_RETRY_AFTER * pause), _MAX_HOLD_SECONDS[1])
        if self._burst_ends:
            pause = max(pause, min(_BURST_END_PAUSE_SECONDS * 2**self._burst_ends, 1.0))
        self.rate = self._clamp(self._decrease(now))
        self._success_budget += self._limit_seen / _MAX_THROTTLE_RATIO  # the first 429 is not counted
        self._limit_seen, self._base, self.was_limiting, self._successes_since_decrease = True, None, False, 0
        self._decreased_at, self._resumed_at = now, now + pause
        self._hold_seconds = hold if self._known else _UNCERTAIN_HOLD_SECONDS
        self._next_step_at = self._resumed_at + self._hold_seconds
        return pause

    def on_repeated_throttle(self) -> None:
        """Record another 429 of the same burst: it lengthens the hold."""
        self._success_budget += self._known / _MAX_THROTTLE_RATIO

    def on_success(self, now: float, latency: float) -> None:
        """Record a success. Increase the rate if it has held long enough and requests wait for it."""
        self._successes.record(now)
        self._successes_since_decrease += 1
        self._success_budget = max(0.0, self._success_budget - 1)
        rate = self.rate
        if rate is None or rate == self.ceiling:
            return
        if self._next_step_at is None:
            self._next_step_at = now + self._hold_seconds
        if now < self._next_step_at or self._should_hold(now):
            return
        was_limiting, self.was_limiting = self.was_limiting, False
        if was_limiting:
            self._increase(rate)
        is_far = self._base is not None and (self.rate or 0.0) > self._base * _NEAR_BASE_FACTOR
        must_hold = was_limiting and (is_far or self._knows_burst_only)
        self._next_step_at = now + max(_STEP_SECONDS[must_hold], 5 / rate, 8 * latency)

    def _should_hold(self, now: float) -> bool:
        """Return whether the 429s so far are too large a share of the answers for another increase."""
        is_holding = self._base is None and self._known
        return is_holding and bool(self._success_budget) and now < self._resumed_at + _MAX_HOLD_SECONDS[0]

    def _increase(self, rate: float) -> None:
        if self._base is None:
            self._base, self._step = rate, self._first_step
            self._recent_steps.clear()
        elif self._knows_burst_only:
            self._step = 2 * self._step + 1  # twice the rate
        else:
            next_step = self._step * _INCREASE_GROWTH[rate > self._base * _NEAR_BASE_FACTOR]
            self._step = max(self._step + (self._first_step if self._first_step > _INITIAL_INCREASE else 0), next_step)
        self._recent_steps.append(rate)
        max_rate = rate * max(_MAX_STEP_FACTOR[self._knows_burst_only], 1 + self._first_step)
        self.rate = self._clamp(min(self._base * (1 + self._step), max_rate))

    def _decrease(self, now: float) -> float:
        """Return the rate after a 429."""
        rate, base, fallback = self.rate, self._base, self._fallback
        known, self._known, self._fallback, self._first_step = self._known, True, None, _INITIAL_INCREASE
        if rate is None or not self._limit_seen or (self._knows_burst_only and base is None):
            self._known = False
            measured = self._successes.count_since(now - 1.0)
            self._burst, self._burst_seconds = self._successes.count_all(now)
            self._knows_burst_only = self._burst_seconds < _BURST_SECONDS
            self._first_step = _COLD_INCREASE[measured < _MIN_SAMPLES / 3]
            return min(rate or math.inf, max(measured * 0.97, _INITIAL_RATE))
        self._knows_burst_only = False
        if base is not None:
            return self._rate_after_failed_increase(now, rate, base, fallback, known=known)
        if now - self._resumed_at >= _EARLY_THROTTLE_SECONDS:
            if self._is_token_bucket:
                return self._successes_since_decrease / (now - self._decreased_at) * 0.97
            return rate * _DECREASE_FACTORS[0]
        return self._rate_after_early_throttle(now, rate, fallback or 0.0)

    def _rate_after_early_throttle(self, now: float, rate: float, fallback: float) -> float:
        """Return the rate after a 429 during hold, soon after the last decrease."""
        flow_seconds = now - self._resumed_at
        if fallback and flow_seconds > _MIN_FLOW_SECONDS:
            allowed = self._successes_since_decrease / (now - self._decreased_at)
            self._is_token_bucket = 0.85 < allowed / fallback < _NEAR_BASE_FACTOR
        self._known = bool(fallback) and self._is_token_bucket
        # A bucket adds what it did not allow in a pause to what follows; a window of a second does not.
        if flow_seconds < 1.0:
            measured = self._successes.count_since(now - 1.0)
        else:
            measured = self._successes_since_decrease / (now - self._decreased_at)
        if flow_seconds > self._burst_seconds + _MIN_FLOW_SECONDS:
            # Two bursts from a full bucket differ by what the limit has added in the longer one. A window added less.
            added = (self._successes_since_decrease - self._burst) / (flow_seconds - self._burst_seconds)
            measured = max(measured, added)
        min_share = 0.3 if self._is_token_bucket or flow_seconds < 1.0 else 0.75 if flow_seconds < 2.0 else 0.9
        min_rate = max(min_share, 0.0 if measured > _MIN_SAMPLES else 0.65) * rate
        max_rate = rate * _DECREASE_FACTORS[min(self._burst_ends, len(_DECREASE_FACTORS) - 1)]
        return min(max(measured * 0.97, fallback * 0.985, 0.0 if self._known else min_rate), max_rate)

    def _rate_after_failed_increase(
        self, now: float, rate: float, base: float, fallback: float | None, *, known: bool
    ) -> float:
        """Return the rate after an increase from `base` ended at `rate`."""
        seconds = now - self._decreased_at
        # Less what a full bucket contained.
        recent = (self._successes.count_since(now - _WINDOW_SECONDS) - base) / _WINDOW_SECONDS
        allowed = max(self._successes_since_decrease / seconds, recent if seconds > _WINDOW_SECONDS else 0.0)
        # The base is a little below the measured rate: the mean can exceed it with a bucket, never with a window.
        self._is_token_bucket = self._is_token_bucket and base * 1.005 < allowed < base * _NEAR_BASE_FACTOR
        is_near_base = rate <= base * _NEAR_BASE_FACTOR
        if self._is_token_bucket and seconds > 2.0:
            self._known = allowed < base * 1.06
            return min(max(allowed * 0.985, base * 0.97 if is_near_base else 0.0), rate * 0.97)
        steps = self._recent_steps
        proven, latest = steps[max(-3, -len(steps))], steps[max(-2, -len(steps))]
        if is_near_base:
            if not known and now - self._resumed_at < _EARLY_THROTTLE_SECONDS:
                self._fallback = fallback  # the base itself is uncertain
                return base * 0.975
            return max(base if known and len(steps) > 1 else base * 0.985, proven * 0.99)
        # Far above the base either the limit was raised or a full bucket ran empty. Assume the first; in the second
        # case the next 429 comes soon.
        proven = (latest if known else steps[-1]) * 0.985
        self._known, self._fallback = False, base if proven > base * 1.02 else None
        self._first_step = max(_INITIAL_INCREASE, (rate - proven) / proven / 6)
        return proven

    def _clamp(self, rate: float) -> float:
        rate = max(rate, _MIN_RATE)
        return rate if self.ceiling is None else min(rate, self.ceiling)
