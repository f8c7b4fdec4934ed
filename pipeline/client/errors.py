"""Errors of one request, by what to do next.

Inside the client a failed attempt raises `AttemptError`. Callers see one of the other errors:

    AttemptError              one attempt failed          repeat, if the call is idempotent
    `-- ThrottledError        429 or 503                  slow down all requests, then repeat
    RetriesExhaustedError     every attempt failed        the crawl distinguishes a bad file from an outage
    OutcomeUnknownError       a share or an order may or may not exist         never repeat automatically
    RequestRejectedError      the service rejected a share or an order         correct the request

`AuthenticationError` and `ProtocolError` are those of `pipeline.errors`. None of them has a URL with
a query, a header, or an exception of the HTTP library.
"""

from __future__ import annotations

import ssl
from typing import Final

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from pipeline.errors import ScanlakeError, ServiceUnavailableError

NO_END: Final = "no-end"
"""The kind of a failed attempt whose answer is complete, and its image is not."""
ANSWER_KINDS: Final = frozenset({"cut", "slow", "size", NO_END})
"""The kinds of failed attempts whose answer has begun."""


class AttemptError(Exception):
    """One attempt failed. It never leaves the client package.

    `kind` is a short word for statistics, `detail` a text for messages. `retryable`: another attempt can succeed.
    `is_protocol_error`: the service has changed if the failure persists. `attempts` counts those of the whole call.
    `hint`: what to do, if the cause is known.
    """

    def __init__(
        self,
        kind: str,
        detail: str = "",
        *,
        status: int | None = None,
        retryable: bool = True,
        may_have_reached_service: bool = True,
        is_protocol_error: bool = False,
        hint: str | None = None,
    ) -> None:
        super().__init__(detail or kind)
        self.kind = kind
        self.detail = detail or kind
        self.status = status
        self.retryable = retryable
        self.may_have_reached_service = may_have_reached_service
        self.is_protocol_error = is_protocol_error
        self.hint = hint
        self.attempts = 1


class ThrottledError(AttemptError):
    """The service answered 429 or 503. `retry_after` is in seconds, None if the service named no time."""

    def __init__(self, status: int, retry_after: float | None, detail: str = "") -> None:
        super().__init__(f"status-{status}", detail or f"HTTP {status}", status=status)
        self.retry_after = retry_after

    @property
    def is_overload(self) -> bool:
        """Whether the service is overloaded (503) and not only limiting the rate (429)."""
        return self.status != 429


class RetriesExhaustedError(ServiceUnavailableError):
    """Every attempt of a request failed. `status` is that of the last one, None without an answer."""

    def __init__(
        self, message: str, *, kind: str, attempts: int, status: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.attempts = attempts
        self.status = status


class OutcomeUnknownError(ScanlakeError):
    """A share or report order may have taken effect: its answer was lost or, if `is_answered`, unclear.

    `is_postponed`: the service asks for a pause that is longer than any call waits.
    """

    default_hint = "Check in the service whether the request took effect before repeating it."

    def __init__(self, message: str, *, is_answered: bool = False, is_postponed: bool = False) -> None:
        super().__init__(message)
        self.is_answered = is_answered
        self.is_postponed = is_postponed


class RequestRejectedError(ScanlakeError):
    """The service rejected a share or report order; nothing was created. `reason` is the service's text."""

    default_hint = "Correct the request; the message has the service's reason."

    def __init__(self, message: str, *, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


AIOHTTP_EXCEPTIONS: Final = (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError)


async def prevent_implicit_retry(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Disable aiohttp's own repetition of a GET after a lost connection: it is neither counted nor limited."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
        pass
    # Outside of the handler, so that the exception with the URL is not the context of this one.
    raise AttemptError("closed", "the connection was lost before an answer")


def map_aiohttp_exception(error: BaseException) -> AttemptError:
    """Return the error for an exception of the HTTP library, without its text and URL: they contain the token."""
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, _LOST):
        detail = "the connection was lost in the TLS handshake; the service may not support TLS 1.2"
        return AttemptError("handshake", detail, may_have_reached_service=False)
    if isinstance(cause := _tls_cause(error), ssl.SSLError):
        detail, hint = _describe_tls_error(cause)
        return AttemptError("tls", f"TLS: {detail}", retryable=False, may_have_reached_service=False, hint=hint)
    for exceptions, kind, detail, may_have_reached_service in _EXCEPTION_MAP:
        if isinstance(error, exceptions):
            return AttemptError(kind, detail, may_have_reached_service=may_have_reached_service)
    return AttemptError("malformed", "the HTTP library gave up the exchange")


def _describe_tls_error(error: ssl.SSLError) -> tuple[str, str]:
    """Return the problem and the hint for an error of the handshake, in OpenSSL's words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the service's certificate is refused: {error.verify_message.rstrip('.')}", _CERTIFICATE_HINT
    if error.reason in _NOT_TLS_REASONS:
        return "the port of base_url does not speak TLS", _NO_TLS_HINT
    reason = (error.reason or "no reason given").replace("_", " ").lower()
    return f"the handshake failed: {reason} (scanlake needs TLS 1.2 or later)", _NETWORK_HINT


def _tls_cause(error: BaseException) -> BaseException:
    """Return the error of OpenSSL that the HTTP library has wrapped, or the error itself."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return error.certificate_error
    return error.os_error if isinstance(error, aiohttp.ClientConnectorSSLError) else error


_NETWORK_HINT: Final = "Check base_url, the firewall and the proxy."
_NO_TLS_HINT: Final = "Use the port for https. Only on this machine base_url may begin with http://."
_CERTIFICATE_HINT: Final = (
    "Check base_url and this machine's clock, or set SSL_CERT_FILE to the certificates of your own authority."
)
_NOT_TLS_REASONS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
)
_LOST: Final = (ConnectionResetError, ConnectionAbortedError)  # a refused connection is another error

# The order matters: several of these are subclasses of others.
_EXCEPTION_MAP: Final[tuple[tuple[tuple[type[BaseException], ...], str, str, bool], ...]] = (
    ((aiohttp.ClientHttpProxyError,), "proxy", "the proxy refused the connection to the service", False),
    ((aiohttp.ClientProxyConnectionError,), "proxy", "no connection to the proxy", False),
    ((aiohttp.ClientConnectorDNSError,), "dns", "the host's name cannot be resolved", False),
    ((aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError), "connect", "no connection", False),
    ((TimeoutError,), "timeout", "no complete answer in time", True),
    ((aiohttp.ClientPayloadError,), "cut", "an answer that is cut off or damaged", True),
    # aiohttp reports "status 400" here for bytes that are not HTTP at all.
    ((aiohttp.ClientResponseError, HttpProcessingError), "malformed", "an answer that is not valid HTTP", True),
    ((OSError, aiohttp.ServerDisconnectedError), "closed", "the connection was lost", True),
)
