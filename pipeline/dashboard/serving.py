"""The live page: served to this machine alone, and made anew when the catalog has been replaced."""

from __future__ import annotations

import asyncio
import signal
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp import web

from pipeline.dashboard.page import policy
from pipeline.errors import ScanlakeError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

HOST: Final = "127.0.0.1"
_NAMES: Final = (HOST, "localhost")
_AGAIN_SECONDS: Final = 5.0
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Server": "scanlake",
}
_log = structlog.get_logger()


class Edition:
    """The page as it was last made, and what the catalog's file looked like then."""

    def __init__(self, catalog: Path, make: Callable[[str], str]) -> None:
        self._catalog = catalog
        self._make = make
        self._lock = asyncio.Lock()
        self._not_before = 0.0
        self.version = ""
        self.page = ""

    async def renew(self) -> None:
        """Make the page if the catalog is another one than it was made from.

        Raises `ScanlakeError` when there is no page yet; an earlier one stays, and the next try waits a little.
        """
        async with self._lock:
            try:
                version = self._seen()
                if version == self.version or (self.page and monotonic() < self._not_before):
                    return
                # What is seen before it is read can only be too old, and is then made once more.
                self.page = await asyncio.to_thread(self._make, version)
                self.version = version
            except ScanlakeError as error:
                self._not_before = monotonic() + _AGAIN_SECONDS
                if not self.page:
                    raise
                _log.warning("dashboard.not_renewed", error=str(error))

    def _seen(self) -> str:
        try:
            state = self._catalog.stat()
        except OSError as error:
            raise SettingsError(f"{self._catalog.name}: {error.strerror}.", remedy="Run `scanlake sync`.") from error
        return f"{state.st_ino:x}-{state.st_mtime_ns:x}-{state.st_size:x}"


async def serve(edition: Edition, port: int, ready: Callable[[str], None]) -> None:
    """Serve the page until SIGINT or SIGTERM; `ready` is told its address. Port 0 takes a free one.

    Raises `ScanlakeError` when the page cannot be made, and `SettingsError` when the port is taken.
    """
    await edition.renew()
    end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    runner = web.ServerRunner(web.Server(_answer(edition)), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise SettingsError(f"Port {port}: {error.strerror}.", remedy="Name another one with --port.") from error
        ready(f"http://{HOST}:{runner.addresses[0][1]}/")
        await end.wait()
    finally:
        await runner.cleanup()


def _answer(edition: Edition) -> Callable[[web.BaseRequest], Awaitable[web.Response]]:
    async def answer(request: web.BaseRequest) -> web.Response:
        # A page elsewhere may give its own name this machine's address; its browser still says that name.
        if not _is_ours(request):
            return _said(421, "This is not the address the dashboard is served at.\n")
        if request.path not in {"/", "/version"}:
            return _said(404, "There is one page here: /\n")
        if request.method not in {"GET", "HEAD"}:
            return _said(405, "GET or HEAD.\n", Allow="GET, HEAD")
        await edition.renew()
        if request.path == "/version":
            return _said(200, edition.version)
        return web.Response(text=edition.page, content_type="text/html", charset="utf-8", headers=_HEADERS)

    return answer


def _is_ours(request: web.BaseRequest) -> bool:
    here = request.transport.get_extra_info("sockname") if request.transport else None
    return here is not None and request.headers.getall("Host", []) in [[f"{name}:{here[1]}"] for name in _NAMES]


def _said(status: int, text: str, **more: str) -> web.Response:
    return web.Response(status=status, text=text, headers={**_HEADERS, **more})
