"""API calls from their first attempt to their value or error: rate limit, retries, statistics, redaction.

A call is limited by attempts and by time, with exponential back-off and full jitter. A budget limits the retries of
all calls together: about one for every two requests, an initial capacity, and one per second. No retry begins
after a long silence of the host: many calls that each wait for the budget would take minutes to find out the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar

import tenacity
from msgspec import Struct, field

from pipeline.client.allowed_urls import origin
from pipeline.client.errors import (
    ANSWER_KINDS,
    AttemptError,
    OutcomeUnknownError,
    RequestRejectedError,
    RetriesExhaustedError,
    ThrottledError,
)
from pipeline.client.rate_limiter import LearnedLimits, RateLimiter
from pipeline.errors import AuthenticationError, ProtocolError, ScanlakeError
from pipeline.output.formatting import pluralize
from pipeline.output.logs import log
from pipeline.settings.urls import join_host_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pipeline.client.protocol import Response
    from pipeline.client.token_redactor import TokenRedactor

MIB: Final = 1024**2
GIB: Final = 1024**3
MAX_ATTEMPTS: Final = 6  # of one request
BUDGET_CAPACITY: Final = 100.0  # retries
BUDGET_PER_REQUEST: Final = 0.5  # retries
BUDGET_PER_SECOND: Final = 1.0  # retries
_FIRST_JITTER_SECONDS: Final = 0.5
_MAX_JITTER_SECONDS: Final = 30.0
_THROTTLE_JITTER_SECONDS: Final = (0.1, 5.0)  # first and longest: a limit of one route refuses its calls alone
_THROTTLE_ATTEMPT_FACTOR: Final = 5  # a 429 is not a failure: a call may have this many times more of them
_PATIENCE: Final = 8.0  # times the usual latency
_PATIENCE_MEMORY: Final = 0.01  # share of a new answer in the usual latency
_PATIENCE_ANSWERS: Final = 5  # fewer are no measure
_MIN_PATIENCE_SECONDS: Final = 2.0
_FIRST_PATIENCE_SECONDS: Final = 15.0  # before these
_UNREACHABLE: Final = {"connect", "dns", "handshake"}
_MAX_FIRST_HANDSHAKES: Final = 2  # a service that ends two without any answer does not support this client's TLS
Value = TypeVar("Value")


class ClientOptions(Struct, frozen=True):
    """Options of `Client`. Sizes are those of decoded bodies."""

    max_concurrency: int = 512
    max_requests_per_second: float | None = None
    max_attempts: int = MAX_ATTEMPTS
    total_deadline_seconds: float = 300.0  # for a call with its retries; `Retry-After` pauses are added
    initial_connect_seconds: float = 15.0  # until the service has sent any answer
    connect_timeout_seconds: float = 10.0
    attempt_timeout_seconds: float = 60.0
    max_body_bytes: int = 64 * MIB
    token_location: Literal["query", "header"] = "query"  # noqa: S105 - a location, not a token
    max_retry_after_seconds: float = 900.0
    max_silence_seconds: float = math.inf  # of a host, after which no call to it is repeated
    user_agent: str = "scanlake"
    proxy: str | None = None  # for https only: a proxy would see the token in plain http


@dataclasses.dataclass(frozen=True, slots=True)
class TimeSource:
    """Clock, sleep and random numbers. Tests inject their own, to run hours of back-off at once."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random


class Patience(Struct):
    """How long an answer is waited for: a stalled call is given up far below the time limit of an attempt.

    The bound is many times the usual latency, and doubles with each attempt of a call, so that a service that has
    become slow is waited for.
    """

    answers: int = 0
    mean: float = 0.0
    deviation: float = 0.0

    def observe(self, seconds: float) -> None:
        """Learn from an answer, or from a call that was given up, after some seconds."""
        self.answers += 1
        share = max(1 / self.answers, _PATIENCE_MEMORY)
        self.deviation += (abs(seconds - self.mean) - self.deviation) * share
        self.mean += (seconds - self.mean) * share

    def seconds(self, call: ApiCall[Any]) -> float:
        """Return the seconds to wait in the next attempt of a call; infinite if it must not be sent twice."""
        if not call.is_idempotent:
            return math.inf
        usual = max(_MIN_PATIENCE_SECONDS, _PATIENCE * (self.mean + 4 * self.deviation))
        bound = usual if self.answers >= _PATIENCE_ANSWERS else _FIRST_PATIENCE_SECONDS
        return bound * 2.0**call.timeouts


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


