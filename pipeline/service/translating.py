"""What the HTTP library raises, as ours: its own exceptions and URLs hold the token and go no further."""

from __future__ import annotations

import ssl
from typing import Final

import aiohttp

from pipeline.service.faults import Fault

LIBRARY: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


async def never_twice(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """A middleware: aiohttp sends a GET again by itself when the connection is lost; a share would be made twice."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
        pass
    raise Fault("closed", "the connection was lost before an answer")  # out here: no context to leak


def translated(error: BaseException) -> Fault:
    """The library's exception as ours, by its cause; its text and its URL stay behind."""
    for kinds, kind, detail, reached in _FAULTS:
        if isinstance(error, kinds):
            return Fault(kind, detail, again=kind != "tls", reached=reached)
    return Fault("malformed", "an exchange that the HTTP library gave up")


# In this order: several of these are kinds of each other.
_FAULTS: Final[tuple[tuple[tuple[type[BaseException], ...], str, str, bool], ...]] = (
    ((aiohttp.ClientSSLError, ssl.SSLError), "tls", "TLS failed: certificate or protocol refused", False),
    ((aiohttp.ClientHttpProxyError,), "proxy", "the proxy refused the way to the service", False),
    ((aiohttp.ClientProxyConnectionError,), "proxy", "no connection to the proxy", False),
    ((aiohttp.ClientConnectorDNSError,), "dns", "the host's name cannot be resolved", False),
    ((aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError), "connect", "no connection", False),
    ((TimeoutError,), "timeout", "no whole answer in time", True),
    ((aiohttp.ClientPayloadError,), "cut", "an answer that is cut off or damaged", True),
    # The library says "status 400" here, for what was no HTTP at all.
    ((aiohttp.ClientResponseError,), "malformed", "an answer that is not proper HTTP", True),
    ((OSError, aiohttp.ServerDisconnectedError), "closed", "the connection was lost", True),
)
