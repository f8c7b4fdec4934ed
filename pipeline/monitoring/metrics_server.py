"""The metrics over HTTP, for a Prometheus that scrapes `scanlake watch`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import structlog

from pipeline.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PATH: Final = "/metrics"
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_READ_SECONDS: Final = 5.0
_MAX_HEAD_BYTES: Final = 16_384
_log = structlog.get_logger()


@asynccontextmanager
async def serve_metrics(address: str, port: int, render: Callable[[], str]) -> AsyncIterator[int]:
    """Serve `render()` under /metrics and yield the port; port 0 selects a free one.

    Raises `SettingsError` if the address cannot be used.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_READ_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_respond(head, await asyncio.to_thread(render)))
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, address, port, limit=_MAX_HEAD_BYTES)
    except OSError as error:
        raise SettingsError(
            f"--metrics-port {port}: {error.strerror or error}.",
            hint="Use another --metrics-port or --metrics-address.",
        ) from None
    bound: int = server.sockets[0].getsockname()[1]
    _log.info("metrics.serving", address=address, port=bound)
    try:
        yield bound
    finally:
        server.close()  # no wait: a client may keep its connection open


def _respond(head: bytes, metrics: str) -> bytes:
    """Return the response to a request with this head: GET or HEAD of /metrics, otherwise an error."""
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
    status, body = "200 OK", metrics.encode()
    if path != PATH:
        status, body = "404 Not Found", f"The metrics are under {PATH}\n".encode()
    elif method not in {b"GET", b"HEAD"}:
        status, body = "405 Method Not Allowed", b"Use GET or HEAD.\n"
    lines = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {_CONTENT_TYPE}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if method == b"HEAD" else body)
