"""Requests for browse pages to responses. GET only: no request changes anything."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from aiohttp import web

from pipeline.errors import SettingsError, to_scanlake_error
from pipeline.pages.catalog_access import BrowsePage, NothingFoundError, describe_snapshot
from pipeline.pages.file_view import build_file_page, find_file
from pipeline.pages.sql_view import run_sql_page
from pipeline.pages.stored_images import find_image, read_image
from pipeline.pages.table_view import build_rows_page, build_tables_page
from pipeline.templates.rendering import build_policy, render

if TYPE_CHECKING:
    from collections.abc import Callable

    import duckdb
    from yarl import URL

    from pipeline.errors import ScanlakeError
    from pipeline.pages.catalog_access import CatalogAccess, Query

ROOT: Final = "/browse"
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Server": "scanlake",
}
"""Headers of every response."""

_TABLE_PATH: Final = f"{ROOT}/table/"
_FILE_PATH: Final = f"{ROOT}/file"
_SQL_PATH: Final = f"{ROOT}/sql"
_IMAGE_PATH: Final = f"{ROOT}/image/"
_POLICY_RULES: Final = ("img-src 'self' data:", "base-uri 'none'", "form-action 'self'")
_HEADERS: Final = {
    **HEADERS,
    "Content-Security-Policy": f"{build_policy('', *_POLICY_RULES)}; frame-ancestors 'none'",
}
_BUSY: Final = 503
_RETRY_SECONDS: Final = "5"
_MAX_ID: Final = 2**63 - 1
_MAX_ID_DIGITS: Final = 19


class BrowseSite:
    """The pages below /browse. `source` is the address of the service, as far as it is known."""

    def __init__(self, access: CatalogAccess, lake: str, read_source: Callable[[], str | None]) -> None:
        self.access = access
        self._lake = lake
        self._read_source = read_source

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a GET or HEAD request. Every failure becomes a response here."""
        path = _clean(unquote(request.path))
        query = [(name, _clean(value)) for name, value in request.query.items()]
        try:
            if path.startswith(_IMAGE_PATH):
                return await asyncio.to_thread(self._build_image_response, path.removeprefix(_IMAGE_PATH))
            return await asyncio.to_thread(self._build_page_response, path, request.rel_url, query)
        except ConnectionError:  # the browser does not wait for the response
            raise
        except Exception as error:  # noqa: BLE001 - every failure is one line
            return self._build_failure(to_scanlake_error(error), path)

    def _build_page_response(self, path: str, url: URL, query: Query) -> web.Response:
        page, snapshot = self.access.read(lambda lake: (build_page(lake, path, url, query), describe_snapshot(lake)))
        return self._render(page, path, snapshot)

    def _build_image_response(self, sha256: str) -> web.Response:
        image = self.access.read(lambda lake: find_image(lake, sha256))
        return web.Response(body=read_image(self.access.settings.lake, image), headers={**_HEADERS, **image.headers})

    def _build_failure(self, error: ScanlakeError, path: str) -> web.Response:
        """Return the error: 404, 400 for what is wrong with the request, 503 for what may work later."""
        status = 404 if isinstance(error, NothingFoundError) else _BUSY
        status = 400 if isinstance(error, SettingsError) else status
        headers = _HEADERS if status != _BUSY else {**_HEADERS, "Retry-After": _RETRY_SECONDS}
        if path.startswith(_IMAGE_PATH):
            return web.Response(status=status, text=f"{error.message} {error.hint}\n", headers=headers)
        heading = "Not found" if status == 404 else "Error"
        page = BrowsePage("browse_error.html.jinja", heading, {"error": error}, status=status)
        return self._render(page, path, "", headers)

    def _render(self, page: BrowsePage, path: str, snapshot: str, headers: dict[str, str] = _HEADERS) -> web.Response:
        frame: dict[str, Any] = {
            "heading": page.heading,
            "lake": self._lake,
            "source": self._read_source(),
            "snapshot": snapshot,
        }
        policy = build_policy(page.script, *_POLICY_RULES)
        text = render(page.template, policy, page.script, **frame, current=path, **page.values)
        headers = {**headers, "Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
        return web.Response(status=page.status, text=text, content_type="text/html", charset="utf-8", headers=headers)


def build_page(lake: duckdb.DuckDBPyConnection, path: str, url: URL, query: Query) -> BrowsePage:
    """Return the page of an address. Raises `NothingFoundError` for one that no page links to."""
    values = dict(query)
    if path == ROOT:
        return build_tables_page(lake)
    if path.startswith(_TABLE_PATH):
        return build_rows_page(lake, path.removeprefix(_TABLE_PATH), url, query)
    if path == _SQL_PATH:
        return run_sql_page(lake, values.get("sql", ""))
    if path == _FILE_PATH and "q" in values:
        return find_file(lake, values["q"].strip())
    number = values.get("id", "")
    if path == _FILE_PATH and number.isdecimal() and len(number) <= _MAX_ID_DIGITS and int(number) <= _MAX_ID:
        return build_file_page(lake, int(number))
    raise NothingFoundError("No such page.", hint="The page Tables leads to all others.")


def _clean(text: str) -> str:
    """Return the text without what HTML and SQL cannot contain."""
    return text.encode("utf-8", "replace").decode().replace("\0", "").replace("\r\n", "\n")
