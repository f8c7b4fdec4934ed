"""One call from its first try to its value or error: pace, tries, counts, and messages without the token."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pipeline.errors import ContractBroken, ScanlakeError, TokenRefused
from pipeline.service.faults import Fault, OutcomeUnknown, RequestFailed, RequestRefused, Throttled
from pipeline.service.retry import GaveUp, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from yarl import URL

    from pipeline.service.address import Mask
    from pipeline.service.pace import Pacer
    from pipeline.service.protocol import Reply

Value = TypeVar("Value")


@dataclass(slots=True)
class RequestCounts:
    """What was asked so far. `faults` counts failed tries by kind; `bytes` are those of bodies, as sent."""

    list: int = 0
    detail: int = 0
    share: int = 0
    report: int = 0
    other: int = 0
    retries: int = 0
    throttled: int = 0
    bytes: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        """All requests that were sent, with their repetitions."""
        return self.list + self.detail + self.share + self.report + self.other + self.retries


@dataclass(slots=True)
class Call(Generic[Value]):
    """One call: where it goes, and what its answer means."""

    what: str  # how it is named in messages: method and path, never the query
    url: URL
    read: Callable[[Reply], Value]
    method: str = "GET"
    body: bytes | None = None
    repeats: bool = True  # safe to repeat
    started: float | None = None

    def may_have_happened(self, fault: Fault) -> bool:
        """Whether a call that must not be repeated may have taken effect. A 429 says that it has not."""
        refused = isinstance(fault, Throttled) and not fault.overload
        return not self.repeats and fault.reached and not refused


class Asker:
    """Makes calls. `send` carries one request out and gives its whole reply, or raises `Fault`."""

    def __init__(
        self,
        send: Callable[[Call[Any]], Awaitable[Reply]],
        *,
        pacer: Pacer,
        policy: RetryPolicy,
        counts: RequestCounts,
        mask: Mask,
    ) -> None:
        self._send = send
        self._pacer = pacer
        self._policy = policy
        self._counts = counts
        self._mask = mask
        self._clock = policy.seams.clock

    async def ask(self, call: Call[Value]) -> Value:
        """The call's value. Repeats what is safe to repeat."""
        self._policy.budget.earn()
        try:
            return await self._try(call)
        except Fault as fault:
            first = fault
        try:
            return await self._policy.go_on(
                first,
                partial(self._try, call),
                what=call.what,
                started=call.started or 0.0,
                may_repeat=lambda fault: fault.again and not call.may_have_happened(fault),
                retrying=self._count_retry,
            )
        except GaveUp as gave_up:
            raise self._outcome(call, gave_up.fault, gave_up.tries) from None

    def _count_retry(self) -> None:
        self._counts.retries += 1

    async def _try(self, call: Call[Value]) -> Value:
        """One try: wait for a slot, send, read, and tell the pacer how it went."""
        pacer = self._pacer
        async with pacer.slot():
            started = self._clock()
            if call.started is None:
                call.started = started
            try:
                value = call.read(await self._send(call))
            except Fault as fault:
                fault.detail = self._mask.text(fault.detail)
                fault.args = (fault.detail,)
                self._counts.faults[fault.kind] += 1
                if isinstance(fault, Throttled):
                    self._counts.throttled += not fault.overload
                    pacer.throttled(fault.retry_after, started=started, overload=fault.overload)
                raise
            except RequestRefused as error:
                error.reason = self._mask.text(error.reason)
                error.message = self._mask.text(error.message)
                error.args = (error.message,)
                pacer.succeeded(self._clock() - started)
                raise
            except ScanlakeError as error:
                error.message = self._mask.text(error.message)
                error.args = (error.message,)
                if isinstance(error, TokenRefused):
                    pacer.close(error)
                raise
            pacer.succeeded(self._clock() - started)
            return value

    def _outcome(self, call: Call[Any], fault: Fault, tries: int) -> ScanlakeError:
        if call.may_have_happened(fault):
            return OutcomeUnknown(f"{call.what}: {fault.detail}; it may have taken effect")
        message = f"{call.what}: {fault.detail} ({tries} {'try' if tries == 1 else 'tries'})"
        if fault.contract and call.what == "GET /files":
            return ContractBroken(message)
        return RequestFailed(message, kind=fault.kind, tries=tries, status=fault.status)
