"""What a test may not do, watched by an audit hook: it sees what Python code does, whichever library asks."""

from __future__ import annotations

import base64
import ipaddress
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Iterator

_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CACHES: Final = frozenset({"__pycache__", ".pytest_cache", ".hypothesis"})
_DATABASES: Final = ("sqlite", "duckdb")
"""What the names of our databases have in common, with those of their logs, copies and temporary files."""
_LOCKS: Final = Path("/proc/locks")
_EXIT_CODE: Final = 86
_CHANGES: Final = {"os.remove": 1, "os.rename": 2, "os.mkdir": 1, "os.rmdir": 1, "os.truncate": 1, "os.chmod": 1}
"""Events that change a path, with the number of their arguments that are paths."""


class Refused(RuntimeError):
    """A test reached beyond its bounds."""


def refuse_open_of_held_database(event: str, arguments: tuple[Any, ...], *, of_readers: bool = False) -> None:
    """Refuse to open a file on which this process has a lock: its close would drop all locks of the process.

    See https://www.sqlite.org/howtocorrupt.html, 2.2. SQLite and DuckDB open their files themselves, without an event.
    A reader of a catalog can be the test itself, beside the product: its lock counts only if told so.
    """
    if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    path = os.fsdecode(arguments[0])
    name = os.path.basename(path)  # noqa: PTH119 - as it came
    kind = next((kind for kind in _DATABASES if kind in name), None)
    if kind is not None and _has_lock(path, "" if of_readers or kind == "sqlite" else " WRITE "):
        raise Refused(f"a file of a database that this process holds: {path}")


def end_with_held_database(event: str, arguments: tuple[Any, ...]) -> None:
    """End the process as `refuse_open_of_held_database` refuses: a command may catch any exception."""
    try:
        refuse_open_of_held_database(event, arguments, of_readers=True)
    except Refused as refused:
        os.write(2, f"{refused}\n".encode())
        os._exit(_EXIT_CODE)


def _has_lock(path: str, kind: str) -> bool:
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path would be made for each file that is opened
    except OSError:
        return False
    place = f" {os.getpid()} {os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino} "
    handle = os.open(_LOCKS, os.O_RDONLY)
    try:
        locks = b""
        while chunk := os.read(handle, 1 << 16):
            locks += chunk
    finally:
        os.close(handle)
    return any(" POSIX " in line and kind in line and place in line for line in locks.decode().splitlines())


class Guard:
    """An audit hook. While `watching`, it refuses, and remembers in `refused` what it did."""

    def __init__(self, root: Path) -> None:
        self.refused: list[str] = []
        self._on = False
        self._free = (Path(tempfile.gettempdir()).resolve(), Path("/dev"), Path("/proc"))
        self._root = root

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Refuse from here on."""
        self.refused.clear()
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Judge one event."""
        if not self._on:
            return
        if event == "open":
            path, mode, flags = arguments
            if flags & _WRITES or (mode and set(mode) & set("wxa+")):
                self._judge_path(path)
        elif event in _CHANGES:
            for path in arguments[: _CHANGES[event]]:
                self._judge_path(path)
        elif event in {"socket.connect", "socket.sendto"}:
            self._judge_host(arguments[1][0] if isinstance(arguments[1], tuple) else None)
        elif event in {"socket.getaddrinfo", "socket.gethostbyname"}:
            self._judge_host(arguments[0])

    def _judge_host(self, host: str | bytes | None) -> None:
        if host is None:
            return  # a Unix socket, or the wildcard to listen on
        name = host.decode() if isinstance(host, bytes) else host
        try:
            is_near = ipaddress.ip_address(name).is_loopback or name == "0.0.0.0"  # noqa: S104 - judged, not bound
        except ValueError:
            is_near = name in {"localhost", ""}
        if not is_near:
            self._refuse(f"the network: {name}")

    def _judge_path(self, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor that is open already
        place = Path(os.path.realpath(os.fsdecode(path)))
        # The checkout itself may lie in the temporary folder: a clone that is tested and thrown away.
        is_free = any(place.is_relative_to(folder) for folder in self._free) and not place.is_relative_to(self._root)
        if is_free or _CACHES & set(place.parts):
            return
        if sys.is_finalizing():
            return
        self._refuse(f"a file outside the temporary folder: {place}")

    def _refuse(self, what: str) -> None:
        self.refused.append(what)
        raise Refused(what)


def spellings(secret: str) -> set[str]:
    """The secret as it may appear: plain, URL-encoded, and within base64 at each of the three alignments."""
    found = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret, safe="/")}
    for before in range(3):
        whole = base64.b64encode(b" " * before + secret.encode() + b" " * 3).decode()
        inner = whole[4 : 4 * ((before + len(secret)) // 3)]
        found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return found
