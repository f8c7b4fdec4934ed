"""The dashboard and the browse pages: served to this machine only."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from typing import TYPE_CHECKING, Final

from aiohttp import web

from pipeline.errors import ScanlakeError, SettingsError
from pipeline.pages.dashboard import POLICY
from pipeline.pages.site import HEADERS, ROOT
from pipeline.stop_signals import STOP_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pipeline.pages.site import BrowseSite

HOST: Final = "127.0.0.1"
_NAMES: Final = (HOST, "localhost")
_PARAMETER: Final = "key"
_HEADERS: Final = {**HEADERS, "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'"}


class AccessKey:
    """A random key for the life of the server. The browser gets it with the printed address and keeps it as a cookie.

    The cookie is not sent with requests that another site starts, and no script can read it.
    """

    def __init__(self) -> None:
        self.text = secrets.token_urlsafe(24)

    def is_offered_by(self, request: web.BaseRequest) -> bool:
        """Return whether the address has the key."""
        return self._is_equal(request.query.get(_PARAMETER, ""))

    def is_held_by(self, request: web.BaseRequest) -> bool:
        """Return whether the request has the cookie."""
        return self._is_equal(request.cookies.get(_cookie_name(request), ""))

    def set_cookie(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Add the cookie to a response."""
        response.set_cookie(_cookie_name(request), self.text, httponly=True, samesite="Strict", path="/")

    def _is_equal(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.text.encode())


def _cookie_name(request: web.BaseRequest) -> str:
    # Cookies ignore the port: two servers on one machine must not replace each other's.
    return f"scanlake-{request.host.rpartition(':')[2]}"


async def serve(render: Callable[[], str], site: BrowseSite, port: int, ready: Callable[[str], None]) -> None:
    """Serve the pages until a signal of `STOP_SIGNALS`; call `ready` with the address. Port 0 selects a free one.

    The address has the key to the browse pages. Without it, there is only the dashboard, which `render` returns.

    Raises `ScanlakeError` if the dashboard cannot be rendered, and `SettingsError` if the port is in use.
    """
    await asyncio.to_thread(render)
    end, key = asyncio.Event(), AccessKey()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    runner = web.ServerRunner(web.Server(_handler(render, site, key)), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise SettingsError(f"Port {port}: {error.strerror}.", hint="Use another port with --port.") from error
        ready(f"http://{HOST}:{runner.addresses[0][1]}/?{_PARAMETER}={key.text}")
        await end.wait()
    finally:
        site.access.stop()
        await runner.cleanup()


def _handler(
    render: Callable[[], str], site: BrowseSite, key: AccessKey
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
                return _text_response(403, "Open the address that `scanlake serve` printed: it has the key.\n")
            return await site.answer(request)
        try:
            page = await asyncio.to_thread(render)
        except ScanlakeError as error:
            return _text_response(503, f"{error.message} {error.hint}\n")
        return web.Response(text=page, content_type="text/html", charset="utf-8", headers=_HEADERS)

    return answer


def _refuse(request: web.BaseRequest) -> web.Response | None:
    # DNS rebinding: another site's name may resolve to this machine, but the browser still sends that name.
    if not _is_expected_host(request):
        return _text_response(421, "Use the address that `scanlake serve` printed.\n")
    if request.path != "/" and not _is_browse_path(request.path):
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
