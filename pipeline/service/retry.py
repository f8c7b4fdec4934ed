"""How often again: one policy for every call that is safe to repeat.

Bounded by attempts and by time, with exponential back-off and full jitter. A budget spreads the retries of a
storm: about one for every two requests, a floor for the beginning, and one a second for as long as it lasts.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
import tenacity

from pipeline.service.faults import Fault, Throttled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log = structlog.get_logger("scanlake.service")
Value = TypeVar("Value")

FLOOR: Final = 100.0  # retries at once that are always allowed
SHARE: Final = 0.5  # retries a request
PER_SECOND: Final = 1.0
_JITTER_FROM: Final = 0.5  # seconds
_JITTER_TOP: Final = 30.0
_THROTTLES: Final = 5  # a 429 is no failure: a call bears this many times more of them
_UNREACHABLE: Final = {"connect", "dns"}


@dataclass(frozen=True, slots=True)
class Seams:
    """Clock, sleep and chance, so that tests run six hours of back-off in no time."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random


class RetryBudget:
    """Tickets for retries. A retry may take one in advance, and then waits until it is earned."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tickets = FLOOR
        self._at = clock()

    def earn(self) -> None:
        """A first try was made."""
        self._tickets = min(self._tickets + SHARE, FLOOR)

    def take(self) -> float:
        """Take a ticket; how many seconds to wait for it."""
        now = self._clock()
        self._tickets = min(self._tickets + (now - self._at) * PER_SECOND, FLOOR) - 1
        self._at = now
        return max(0.0, -self._tickets / PER_SECOND)


class GaveUp(Exception):
    """Every try failed. `fault` is the last one."""

    def __init__(self, fault: Fault, tries: int) -> None:
        super().__init__(fault.kind)
        self.fault = fault
        self.tries = tries


class RetryPolicy:
    """The one policy. `go_on` takes over when a first try has failed; the good way costs nothing."""

    def __init__(
        self,
        *,
        attempts: int = 6,
        max_seconds: float = 300.0,
        first_contact_seconds: float = 15.0,
        retry_after_cap: float = 900.0,
        seams: Seams | None = None,
    ) -> None:
        self.seams = seams or Seams()
        self.budget = RetryBudget(self.seams.clock)
        self.contacted = False  # the service has answered something, whatever it was
        self.attempts = attempts
        self.max_seconds = max_seconds
        self.first_contact = first_contact_seconds
        self.cap = retry_after_cap

    async def go_on(
        self,
        fault: Fault,
        once: Callable[[], Awaitable[Value]],
        *,
        what: str,
        started: float,
        retrying: Callable[[], None] = lambda: None,
        may_repeat: Callable[[Fault], bool] = lambda fault: fault.again,
    ) -> Value:
        """Repeat `once` after its first try, begun at `started`, ended in `fault`. Raises `GaveUp`."""
        call = _Call(self, started)

        async def attempt() -> Value:
            nonlocal fault
            if call.tries == 0:
                call.note(fault)
                raise fault
            retrying()
            try:
                return await once()
            except Fault as again:
                fault = again
                call.note(again)
                raise

        loop = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, Fault) and may_repeat(error)),
            stop=lambda _: call.is_over(),
            wait=lambda _: call.pause(),
            sleep=self.seams.sleep,
            before_sleep=lambda state: _log.info(
                "request.retried",
                request=what,
                fault=fault.kind,
                tries=call.tries,
                wait=round(state.upcoming_sleep, 2),
            ),
            reraise=True,
        )
        try:
            return await loop(attempt)
        except Fault:
            raise GaveUp(fault, call.tries) from None


class _Call:
    """One call's tries so far."""

    def __init__(self, policy: RetryPolicy, started: float) -> None:
        self.tries = 0
        self._policy = policy
        self._started = started
        self._failures = 0
        self._throttles = 0
        self._granted = 0.0  # seconds the service itself asked for; they do not count as ours
        self._fault: Fault | None = None
        self._pause = 0.0

    def note(self, fault: Fault) -> None:
        self.tries += 1
        self._fault = fault
        if isinstance(fault, Throttled) and not fault.overload:
            self._throttles += 1
        else:
            self._failures += 1
        if isinstance(fault, Throttled):
            self._granted += min(fault.retry_after or 0.0, self._policy.cap)
        self._pause = self._next_pause()

    def is_over(self) -> bool:
        policy = self._policy
        if self._failures >= policy.attempts or self._throttles >= policy.attempts * _THROTTLES:
            return True
        limit = policy.max_seconds + min(self._granted, 2 * policy.cap)
        if not policy.contacted and self._fault is not None and self._fault.kind in _UNREACHABLE:
            limit = min(limit, policy.first_contact)
        return policy.seams.clock() + self._pause - self._started > limit

    def pause(self) -> float:
        return self._pause

    def _next_pause(self) -> float:
        """Full jitter. Told waits are the pacer's: it holds back everybody, this call included."""
        policy = self._policy
        if isinstance(self._fault, Throttled) and not self._fault.overload:
            return policy.seams.chance() * 0.1
        top = min(_JITTER_TOP, _JITTER_FROM * 2.0 ** (self._failures - 1))
        pause = policy.seams.chance() * top
        return max(pause, policy.budget.take())
