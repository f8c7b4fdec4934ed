"""The pages of `scanlake serve`: the dashboard and the browse pages, served to this machine only.

GET only: no request changes anything.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from aiohttp import web

from pipeline.errors import ExitCode, ScanlakeError, SettingsError, to_scanlake_error
from pipeline.output.templates.rendering import build_policy, render
from pipeline.processes.children import limit_commands, start_command
from pipeline.processes.signals import STOP_SIGNALS
from pipeline.query.browse import build_rows_page, build_tables_page, find_rows
from pipeline.query.catalog_access import BrowsePage, NothingFoundError, clean_text, describe_snapshot
from pipeline.query.dashboard import POLICY
from pipeline.query.file_page import build_file_page, find_file
from pipeline.query.reader import CATALOG
from pipeline.query.sql_page import run_sql_page
from pipeline.query.stored_images import find_image, read_image

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import duckdb
    from yarl import URL

    from pipeline.query.catalog_access import CatalogAccess, Query

_HOST: Final = "127.0.0.1"
_NAMES: Final = (_HOST, "localhost")
_CONNECTIONS: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # of Linux: an address, and its owner
_HTTP_PORT: Final = 80  # clients leave it out
_MAX_ADDRESS_BYTES: Final = 65_536
_PARAMETER: Final = "key"
_ROOT: Final = "/browse"
_TABLE_PATH: Final = f"{_ROOT}/table/"
_FILE_PATH: Final = f"{_ROOT}/file"
_SQL_PATH: Final = f"{_ROOT}/sql"
_IMAGE_PATH: Final = f"{_ROOT}/image/"
_POLICY_RULES: Final = ("img-src 'self' data:", "base-uri 'none'", "form-action 'self'")
_BUSY: Final = 503
_RETRY_SECONDS: Final = "5"
_FORMATS: Final = {"csv": "text/csv; charset=utf-8; header=present", "json": "application/json"}
_MAX_DOWNLOADS: Final = 2  # each may use the memory of a query
_DOWNLOAD_SECONDS: Final = 600
_DOWNLOAD_HINT: Final = "Run it with `scanlake query`, which has no limit."
_CHUNK_BYTES: Final = 1 << 16
_MAX_ID: Final = 2**63 - 1
_MAX_ID_DIGITS: Final = 19


def _build_headers(policy: str, **more: str) -> dict[str, str]:
    """Return the headers of every response."""
    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": f"{policy}; frame-ancestors 'none'",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Server": "scanlake",
        **more,
    }


class Site:
    """The pages of a lake. `source` is the address of the service; `render_dashboard` returns the first page.

    `options` are the global ones of a command on this lake.

    A random key for the life of the site protects the rows. The browser gets it with the printed address and keeps it
    as a cookie, which is not sent with requests that another site starts, and which no script can read.
    """

    def __init__(
        self,
        access: CatalogAccess,
        lake: str,
        source: str | None,
        render_dashboard: Callable[[], str],
        options: Sequence[str],
    ) -> None:
        self._options = options
        self._downloads = asyncio.Semaphore(_MAX_DOWNLOADS)
        self._access = access
        self._lake = lake
        self._source = source
        self._render_dashboard = render_dashboard
        self._key = secrets.token_urlsafe(24)

    async def serve(self, port: int, ready: Callable[[str], None]) -> None:
        """Serve until a signal of `STOP_SIGNALS`; call `ready` with the address. Port 0 selects a free one.

        The address has the key to the browse pages. Without it, there is only the dashboard.

        Raises `ScanlakeError` if the dashboard cannot be rendered, and `SettingsError` if the port is in use.
        """
        await asyncio.to_thread(self._render_dashboard)
        end = asyncio.Event()
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, end.set)
        server = web.Server(self._answer, max_line_size=_MAX_ADDRESS_BYTES)
        runner = web.ServerRunner(server, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, _HOST, port).start()
            except OSError as error:
                raise SettingsError(f"Port {port}: {error.strerror}.", hint="Use another port with --port.") from error
            ready(f"http://{_HOST}:{runner.addresses[0][1]}/?{_PARAMETER}={self._key}")
            await end.wait()
        finally:
            self._access.stop()
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if (refusal := _refuse(request)) is not None:
            return refusal
        # Cookies ignore the port: two servers on one machine must not replace each other's.
        cookie = f"scanlake-{request.host.rpartition(':')[2]}"
        if self._is_key(request.query.get(_PARAMETER, "")):
            response = _text_response(303, "", Location=request.path)
            response.set_cookie(cookie, self._key, httponly=True, samesite="Strict", path="/")
            return response
        if _is_browse_path(request.path):
            if not self._is_key(request.cookies.get(cookie, "")):
                return _text_response(403, "Open the address that `scanlake serve` printed: it has the key.\n")
            return await self._browse(request)
        try:
            page = await asyncio.to_thread(self._render_dashboard)
        except ScanlakeError as error:
            return _text_response(_BUSY, f"{error.message} {error.hint}\n")
        return _page_response(200, page, _build_headers(POLICY))

    def _is_key(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._key.encode())

    # Browse pages

    async def _browse(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a GET or HEAD request. Every failure becomes a response here."""
        path = clean_text(unquote(request.path))
        query = [(name, clean_text(value)) for name, value in request.query.items()]
        try:
            if path.startswith(_IMAGE_PATH):
                return await asyncio.to_thread(self._build_image_response, path.removeprefix(_IMAGE_PATH))
            if (form := request.query.get("format", "")) in _FORMATS and request.method == "GET":
                sql = await asyncio.to_thread(self._access.read, lambda lake: find_sql(lake, path, query))
                return await self._download(request, sql, form, f"{path.rpartition('/')[2]}.{form}")
            return await asyncio.to_thread(self._build_page_response, path, request.rel_url, query)
        except ConnectionError:  # the browser does not wait for the response
            raise
        except Exception as error:  # noqa: BLE001 - every failure is one line
            return self._build_failure(to_scanlake_error(error), path)

    def _build_page_response(self, path: str, url: URL, query: Query) -> web.Response:
        page, snapshot = self._access.read(lambda lake: (build_page(lake, path, url, query), describe_snapshot(lake)))
        return self._render(page, path, snapshot)

    async def _download(self, request: web.BaseRequest, sql: str, form: str, name: str) -> web.StreamResponse:
        """Stream the whole result of a query as `scanlake query` writes it, whose process keeps no page waiting."""
        disposition = {"Content-Type": _FORMATS[form], "Content-Disposition": f'attachment; filename="{name}"'}
        argv = [*self._options, "query", "-", "--format", form]
        response = web.StreamResponse(headers=_build_headers("default-src 'none'; sandbox", **disposition))
        try:
            async with (
                self._downloads,
                limit_commands(_DOWNLOAD_SECONDS, _DOWNLOAD_HINT) as variables,
                start_command(argv, on_line=lambda _: None, variables=variables) as child,
            ):
                with suppress(ConnectionError):  # a command that has failed does not read it
                    child.stdin.write(sql.encode())
                    await child.stdin.drain()
                child.stdin.close()
                while chunk := await child.stdout.read(_CHUNK_BYTES):
                    if not response.prepared:
                        await response.prepare(request)
                    await response.write(chunk)
                if code := await child.process.wait():
                    message = (await child.last_line).removeprefix("scanlake: ")
                    raise (SettingsError if code == ExitCode.USAGE else ScanlakeError)(message)
        except ScanlakeError:
            if not response.prepared:
                raise
            if request.transport is not None:
                request.transport.abort()  # a part must not look like the whole
        return response

    def _build_image_response(self, sha256: str) -> web.Response:
        image = self._access.read(lambda lake: find_image(lake, sha256))
        body = read_image(self._access.settings.lake, image)
        return web.Response(body=body, headers=_build_headers("default-src 'none'; sandbox", **image.headers))

    def _build_failure(self, error: ScanlakeError, path: str) -> web.Response:
        """Return the error: 404, 400 for what is wrong with the request, 503 for what may work later."""
        status = 404 if isinstance(error, NothingFoundError) else _BUSY
        if isinstance(error, SettingsError) and (self._access.settings.lake / CATALOG).is_file():
            status = 400
        more = {"Retry-After": _RETRY_SECONDS} if status == _BUSY else {}
        if path.startswith(_IMAGE_PATH):
            return _text_response(status, f"{error.message} {error.hint}\n", **more)
        heading = "Not found" if status == 404 else "Error"
        page = BrowsePage("browse_error.html.jinja", heading, {"error": error}, status=status)
        return self._render(page, path, "", **more)

    def _render(self, page: BrowsePage, path: str, snapshot: str, **more: str) -> web.Response:
        frame: dict[str, Any] = {
            "heading": page.heading,
            "lake": self._lake,
            "source": self._source,
            "snapshot": snapshot,
        }
        policy = build_policy(page.script, *_POLICY_RULES)
        text = render(page.template, policy, page.script, **frame, current=path, **page.values)
        return _page_response(page.status, text, _build_headers(policy, **more))


