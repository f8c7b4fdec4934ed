"""The command as a process below these tests, and a collector that takes what it is sent."""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from tests.processes import ended, launched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.emulator import Emulator

SAMPLE: Final = re.compile(
    r'(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\})?'
    r" (?P<value>[+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|Inf|NaN))"
)
LABEL: Final = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"')
ESCAPED: Final = {r"\"": '"', r"\\": "\\", r"\n": "\n"}


async def scanlake(emulator: Emulator, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the command to its end."""
    return await ended(await launched(emulator, *arguments, **environment))


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """A Prometheus text file, held against the format's grammar: one HELP and one TYPE before a metric's samples."""
    assert text.endswith("\n")
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    described: list[str] = []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in described
            described.append(name)
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == described[-1]
            assert line.split(" ")[3] in {"gauge", "counter"}
            assert line.endswith("counter") == described[-1].endswith("_total")
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match["name"] == described[-1]
            labels = frozenset(
                (key, re.sub(r"\\.", lambda m: ESCAPED[m[0]], value))
                for key, value in LABEL.findall(match["labels"] or "")
            )
            assert (match["name"], labels) not in found
            found[match["name"], labels] = float(match["value"])
    return found


@dataclass
class Collector:
    """An HTTP server on this machine that keeps what it is sent."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    silent: bool = False
    taken: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    @property
    def bodies(self) -> list[Any]:
        """What came, as JSON."""
        return [json.loads(body) for _, _, body in self.taken]

    @contextmanager
    def serving(self) -> Iterator[Collector]:
        """Serve on a free port."""
        collector, released = self, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                collector.taken.append((self.path, headers, body))
                if collector.silent:
                    released.wait(30)
                self.send_response(collector.status)
                for name, value in collector.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.url = f"http://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            try:
                yield self
            finally:
                released.set()
                server.shutdown()
                thread.join()