@dataclasses.dataclass(slots=True)
class RetryPolicy:
    """The limits of all calls.

    `retry` is called after a first attempt failed. So a successful call does not pay for tenacity: at least 20 us,
    measured, beside about 200 us for the request itself.
    """

    options: ClientOptions
    time_source: TimeSource = TimeSource()
    was_answered: bool = False  # the service has sent any answer at all
    silent_since: float | None = None  # start of the first attempt that failed since the last sign of life
    budget: RetryBudget = dataclasses.field(init=False)
    patience: Patience = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.budget = RetryBudget(self.time_source.clock)
        self.patience = Patience()

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
        """Return a pause with full jitter, after `Retry-After`, which may be for this call alone."""
        policy, error, asked = self.policy, _error_of(call), 0.0
        if isinstance(error, ThrottledError):
            asked = min(error.retry_after or 0.0, policy.options.max_retry_after_seconds)
            self.retry_after_total += asked
            if not error.is_overload:
                self.throttles += 1
                first, longest = _THROTTLE_JITTER_SECONDS
                jitter = policy.time_source.random() * min(longest, first * 2.0 ** (self.throttles - 1))
                return asked + jitter
        self.failures += 1
        max_pause = min(_MAX_JITTER_SECONDS, _FIRST_JITTER_SECONDS * 2.0 ** (self.failures - 1))
        jitter = policy.time_source.random() * max_pause
        return min(max(asked + jitter, policy.budget.withdraw()), policy.silence_left())

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
    log.debug(
        "request.retried",
        request=label,
        error_kind=_error_of(call).kind,
        attempts=call.attempt_number,
        wait_seconds=round(call.upcoming_sleep, 2),
    )


class RequestStats(Struct):
    """Requests so far. `error_kinds` counts failed attempts by kind; `bytes` are those of bodies, as sent."""

    list: int = 0
    detail: int = 0
    other: int = 0
    retries: int = 0
    throttled: int = 0
    bytes: int = 0
    error_kinds: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        """All requests that were sent, with retries."""
        return self.list + self.detail + self.other + self.retries


class ApiCall(Struct, Generic[Value]):
    """One call: its URL, and how to parse its answer."""

    label: str  # its name in messages: method and path, never the query
    url: str
    parse: Callable[[Response], Value]
    method: str = "GET"
    body: bytes | None = None
    is_idempotent: bool = True
    timeout_seconds: float | None = None  # for one attempt; None: that of the client's options
    started: float | None = None  # seconds of the retry policy's clock
    timeouts: int = 0
    patience_seconds: float = math.inf  # for this attempt

    def may_have_taken_effect(self, error: AttemptError) -> bool:
        """Return whether a call that must not be repeated may have taken effect. A 429 has no effect."""
        is_throttled = isinstance(error, ThrottledError) and not error.is_overload
        return not self.is_idempotent and error.may_have_reached_service and not is_throttled


