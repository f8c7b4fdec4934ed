"""A network in memory for the loop of tests/virtual_time.py: servers and clients of asyncio, without sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_PORT: Final = 20_000
_LAST_PORT: Final = 65_535
_HIGH_BYTES: Final = 64 * 1024
_LOW_BYTES: Final = 16 * 1024
_MAX_PART_BYTES: Final = 256 * 1024


class MemoryNetwork:
    """The servers of one loop, by port, on every loopback address."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listeners: dict[int, Listener] = {}
        self._targets: dict[int, tuple[Any, ...]] = {}  # by descriptor, of a socket that is about to be a connection
        self._last_port = _FIRST_PORT

    def listen(self, factory: Callable[[], asyncio.Protocol], host: str | None, port: int) -> Listener:
        """Return a new server. Raises OSError if the port is taken."""
        if port in self._listeners:
            raise OSError(errno.EADDRINUSE, f"the port {port} is taken")
        listener = Listener(self, factory, (host or "127.0.0.1", port or self._take_port()))
        self._listeners[listener.address[1]] = listener
        return listener

    def close(self, port: int) -> None:
        """Accept no more connections to a port."""
        self._listeners.pop(port, None)

    def connect_socket(self, sock: socket.socket, address: tuple[Any, ...]) -> None:
        """Remember where a socket leads. Raises ConnectionRefusedError if nobody listens there."""
        self._find(address)
        self._targets[sock.fileno()] = address

    def connect(
        self, factory: Callable[[], asyncio.Protocol], address: tuple[Any, ...], sock: socket.socket | None
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect to a server: by address, or by the one that a socket was connected to."""
        listener = self._find(self._targets.pop(sock.fileno()) if sock is not None else address)
        here, there = ("127.0.0.1", self._take_port()), listener.address
        client = Transport(self._loop, factory(), here, there, sock)
        server = Transport(self._loop, listener.factory(), there, here, None)
        client.peer, server.peer = server, client
        self._loop.call_soon(server.get_protocol().connection_made, server)
        client.get_protocol().connection_made(client)
        return client, client.get_protocol()

    def _take_port(self) -> int:
        """Return the next port that no server has; after the last one the first."""
        later, earlier = range(self._last_port + 1, _LAST_PORT + 1), range(_FIRST_PORT + 1, _LAST_PORT + 1)
        self._last_port = next(port for port in chain(later, earlier) if port not in self._listeners)
        return self._last_port

    def _find(self, address: tuple[Any, ...]) -> Listener:
        try:
            return self._listeners[address[1]]
        except KeyError:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {address}") from None


class Listener:
    """A server."""

    def __init__(self, network: MemoryNetwork, factory: Callable[[], asyncio.Protocol], address: Any) -> None:
        self.factory, self.address, self._network = factory, address, network

    @property
    def sockets(self) -> tuple[NoSocket, ...]:
        """The one socket, which knows its address."""
        return (NoSocket(self.address, None),)

    def close(self) -> None:
        """Accept no more connections; those that are open stay open."""
        self._network.close(self.address[1])

    async def wait_closed(self) -> None:
        """Do nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class NoSocket:
    """What a transport has in place of a socket."""

    family = socket.AF_INET

    def __init__(self, here: Any, there: Any) -> None:
        self._here, self._there = here, there

    def getsockname(self) -> Any:
        """Return the own address."""
        return self._here

    def getpeername(self) -> Any:
        """Return the address of the other side."""
        return self._there

    def setsockopt(self, *_: object) -> None:
        """Do nothing."""


class Transport(asyncio.Transport):
    """One end of a connection. Its buffer is what it has written and the other end has not received."""

    peer: Transport

    def __init__(self, loop: Any, protocol: Any, here: Any, there: Any, sock: socket.socket | None) -> None:
        super().__init__({"sockname": here, "peername": there, "socket": NoSocket(here, there)})
        self._loop, self._protocol, self._sock = loop, protocol, sock
        self._buffer = bytearray()
        self._is_pumping = self._is_writing_paused = self._is_reading_paused = False
        self._is_closing = self._is_closed = self._is_ending = self._has_ended = False
        self._high, self._low = _HIGH_BYTES, _LOW_BYTES

    def get_protocol(self) -> Any:
        """Return what receives."""
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        """Change what receives."""
        self._protocol = protocol

    def is_closing(self) -> bool:
        """Return whether this end is closed, or will be once its buffer is empty."""
        return self._is_closing

    def is_reading(self) -> bool:
        """Return whether this end receives."""
        return not self._is_reading_paused and not self._is_closing

    def pause_reading(self) -> None:
        """Let what arrives wait in the buffer of the other end."""
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        """Receive again."""
        self._is_reading_paused = False
        self.peer.pump_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the sizes at which the protocol is asked to pause and to resume."""
        self._high = _HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the other end has not received."""
        return len(self._buffer)

    def can_write_eof(self) -> bool:
        """Return that only one direction can be closed."""
        return True

    def write_eof(self) -> None:
        """Close this direction once the buffer is empty."""
        self._is_ending = True
        self.pump_soon()

    def write(self, data: Any) -> None:
        """Send."""
        if self._is_closing or not data:
            return
        self._buffer += data
        if len(self._buffer) > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self._protocol.pause_writing()
        self.pump_soon()

    def close(self) -> None:
        """Close this end once its buffer is empty."""
        if not self._is_closing:
            self._is_closing = self._is_ending = True
            self.pump_soon()

    def abort(self) -> None:
        """Close this end and reset the connection."""
        self._buffer.clear()
        self._is_closing = True
        self._loop.call_soon(self._lose, None)
        self._loop.call_soon(self.peer._lose, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def pump_soon(self) -> None:
        """Let what is in the buffer arrive."""
        if not self._is_pumping:
            self._is_pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pumping = False
        peer = self.peer
        if self._is_closed:
            return
        if self._buffer and peer._is_closing:
            self._buffer.clear()
            self._lose(BrokenPipeError(errno.EPIPE, "Broken pipe"))
            return
        if peer._is_reading_paused and not peer._is_closing:
            return
        if self._buffer:
            part = bytes(self._buffer[:_MAX_PART_BYTES])
            del self._buffer[:_MAX_PART_BYTES]
            peer._protocol.data_received(part)
            if self._is_writing_paused and len(self._buffer) <= self._low:
                self._is_writing_paused = False
                self._protocol.resume_writing()
            self.pump_soon()
        elif self._is_ending:
            if not self._has_ended and not peer._is_closing and not peer._protocol.eof_received():
                peer.close()
            self._has_ended = True
            if self._is_closing:
                self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._is_closing = self._is_closed = True
            if self._sock is not None:
                self._sock.close()
            self._protocol.connection_lost(error)
