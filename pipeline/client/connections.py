"""Connections to the service: requests and answers on aiohttp's connector and parser, below its session.

A session costs about 140 us of processor a request, for URLs, cookies, redirects and middlewares that the service's
calls do not use. Nothing is followed, repeated or decoded here.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

import aiohttp
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection
    from multidict import CIMultiDictProxy

    ReadBody = Callable[[int, "CIMultiDictProxy[str]", aiohttp.StreamReader], Awaitable[bytes]]

_MAX_IDLE_SECONDS: Final = 15.0  # after which a service may be about to close a connection
_SWITCHING_PROTOCOLS: Final = 101


class ServiceConnections:
    """Connections to one origin, which are kept between requests."""

    def __init__(
        self,
        base_url: str,
        connector: aiohttp.TCPConnector,
        *,
        headers: Mapping[str, str],
        connect_seconds: float,
        proxy: str | None = None,
    ) -> None:
        url = URL(base_url, encoded=True)
        self._connector = connector
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds)
        # The connector takes origin, TLS and proxy of a request. No request is sent by its class.
        self._request = aiohttp.ClientRequest(
            "GET", url, headers=headers, loop=asyncio.get_running_loop(), proxy=None if proxy is None else URL(proxy)
        )
        self._origin_chars = len(base_url) - len(url.raw_path.removesuffix("/"))
        lines = (f"{name}: {value}\r\n" for name, value in self._request.headers.items())
        self._head_end = f" HTTP/1.1\r\n{''.join(lines)}".encode()
        self._idle: list[tuple[Connection, ResponseHandler, float]] = []  # the one that was used last comes last

    async def close(self) -> None:
        """Close all connections."""
        for connection, _, _ in self._idle:
            connection.close()
        await self._connector.close()

    async def exchange(
        self, method: str, url: str, body: bytes | None, read_body: ReadBody, *, timeout_seconds: float
    ) -> tuple[int, CIMultiDictProxy[str], bytes]:
        """Send one request, and return status, headers and what `read_body` has read of its answer.

        Raises exceptions of aiohttp and `TimeoutError`.
        """
        head = f"{method} {url[self._origin_chars :]}".encode() + self._head_end
        if body is not None:
            head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        else:
            head += b"\r\n"
        async with asyncio.timeout(timeout_seconds):
            connection, protocol = self._take_idle() or await self._connect()
            try:
                protocol.set_response_params(read_until_eof=True, auto_decompress=False)
                if protocol.transport is not None:  # else it has just been lost, and `read` raises
                    protocol.transport.write(head)
                message, content = await protocol.read()
                while message.code < 200 and message.code != _SWITCHING_PROTOCOLS:
                    message, content = await protocol.read()
                answer = message.code, message.headers, await read_body(message.code, message.headers, content)
            except BaseException:
                connection.close()
                raise
        self._idle.append((connection, protocol, monotonic()))
        return answer

    def _take_idle(self) -> tuple[Connection, ResponseHandler] | None:
        """Return a connection that can be used again, None without one.

        One with a rest of an answer, or with an answer to no request, is closed: the next request would read it.
        """
        while self._idle:
            connection, protocol, since = self._idle.pop()
            if protocol.is_connected() and not protocol.should_close and monotonic() - since < _MAX_IDLE_SECONDS:
                return connection, protocol
            connection.close()
        return None

    async def _connect(self) -> tuple[Connection, ResponseHandler]:
        try:
            connection = await self._connector.connect(self._request, [], self._timeout)
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError from None
        if connection.protocol is None:
            raise aiohttp.ServerDisconnectedError
        return connection, connection.protocol
