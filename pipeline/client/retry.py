"""Retry policy for all idempotent calls.

A call is limited by attempts and by time, with exponential back-off and full jitter. A budget limits the retries of
all calls together: about one for every two requests, an initial capacity, and one per second. No retry begins
after a long silence of the host: many calls that each wait for the budget would take minutes to find out the same.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import tenacity
from msgspec import Struct

from pipeline.client.errors import ANSWER_KINDS, AttemptError, ThrottledError
from pipeline.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pipeline.client.options import ClientOptions

_log = get_logger()
Value = TypeVar("Value")

BUDGET_CAPACITY: Final = 100.0  # retries
BUDGET_PER_REQUEST: Final = 0.5  # retries
BUDGET_PER_SECOND: Final = 1.0  # retries
_FIRST_JITTER_SECONDS: Final = 0.5
_MAX_JITTER_SECONDS: Final = 30.0
_MAX_THROTTLE_JITTER_SECONDS: Final = 0.1
_THROTTLE_ATTEMPT_FACTOR: Final = 5  # a 429 is not a failure: a call may have this many times more of them
_UNREACHABLE: Final = {"connect", "dns", "handshake"}
_MAX_FIRST_HANDSHAKES: Final = 2  # a service that ends two without any answer does not support this client's TLS


@dataclass(frozen=True, slots=True)
class TimeSource:
    """Clock, sleep and random numbers. Tests inject their own, to run hours of back-off at once."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random


class RetryBudget:
    """The budget of retries. A retry may be withdrawn in advance, and then waits until it is covered."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._balance = BUDGET_CAPACITY
        self._updated_at = clock()

    def deposit(self) -> None:
        """Add the share of a retry that a first attempt earns."""
        self._balance = min(self._balance + BUDGET_PER_REQUEST, BUDGET_CAPACITY)

    def withdraw(self) -> float:
        """Take one retry. Return the seconds to wait until it is covered."""
        now = self._clock()
        earned = (now - self._updated_at) * BUDGET_PER_SECOND
        self._balance = min(self._balance + earned, BUDGET_CAPACITY) - 1
        self._updated_at = now
        return max(0.0, -self._balance / BUDGET_PER_SECOND)


@dataclass(slots=True)
class RetryPolicy:
    """The limits of all calls.

    `retry` is called after a first attempt failed. So a successful call does not pay for tenacity: at least 20 us,
    measured, beside about 200 us for the request itself.
    """

    options: ClientOptions
    time_source: TimeSource = TimeSource()
    was_answered: bool = False  # the service has sent any answer at all
    silent_since: float | None = None  # start of the first attempt that failed since the last sign of life
    budget: RetryBudget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = RetryBudget(self.time_source.clock)

    def note_failure(self, error: AttemptError, started: float) -> None:
        """Record an attempt that began at `started`: a pause that the host asks for, or a part of a body, is a sign."""
        asks_for_pause = isinstance(error, ThrottledError) and (error.retry_after or not error.is_overload)
        if asks_for_pause or error.kind in ANSWER_KINDS:
            self.silent_since = None
        elif self.silent_since is None:
            self.silent_since = started

    def silence_left(self) -> float:
        """Return the seconds until the host has been silent for too long: then each call has a last attempt."""
        silence = 0.0 if self.silent_since is None else self.time_source.clock() - self.silent_since
        return max(0.0, self.options.max_silence_seconds - silence)

    async def retry(
        self,
        first_error: AttemptError,
        attempt: Callable[[], Awaitable[Value]],
        *,
        label: str,
        started: float,
        on_retry: Callable[[], None] = lambda: None,
        is_retryable: Callable[[AttemptError], bool] = lambda error: error.retryable,
    ) -> Value:
        """Repeat a call whose first attempt began at `started` and ended in `first_error`.

        Raises the last `AttemptError` with the number of attempts.
        """
        state = _RetryState(self, started)
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, AttemptError) and is_retryable(error)),
            wait=state.next_pause,
            stop=state.is_exhausted,
            sleep=self.time_source.sleep,
            before_sleep=lambda call: _log_retry(label, call),
            reraise=True,
        )

        async def repeat() -> Value:
            number = retrying.statistics["attempt_number"]
            try:
                if number == 1:
                    raise first_error
                on_retry()
                return await attempt()
            except AttemptError as error:
                error.attempts = number
                raise

        return await retrying(repeat)


class _RetryState(Struct):
    """The failures of one call so far. Its methods are tenacity's wait and stop strategies, called in this order."""

    policy: RetryPolicy
    started: float
    failures: int = 0
    throttles: int = 0
    retry_after_total: float = 0.0  # seconds that the service asked for; they do not count against the deadline

    def next_pause(self, call: tenacity.RetryCallState) -> float:
        """Return a pause with full jitter. The rate limiter holds back all calls for `Retry-After`, this one too."""
        policy, error = self.policy, _error_of(call)
        if isinstance(error, ThrottledError):
            self.retry_after_total += min(error.retry_after or 0.0, policy.options.max_retry_after_seconds)
            if not error.is_overload:
                self.throttles += 1
                return policy.time_source.random() * _MAX_THROTTLE_JITTER_SECONDS
        self.failures += 1
        max_pause = min(_MAX_JITTER_SECONDS, _FIRST_JITTER_SECONDS * 2.0 ** (self.failures - 1))
        return min(max(policy.time_source.random() * max_pause, policy.budget.withdraw()), policy.silence_left())

    def is_exhausted(self, call: tenacity.RetryCallState) -> bool:
        """Return whether attempts or time are used up. No pause begins that would end after the deadline."""
        policy, options = self.policy, self.policy.options
        if self.failures >= options.max_attempts or self.throttles >= options.max_attempts * _THROTTLE_ATTEMPT_FACTOR:
            return True
        deadline = options.total_deadline_seconds + min(self.retry_after_total, 2 * options.max_retry_after_seconds)
        if not policy.was_answered and (kind := _error_of(call).kind) in _UNREACHABLE:
            if kind == "handshake" and self.failures >= _MAX_FIRST_HANDSHAKES:
                return True
            deadline = min(deadline, options.initial_connect_seconds)
        return not policy.silence_left() or policy.time_source.clock() + call.upcoming_sleep - self.started > deadline


def _error_of(call: tenacity.RetryCallState) -> AttemptError:
    error = call.outcome.exception() if call.outcome is not None else None
    if not isinstance(error, AttemptError):
        raise TypeError("only an AttemptError is retried")
    return error


def _log_retry(label: str, call: tenacity.RetryCallState) -> None:
    _log.debug(
        "request.retried",
        request=label,
        error_kind=_error_of(call).kind,
        attempts=call.attempt_number,
        wait_seconds=round(call.upcoming_sleep, 2),
    )
