"""What can go wrong with one request, sorted by what to do next.

Inside the service layer a try ends in a `Fault` (another try may mend it) or in one of the outward errors:

    Fault                 a try failed            repeat, if the call is safe to repeat
    `-- Throttled         429 or 503              everybody slows down, then repeat
    RequestFailed         every try failed        the crawl tells poison from outage
    OutcomeUnknown        a share or an order may or may not have happened    never repeat blindly
    RequestRefused        the service refused a share or an order             mend the request

`TokenRefused`, `ContractBroken` and `SettingsError` are those of `pipeline.errors`. None of them ever holds
a URL with a query, a header, or an exception of the HTTP library.
"""

from __future__ import annotations

from pipeline.errors import ScanlakeError, ServiceUnavailable


class Fault(Exception):
    """One try failed. Never leaves the service layer.

    `kind` is a short word for counting; `again` says whether another try can help; `reached` whether the
    request may have reached the service; `contract` that the fault, if it stays, means a changed service.
    """

    def __init__(
        self,
        kind: str,
        detail: str = "",
        *,
        status: int | None = None,
        again: bool = True,
        reached: bool = True,
        contract: bool = False,
    ) -> None:
        super().__init__(detail or kind)
        self.kind = kind
        self.detail = detail or kind
        self.status = status
        self.again = again
        self.reached = reached
        self.contract = contract


class Throttled(Fault):
    """The service asks for less: 429, or 503. `retry_after` is in seconds, None where nothing was said."""

    def __init__(self, status: int, retry_after: float | None, detail: str = "") -> None:
        super().__init__(f"status-{status}", detail or f"HTTP {status}", status=status)
        self.retry_after = retry_after

    @property
    def overload(self) -> bool:
        """A 503 tells of a struggling service, a 429 of a limit."""
        return self.status != 429


class RequestFailed(ServiceUnavailable):
    """A request failed every try. `status` of the last one, None where no answer came."""

    def __init__(self, message: str, *, kind: str, tries: int, status: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.tries = tries
        self.status = status


class OutcomeUnknown(ScanlakeError):
    """A share or a report order may have reached the service, but its answer did not reach us."""

    default_remedy = "Look at the service whether it took effect before asking again."


class RequestRefused(ScanlakeError):
    """The service refused a share or a report order; nothing was created. `reason` is its own text."""

    default_remedy = "Mend the request: the service named the reason."

    def __init__(self, message: str, *, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
