"""TLS handshakes that fail: named, and not retried for long."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.client.errors import RetriesExhaustedError
from pipeline.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from tests.client.conftest import Make


UNTRUSTED: Final = Path(__file__).with_name("untrusted.pem")


def create_context(*, is_old: bool = False) -> ssl.SSLContext:
    """Return the TLS of a service whose certificate nobody trusts, or that has no version after 1.1."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(UNTRUSTED)
    if is_old:
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore"):
            context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    return context


async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer without TLS of its own."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    writer.close()


async def read_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End a connection after the client's first bytes."""
    await reader.read(10)
    writer.close()


async def read_and_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reset a connection after the client's first bytes."""
    await reader.read(10)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize(
    ("serve", "context", "ends"),
    [
        (greet, None, {("tls", 1)}),
        (greet, create_context(), {("tls", 1)}),
        (read_and_close, None, {("handshake", 2)}),
        (read_and_reset, None, {("handshake", 2)}),
        (read_and_close, create_context(is_old=True), {("tls", 1), ("handshake", 2)}),
    ],
    ids=["no TLS", "untrusted", "closed", "reset", "TLS 1.1"],
)
async def test_tls_failures_are_not_retried(
    serve: Any, context: ssl.SSLContext | None, ends: set[tuple[str, int]], client: Make
) -> None:
    """A handshake that fails is named and not repeated; one that the service ends is tried once more."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    base = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, client(base, max_attempts=6) as asking:
        with pytest.raises(ServiceUnavailableError, match="TLS") as raised:
            await asking.get_file(5)
    assert isinstance(raised.value, RetriesExhaustedError)
    assert (raised.value.kind, raised.value.attempts) in ends
