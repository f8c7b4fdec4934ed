"""A visitor of the pages of `scanlake serve`: a thread of this process serves them, the visitor has their key."""

from __future__ import annotations

import asyncio
import json
import queue
import re
import socket
import sys
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from subprocess import PIPE
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from urllib.parse import urlsplit

from pipeline.cli.commands import serve
from pipeline.cli.context import CommandContext
from pipeline.errors import ExitCode
from pipeline.settings.settings import Settings
from tests.forked_process import fork_command
from tests.soaking import unmeasured

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Visitor:
    """Who opened the printed address. `cookie` is what the browser keeps of it."""

    address: str
    cookie: str

    @property
    def port(self) -> int:
        """The port of the server."""
        return urlsplit(self.address).port or 0

    @property
    def root(self) -> str:
        """The address without the key."""
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> tuple[int, dict[str, str], str]:
        """Return status, headers and text of a page."""
        status, headers, body = self.get_bytes(path)
        return status, headers, body.decode()

    def get_bytes(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer."""
        return send_request(self.port, path, Cookie=self.cookie)

    def call(self, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        """Return status, headers and text of the answer to anybody: without the cookie."""
        status, found, body = send_request(self.port, path, method, **headers)
        return status, found, body.decode()

    def send_raw(self, head: bytes) -> bytes:
        """Return all that the server answers to the head of a request."""
        with self.connect() as line:
            line.sendall(head)
            return b"".join(iter(lambda: line.recv(65_536), b""))

    def connect(self) -> socket.socket:
        """Open a connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=300)

    @contextmanager
    def sent_request(self, path: str) -> Iterator[socket.socket]:
        """Send a request that takes long, and wait until the server has begun with it."""
        fields = (f"Host: 127.0.0.1:{self.port}", f"Cookie: {self.cookie}", "Connection: close")
        with self.connect() as line:
            line.sendall("\r\n".join([f"GET {path} HTTP/1.1", *fields, "", ""]).encode())
            assert self.get("/x")[0] == 404  # requests begin in the order in which they come
            yield line


@contextmanager
def open_browse(lake: Path) -> Iterator[Visitor]:
    """Serve a lake as the command does, from a thread of this process, and open the printed address."""
    said: queue.Queue[Any] = queue.Queue()

    class Context(CommandContext, frozen=True):
        def print_result(self, result: object, text: object = "", code: ExitCode = ExitCode.OK) -> ExitCode:  # noqa: ARG002
            said.put((result.address, asyncio.get_running_loop(), asyncio.current_task()))  # type: ignore[attr-defined]
            return code

    def run() -> None:
        try:
            with suppress(asyncio.CancelledError):
                serve._serve(Context(lake=lake), Settings(lake=lake), 0)
        except BaseException as error:  # noqa: BLE001 - it is raised in the other thread
            said.put(error)

    thread = threading.Thread(target=run)
    with patch("pipeline.query.site.STOP_SIGNALS", ()):  # they reach the main thread only
        thread.start()
        answer = said.get()
    if isinstance(answer, BaseException):
        raise answer
    address, loop, task = answer
    try:
        yield _visit(address)
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(60)
        assert not thread.is_alive(), "a page keeps the server from its end"


@asynccontextmanager
async def start_browse(
    lake: Path, *, is_forked: bool = True, **environment: str
) -> AsyncIterator[tuple[Visitor, Process]]:
    """Serve a lake by a process, for what signals and streams do; open the printed address."""
    command, env = ("--lake", str(lake), "serve", "--port", "0", "--json"), unmeasured() | environment
    if is_forked:
        process: Process = await fork_command(command, env=env)
    else:
        start = (sys.executable, "-m", "tests.constants")
        process = await asyncio.create_subprocess_exec(*start, *command, env=env, stdout=PIPE, stderr=PIPE)
    try:
        assert process.stdout is not None
        yield _visit(json.loads(await process.stdout.readline())["address"]), process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def _visit(address: str) -> Visitor:
    parts = urlsplit(address)
    status, headers, _ = send_request(parts.port or 0, f"/?{parts.query}")
    assert status == 303
    return Visitor(address, headers["Set-Cookie"].partition(";")[0])


def send_request(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()
    finally:
        connection.close()


def table_rows(page: str) -> list[list[str]]:
    """Return the cells of the page's first table of rows, without its heading."""
    body = re.findall(r"<tbody>(.*?)</tbody>", page, re.DOTALL)[0]
    return [
        [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    ]
