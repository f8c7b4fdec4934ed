"""Runs one API call from its first attempt to its value or error: rate limit, retries, statistics, redaction."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from msgspec import Struct, field

from pipeline.client.allowed_urls import origin
from pipeline.client.errors import (
    AttemptError,
    OutcomeUnknownError,
    RequestRejectedError,
    RetriesExhaustedError,
    ThrottledError,
)
from pipeline.client.rate_limiter import LearnedLimits, RateLimiter
from pipeline.client.retry import RetryPolicy, TimeSource
from pipeline.errors import AuthenticationError, ProtocolError, ScanlakeError
from pipeline.formatting import pluralize
from pipeline.urls import join_host_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pipeline.client.options import ClientOptions
    from pipeline.client.protocol import Response
    from pipeline.client.token_redactor import TokenRedactor

Value = TypeVar("Value")


class RequestStats(Struct):
    """Requests so far. `error_kinds` counts failed attempts by kind; `bytes` are those of bodies, as sent."""

    list: int = 0
    detail: int = 0
    share: int = 0
    report: int = 0
    other: int = 0
    retries: int = 0
    throttled: int = 0
    bytes: int = 0
    error_kinds: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        """All requests that were sent, with retries."""
        return self.list + self.detail + self.share + self.report + self.other + self.retries


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
        try:
            return await self.retry_policy.retry(
                first_error,
                partial(self._attempt, call),
                label=call.label,
                started=call.started or 0.0,
                is_retryable=lambda error: (
                    error.retryable and not call.may_have_taken_effect(error) and not self._is_postponed(call, error)
                ),
                on_retry=self._count_retry,
            )
        except AttemptError as error:
            raise self._final_error(call, error) from None

    def _is_postponed(self, call: ApiCall[Any], error: AttemptError) -> bool:
        """Return whether a share or an order must wait longer than any call may: a later run repeats it."""
        seconds = error.retry_after if isinstance(error, ThrottledError) and not call.is_idempotent else None
        return seconds is not None and seconds > self.retry_policy.options.max_retry_after_seconds

    def _count_retry(self) -> None:
        self.stats.retries += 1

    async def _attempt(self, call: ApiCall[Value]) -> Value:
        """Wait for the rate limiter, send, parse, and report the outcome to the rate limiter."""
        limiter, clock = self.rate_limiter, self.retry_policy.time_source.clock
        async with limiter:
            started = clock()
            if call.started is None:
                call.started = started
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
            limiter.on_success(clock() - started)
            return value

    def _final_error(self, call: ApiCall[Any], error: AttemptError) -> ScanlakeError:
        pause = ", with a Retry-After that is too long to wait" if self._is_postponed(call, error) else ""
        if call.may_have_taken_effect(error):
            is_answered = error.status is not None and error.status < 300 and error.kind != "cut"
            message = f"{call.label}: {error.detail}{pause}; the request may have taken effect."
            return OutcomeUnknownError(message, is_answered=is_answered, is_postponed=bool(pause))
        target = call.label
        if not error.may_have_reached_service:  # the address may be wrong
            target += f" at {self._describe_host(call.url)}"
        message = f"{target}: {error.detail}{pause} (after {pluralize(error.attempts, 'attempt')})."
        if error.is_protocol_error and call.label == "GET /files":
            return ProtocolError(message)
        return RetriesExhaustedError(
            message, kind=error.kind, attempts=error.attempts, status=error.status, hint=error.hint
        )

    def _describe_host(self, url: str) -> str:
        """Return host and port, without a token that a report's URL may have in them."""
        _, host, port = origin(url)
        return self.redactor.redact_text(join_host_port(host, port))
