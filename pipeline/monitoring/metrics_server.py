"""The metrics over HTTP, for a Prometheus that scrapes `scanlake watch`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import web

from pipeline.errors import SettingsError
from pipeline.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SHUTDOWN_SECONDS: Final = 1.0
_log = get_logger()


@asynccontextmanager
async def serve_metrics(address: str, port: int, render: Callable[[], str]) -> AsyncIterator[None]:
    """Serve `render()` under /metrics; port 0 selects a free one.

    Raises `SettingsError` if the address cannot be used.
    """

    async def respond(_request: web.Request) -> web.Response:
        text = await asyncio.to_thread(render)
        return web.Response(body=text.encode(), headers={"Content-Type": _CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/metrics", respond)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, address, port).start()
        except OSError as error:
            raise SettingsError(
                f"--metrics-port {port}: {error.strerror or error}.",
                hint="Use another --metrics-port or --metrics-address.",
            ) from None
        _log.info("metrics.serving", address=address, port=runner.addresses[0][1])
        yield
    finally:
        await runner.cleanup()
