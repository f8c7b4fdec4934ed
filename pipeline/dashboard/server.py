"""The live page and the browse pages: served to this machine only, the page rendered again after each publish."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp import web

from pipeline.dashboard.browse.access_key import PARAMETER, AccessKey
from pipeline.dashboard.browse.frame import ROOT
from pipeline.dashboard.page import content_security_policy
from pipeline.errors import ScanlakeError, SettingsError
from pipeline.stop_signals import STOP_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from pipeline.dashboard.browse.site import BrowseSite

HOST: Final = "127.0.0.1"
_NAMES: Final = (HOST, "localhost")
_RETRY_SECONDS: Final = 5.0
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{content_security_policy(live=True)}; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Server": "scanlake",
}
_log = structlog.get_logger()


class CachedPage:
    """The last rendered page, and the version of the catalog and of the runs that it shows."""

    def __init__(self, catalog: Path, render: Callable[[str], str], runs_version: Callable[[], str] = str) -> None:
        self._catalog = catalog
        self._runs_version = runs_version
        self._render = render
        self._lock = asyncio.Lock()
        self._not_before = 0.0
        self.version = ""
        self.page = ""

    async def refresh(self) -> None:
        """Render the page if the catalog has changed.

        Raises `ScanlakeError` if that fails for the first page; later, the old page stays and the next attempt waits.
        """
        async with self._lock:
            try:
                version = self._catalog_version()
                if version == self.version or (self.page and monotonic() < self._not_before):
                    return
                # The version is read before the content: a publish in between only causes one more refresh.
                self.page = await asyncio.to_thread(self._render, version)
                self.version = version
            except ScanlakeError as error:
                self._not_before = monotonic() + _RETRY_SECONDS
                if not self.page:
                    raise
                _log.warning("dashboard.refresh_failed", error=str(error))

    def _catalog_version(self) -> str:
        try:
            state = self._catalog.stat()
        except OSError as error:
            raise SettingsError(f"{self._catalog.name}: {error.strerror}.", hint="Run `scanlake sync`.") from error
        return f"{state.st_ino:x}-{state.st_mtime_ns:x}-{state.st_size:x}{self._runs_version()}"


async def serve(cached: CachedPage, site: BrowseSite, port: int, ready: Callable[[str], None]) -> None:
    """Serve the pages until a signal of `STOP_SIGNALS`; call `ready` with the address. Port 0 selects a free one.

    The address has the key to the browse pages. Without it, there is only the page of the lake.

    Raises `ScanlakeError` if the page cannot be rendered, and `SettingsError` if the port is in use.
    """
    await cached.refresh()
    end, key = asyncio.Event(), AccessKey()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    runner = web.ServerRunner(web.Server(_handler(cached, site, key)), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise SettingsError(f"Port {port}: {error.strerror}.", hint="Use another port with --port.") from error
        ready(f"http://{HOST}:{runner.addresses[0][1]}/?{PARAMETER}={key.text}")
        await end.wait()
    finally:
        site.access.stop()
        await runner.cleanup()


def _handler(
    cached: CachedPage, site: BrowseSite, key: AccessKey
) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if (refusal := _refuse(request)) is not None:
            return refusal
        if key.is_offered_by(request):
            response = _text_response(303, "", Location=request.path)
            key.set_cookie(request, response)
            return response
        if _is_browse_path(request.path):
            if not key.is_held_by(request):
                return _text_response(403, "Open the address that the dashboard printed: it has the key.\n")
            return await site.answer(request, _HEADERS)
        await cached.refresh()
        if request.path == "/version":
            return _text_response(200, cached.version)
        return web.Response(text=cached.page, content_type="text/html", charset="utf-8", headers=_HEADERS)

    return answer


def _refuse(request: web.BaseRequest) -> web.Response | None:
    # DNS rebinding: another site's name may resolve to this machine, but the browser still sends that name.
    if not _is_expected_host(request):
        return _text_response(421, "Use the address that the dashboard printed.\n")
    if request.path not in {"/", "/version"} and not _is_browse_path(request.path):
        return _text_response(404, "The pages are / and /browse\n")
    if request.method not in {"GET", "HEAD"}:
        return _text_response(405, "Use GET or HEAD.\n", Allow="GET, HEAD")
    return None


def _is_browse_path(path: str) -> bool:
    return path == ROOT or path.startswith(f"{ROOT}/")


def _is_expected_host(request: web.BaseRequest) -> bool:
    local_address = request.transport.get_extra_info("sockname") if request.transport else None
    is_path = request.raw_path.startswith("/")  # and not a whole URL, which overrides the header
    return (
        is_path
        and local_address is not None
        and request.headers.getall("Host", []) in [[f"{name}:{local_address[1]}"] for name in _NAMES]
    )


def _text_response(status: int, text: str, **more: str) -> web.Response:
    return web.Response(status=status, text=text, headers={**_HEADERS, **more})
