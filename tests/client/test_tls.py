"""TLS handshakes that fail: named, and not retried for long."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.client.errors import RetriesExhaustedError
from pipeline.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from tests.client.conftest import Make


@pytest.mark.parametrize("certificate", [None, Path(__file__).with_name("untrusted.pem")])
async def test_tls_failures_are_not_retried(certificate: Path | None, client: Make) -> None:
    """An untrusted certificate, or no TLS at all, fails immediately without a retry."""
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    connections: list[asyncio.StreamWriter] = []

    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    async with server, client(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}") as asking:
        with pytest.raises(ServiceUnavailableError, match="TLS") as raised:
            await asking.get_file(5)
        assert isinstance(raised.value, RetriesExhaustedError)
        assert (raised.value.kind, raised.value.attempts) == ("tls", 1)
    assert len(connections) <= 1


async def read_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End a connection after the client's first bytes."""
    await reader.read(10)
    writer.close()


async def read_and_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reset a connection after the client's first bytes."""
    await reader.read(10)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("end", [read_and_close, read_and_reset])
async def test_a_lost_handshake_is_repeated_once(end: Any, client: Make) -> None:
    """A service that ends the TLS handshake, because of its version for example, is named after two attempts."""
    server = await asyncio.start_server(end, "127.0.0.1", 0)
    base = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, client(base, max_attempts=6) as asking:
        with pytest.raises(ServiceUnavailableError, match="TLS handshake") as raised:
            await asking.get_file(5)
    assert isinstance(raised.value, RetriesExhaustedError)
    assert (raised.value.kind, raised.value.attempts) == ("handshake", 2)


async def test_an_old_tls_version_is_not_retried_for_long(client: Make) -> None:
    """A service with TLS 1.1 at most is named; if it resets the connection instead of saying so, after two attempts."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(Path(__file__).with_name("untrusted.pem"))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    server = await asyncio.start_server(read_and_close, "127.0.0.1", 0, ssl=context)
    async with server, client(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}") as asking:
        with pytest.raises(RetriesExhaustedError, match="TLS") as raised:
            await asking.get_file(5)
    assert (raised.value.kind, raised.value.attempts) in {("tls", 1), ("handshake", 2)}
