"""A visitor of the browse pages: the command serves them in a process of its own, the visitor has its key."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
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
        return _get(self.port, path, {"Cookie": self.cookie})


@contextmanager
def open_browse(lake: Path, *options: str, **environment: str) -> Iterator[tuple[Visitor, subprocess.Popen[str]]]:
    """Serve a lake and open the printed address; end the server at the end."""
    command = [sys.executable, "-m", "pipeline", "--lake", str(lake), "serve", "--port", "0", "--json"]
    with subprocess.Popen(
        [*command, *options],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            parts = urlsplit(address)
            status, headers, _ = _get(parts.port or 0, f"/?{parts.query}", {})
            assert status == 303
            yield Visitor(address, headers["Set-Cookie"].partition(";")[0]), process
        finally:
            process.kill()


def _get(port: int, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("GET", path, headers=headers)
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