def find_sql(lake: duckdb.DuckDBPyConnection, path: str, query: Query) -> str:
    """Return the query of all rows of a page. Raises `NothingFoundError` for a page without rows."""
    if path == _SQL_PATH:
        return dict(query).get("sql", "")
    if path.startswith(_TABLE_PATH):
        return find_rows(lake, path.removeprefix(_TABLE_PATH), query).sql
    raise NothingFoundError("This page has no rows.", hint="The page Tables leads to all others.")


def build_page(lake: duckdb.DuckDBPyConnection, path: str, url: URL, query: Query) -> BrowsePage:
    """Return the browse page of an address. Raises `NothingFoundError` for one that no page links to."""
    values = dict(query)
    if path == _ROOT:
        return build_tables_page(lake)
    if path.startswith(_TABLE_PATH):
        return build_rows_page(lake, path.removeprefix(_TABLE_PATH), url, query)
    if path == _SQL_PATH:
        return run_sql_page(lake, url, values.get("sql", ""), values.get("chart", ""))
    if path == _FILE_PATH and "q" in values:
        return find_file(lake, values["q"].strip())
    number = values.get("id", "")
    if path == _FILE_PATH and number.isdecimal() and len(number) <= _MAX_ID_DIGITS and int(number) <= _MAX_ID:
        return build_file_page(lake, int(number))
    raise NothingFoundError("No such page.", hint="The page Tables leads to all others.")


