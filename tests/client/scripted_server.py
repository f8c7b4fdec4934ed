"""A server on a raw socket that answers byte for byte what a test defines."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable


@dataclass(frozen=True)
class Asked:
    """A request as received."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        """The path without the query."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        """The query, decoded."""
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))


@dataclass(frozen=True)
class Wait:
    """Send nothing for some seconds."""

    seconds: float


class Reset:
    """Reset the connection."""


class Close:
    """Close the connection."""


Step = bytes | Wait | Reset | Close


def answer(
    body: bytes | object = b"",
    *,
    status: int = 200,
    headers: Iterable[tuple[str, str]] = (),
    length: bool = True,
) -> bytes:
    """Return a complete HTTP answer. A body that is not bytes is encoded as JSON."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers)]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Scripted:
    """The server. `script` returns the answer to a request; a list is sent in order, its last entry repeatedly."""

    script: Any
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    host: str = "127.0.0.1"

    @property
    def base(self) -> str:
        """The base URL for a client."""
        return f"http://{self.host}:{self.port}"

    def _next(self, asked: Asked) -> Any:
        if callable(self.script):
            return self.script(asked)
        if isinstance(self.script, list):
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return self.script

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        self.connections += 1
        while await self._exchange(reader, writer):
            pass

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *rest = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(method, target, headers, body)
        self.asked.append(asked)
        steps = self._next(asked)
        for step in [steps] if isinstance(steps, bytes) else steps:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, Wait):
                await asyncio.sleep(step.seconds)
            else:
                if isinstance(step, Reset):
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.transport.abort()
                return False
        return True


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Run a server on loopback for the block and yield its port; its connections end with it."""
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, OSError):
            await serve(reader, writer)

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(run(reader, writer)))  # not awaited by asyncio, which logs cancelled ones

    listener = await asyncio.start_server(connected, host, 0, ssl=tls)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def scripted(script: Any | Callable[[Asked], Any], host: str = "127.0.0.1") -> AsyncIterator[Scripted]:
    """Run a scripted server for the block."""
    server = Scripted(script, host=host)
    async with listening(server.serve, host) as server.port:
        yield server