class CallRunner(Struct, frozen=True):
    """Runs calls. `send` sends one request and returns its complete response, or raises `AttemptError`."""

    send: Callable[[ApiCall[Any]], Awaitable[Response]]
    rate_limiter: RateLimiter
    retry_policy: RetryPolicy
    stats: RequestStats
    redactor: TokenRedactor

    @classmethod
    def create(
        cls,
        send: Callable[[ApiCall[Any]], Awaitable[Response]],
        options: ClientOptions,
        stats: RequestStats,
        redactor: TokenRedactor,
        *,
        learned: LearnedLimits | None = None,
        time_source: TimeSource | None = None,
    ) -> Self:
        """Return a runner with the limits of `options`, for one host."""
        limiter = RateLimiter(
            max_concurrency=options.max_concurrency,
            max_rate=options.max_requests_per_second,
            max_retry_after_seconds=options.max_retry_after_seconds,
            learned=learned,
        )
        return cls(send, limiter, RetryPolicy(options, time_source or TimeSource()), stats, redactor)

    async def run(self, call: ApiCall[Value]) -> Value:
        """Return the call's value, after retries if it is idempotent."""
        self.retry_policy.budget.deposit()
        try:
            return await self._attempt(call)
        except AttemptError as error:
            first_error = error

        async def repeat() -> Value:
            self.stats.retries += 1
            return await self._attempt(call)

        try:
            return await self.retry_policy.retry(
                first_error,
                repeat,
                label=call.label,
                started=call.started or 0.0,
                is_retryable=lambda error: (
                    error.retryable and not call.may_have_taken_effect(error) and not self._is_postponed(call, error)
                ),
            )
        except AttemptError as error:
            raise self._final_error(call, error) from None

    def _is_postponed(self, call: ApiCall[Any], error: AttemptError) -> bool:
        """Return whether a share or an order must wait longer than any call may: a later run repeats it."""
        seconds = error.retry_after if isinstance(error, ThrottledError) and not call.is_idempotent else None
        return seconds is not None and seconds > self.retry_policy.options.max_retry_after_seconds

    async def _attempt(self, call: ApiCall[Value]) -> Value:
        """Wait for the rate limiter, send, parse, and report the outcome to the rate limiter."""
        limiter, clock = self.rate_limiter, self.retry_policy.time_source.clock
        if not call.is_idempotent:
            await limiter.wait_out_pauses()
        async with limiter:
            started = clock()
            if call.started is None:
                call.started = started
            call.patience_seconds = self.retry_policy.patience.seconds(call)
            try:
                response = await self.send(call)
                self.retry_policy.was_answered = True
                value = call.parse(response)
            except AttemptError as error:
                self.retry_policy.was_answered |= error.status is not None
                error.detail = self.redactor.redact_text(error.detail)
                error.args = (error.detail,)
                self.stats.error_kinds[error.kind] += 1
                self.retry_policy.note_failure(error, started)
                if error.kind == "timeout":
                    call.timeouts += 1
                    self.retry_policy.patience.observe(clock() - started)
                if isinstance(error, ThrottledError):
                    self.stats.throttled += not error.is_overload
                    # The pause of a call that is not repeated must not stop the others.
                    pause = None if self._is_postponed(call, error) else error.retry_after
                    limiter.on_throttle(pause, started=started, overload=error.is_overload)
                else:
                    limiter.on_failure(started=started)
                raise
            except ScanlakeError as error:
                error.message = self.redactor.redact_text(error.message)
                error.args = (error.message,)
                if isinstance(error, RequestRejectedError):
                    error.reason = self.redactor.redact_text(error.reason)
                    limiter.on_success(clock() - started)
                elif isinstance(error, AuthenticationError):
                    limiter.fail_all(error)
                raise
            self.retry_policy.silent_since = None
            self.retry_policy.patience.observe(seconds := clock() - started)
            limiter.on_success(seconds)
            return value

    def _final_error(self, call: ApiCall[Any], error: AttemptError) -> ScanlakeError:
        pause = ", with a Retry-After that is too long to wait" if self._is_postponed(call, error) else ""
        if call.may_have_taken_effect(error):
            is_answered = error.status is not None and error.status < 300 and error.kind != "cut"
            message = f"{call.label}: {error.detail}{pause}; the request may have taken effect."
            return OutcomeUnknownError(message, is_answered=is_answered, is_postponed=bool(pause))
        target = call.label
        if not error.may_have_reached_service:  # the address may be wrong
            _, host, port = origin(call.url)
            target += f" at {self.redactor.redact_text(join_host_port(host, port))}"  # a report's URL may have a token
        message = f"{target}: {error.detail}{pause} (after {pluralize(error.attempts, 'attempt')})."
        if error.is_protocol_error and call.label == "GET /files":
            return ProtocolError(message)
        return RetriesExhaustedError(
            message, kind=error.kind, attempts=error.attempts, status=error.status, hint=error.hint
        )