def _refuse(request: web.BaseRequest) -> web.Response | None:
    # DNS rebinding: another site's name may resolve to this machine, but the browser still sends that name.
    if not _is_expected_host(request):
        return _text_response(421, "Use the address that `scanlake serve` printed.\n")
    if request.path != "/" and not _is_browse_path(request.path):
        return _text_response(404, "The pages are / and /browse\n")
    if _is_browse_path(request.path) and not _is_of_this_user(request):
        return _text_response(403, "Only processes of the user who runs `scanlake serve` see rows.\n")
    if request.method not in {"GET", "HEAD"}:
        return _text_response(405, "Use GET or HEAD.\n", Allow="GET, HEAD")
    return None


def _is_of_this_user(request: web.BaseRequest) -> bool:
    """Return whether a process of this user or of root has sent the request, as far as the system shows it.

    Browsers send a cookie to every port of a host, so servers of other users can get the key. It is no use to them.
    """
    if request.transport is None or not _CONNECTIONS[0].exists():
        return True
    ends = [
        f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
        for host, port in map(request.transport.get_extra_info, ("peername", "sockname"))
    ]
    rows = (line.split() for table in _CONNECTIONS if table.exists() for line in table.read_text().splitlines())
    users = {"0", str(os.geteuid())}
    return any(row[1].endswith(ends[0]) and row[2].endswith(ends[1]) and row[7] in users for row in rows)


def _is_browse_path(path: str) -> bool:
    return path == _ROOT or path.startswith(f"{_ROOT}/")


def _is_expected_host(request: web.BaseRequest) -> bool:
    if request.transport is None or not request.raw_path.startswith("/"):  # a whole URL overrides the header
        return False
    _, port = request.transport.get_extra_info("sockname")
    hosts = {f"{name}:{port}" for name in _NAMES} | (set(_NAMES) if port == _HTTP_PORT else set())
    return [host in hosts for host in request.headers.getall("Host", [])] == [True]


def _text_response(status: int, text: str, **more: str) -> web.Response:
    return web.Response(status=status, text=text, headers=_build_headers("default-src 'none'", **more))


def _page_response(status: int, page: str, headers: dict[str, str]) -> web.Response:
    return web.Response(status=status, text=page, content_type="text/html", charset="utf-8", headers=headers)
