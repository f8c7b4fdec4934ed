"""A proxy is used if it is set, for https only, and never gets the token; TLS handshakes that fail are named."""

from __future__ import annotations

import asyncio
import io
import socket
import ssl
import struct
import time
import warnings
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from pipeline.client.calls import ClientOptions
from pipeline.client.client import create_client
from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.probe import probe_service
from pipeline.client.protocol import Detail
from pipeline.emulator import Emulator
from pipeline.errors import ProtocolError, ServiceUnavailableError
from pipeline.settings.settings import Settings
from pipeline.settings.urls import validate_proxy_url
from schemas.file_query import FileQuery
from tests.client.conftest import spell_token
from tests.client.scripted_server import answer, listening, scripted
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.client.conftest import Make

CERTIFICATES = Path(__file__).parents[1] / "commands" / "certificates"
GOOD = answer({"data": {"id": 5, "updated_at": "2025-01-01T00:00:00Z"}})


@dataclass
class Proxy:
    """A proxy on loopback that records its requests and bytes, and connects to loopback only."""

    status: str = "200 Connection established"
    port: int = 0
    asked: list[str] = field(default_factory=list)
    seen: bytearray = field(default_factory=bytearray)

    @property
    def address(self) -> str:
        """The address as a setting."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Open a tunnel and copy bytes in both directions until either side ends."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.seen += head
        self.asked.append(head.split(b"\r\n")[0].decode())
        writer.write(f"HTTP/1.1 {self.status}\r\n\r\n".encode())
        if not self.status.startswith("200"):
            writer.close()
            return
        await self.join(int(self.asked[-1].split()[1].rpartition(":")[2]), reader, writer)

    async def join(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes between a connection and a new one to the port."""
        there, onward = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(self.carry(reader, onward), self.carry(there, writer))

    async def carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Copy one direction."""
        with closing(target), suppress(OSError):
            while part := await source.read(65_536):
                self.seen += part
                target.write(part)
                await target.drain()


@asynccontextmanager
async def proxied(status: str = "200 Connection established") -> AsyncIterator[Proxy]:
    """Run a proxy for the block."""
    proxy = Proxy(status)
    async with listening(proxy.serve) as port:
        proxy.port = port
        yield proxy


@asynccontextmanager
async def encrypted(port: int) -> AsyncIterator[int]:
    """Run a TLS server in front of `port` and yield its port."""
    async with listening(partial(Proxy().join, port), tls=create_context("good")) as outer:
        yield outer


async def test_calls_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a proxy in the settings every connection of calls and checks uses it; no byte of it contains the token."""
    trust = ssl.create_default_context(cafile=CERTIFICATES / "ca.pem")
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", trust)
    async with Emulator(60, seed=1) as emulator, proxied() as proxy:
        plain = urlsplit(emulator.base_url).port
        assert plain is not None
        async with encrypted(plain) as port:
            settings = Settings(base_url=f"https://localhost:{port}", proxy=proxy.address)
            assert (await probe_service(settings, emulator.token)).files == 60
            async with create_client(settings, emulator.token) as asking:
                ids = [item.id async for page in asking.iter_pages(FileQuery()) for item in page.items]
                details = await asyncio.gather(*(asking.get_file(key) for key in emulator.world.keys()))  # noqa: SIM118
    assert sorted(ids, key=str) == sorted((detail.id for detail in details if isinstance(detail, Detail)), key=str)
    assert len(proxy.asked) > 2
    assert set(proxy.asked) == {f"CONNECT localhost:{port} HTTP/1.1"}
    assert not [spelled for spelled in spell_token(emulator.token) if spelled.encode() in proxy.seen]


async def test_plain_http_does_not_use_the_proxy(client: Make) -> None:
    """A service on this machine, by http, is requested directly: a proxy would get the token."""
    async with proxied() as proxy, scripted(GOOD) as server, client(server.base, proxy=proxy.address) as asking:
        assert isinstance(await asking.get_file(5), Detail)
    assert not proxy.asked


async def test_a_proxy_that_refuses(client: Make) -> None:
    """A proxy that requires a password, and an unreachable one, have messages of their own; both are retried."""
    async with proxied("407 Proxy Authentication Required") as proxy:
        async with client("https://service.example", proxy=proxy.address) as asking:
            with pytest.raises(ServiceUnavailableError, match="proxy refused") as raised:
                await asking.get_file(5)
        assert isinstance(raised.value, RetriesExhaustedError)
        assert raised.value.kind == "proxy"
        assert set(proxy.asked) == {"CONNECT service.example:443 HTTP/1.1"}
    async with client("https://service.example", proxy=proxy.address) as asking:
        with pytest.raises(ServiceUnavailableError, match="no connection to the proxy"):
            await asking.get_file(5)


async def test_a_report_behind_a_proxy(client: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy is used for a report's host, unless that is known here to be private, by address or by name."""
    real = socket.getaddrinfo

    def known(host: str, *given: Any, **more: Any) -> Any:
        if host == "reports.invalid":  # no name server of this machine may be asked by a test
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", known)
    async with proxied("403 Forbidden") as proxy:
        async with client("https://service.example", proxy=proxy.address) as asking:
            for private in ("https://localhost/r/1", "https://10.0.0.7/r/1", "https://[::1]/r/1"):
                with pytest.raises(ProtocolError, match="private"):
                    await asking.download_report(private, io.BytesIO())
            assert not proxy.asked
            with pytest.raises(ServiceUnavailableError, match="proxy refused"):
                await asking.download_report("https://reports.invalid/r/1?sig=x", io.BytesIO())
        assert set(proxy.asked) == {"CONNECT reports.invalid:443 HTTP/1.1"}


@every("wrong", ["proxy:3128", "http://[:1", "https://p:1", "http://proxy", "http://me:secret@p:1", "http://p:1/x"])
def test_an_invalid_proxy(wrong: str) -> None:
    """An invalid proxy address is refused with a text that does not contain a password."""
    with pytest.raises(ValueError, match=r"must look like http://proxy\.example:3128") as raised:
        validate_proxy_url(wrong)
    assert "secret" not in str(raised.value)


def create_context(certificate: str, *, is_old: bool = False) -> ssl.SSLContext:
    """Return the TLS of a service with a certificate, which may have no version after 1.1."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / f"{certificate}.pem")
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
        (greet, create_context("self"), {("tls", 1)}),
        (read_and_close, None, {("handshake", 2)}),
        (read_and_reset, None, {("handshake", 2)}),
        (read_and_close, create_context("self", is_old=True), {("tls", 1), ("handshake", 2)}),
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


async def test_a_port_that_never_answers_is_given_up_soon(client: Make) -> None:
    """A server that takes the connection and says nothing to TLS counts as no connection, within its time limit."""

    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(wait) as port:
        begun, base = time.monotonic(), f"https://127.0.0.1:{port}"
        async with client(base, max_attempts=100, initial_connect_seconds=0.4, connect_timeout_seconds=0.4) as asking:
            with pytest.raises(ServiceUnavailableError, match="no connection") as raised:
                await asking.get_file(5)
    assert isinstance(raised.value, RetriesExhaustedError)
    assert (raised.value.kind, time.monotonic() - begun < 5) == ("connect", True)
    assert ClientOptions().initial_connect_seconds <= 15
