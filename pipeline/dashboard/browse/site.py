"""Requests for browse pages to responses. GET only: no request changes anything."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections import OrderedDict
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import unquote

from aiohttp import web

from pipeline.dashboard.browse.catalog_access import CatalogAccess, NothingFoundError
from pipeline.dashboard.browse.file_view import build_file_page, find_file
from pipeline.dashboard.browse.frame import (
    CSV_PATH,
    FILE_PATH,
    POLICY,
    ROOT,
    SQL_PATH,
    TABLE_PATH,
    BrowsePage,
    describe_snapshot,
    error_note,
    render_browse_page,
)
from pipeline.dashboard.browse.image_view import IMAGE_PATH
from pipeline.dashboard.browse.sql_view import (
    MAX_QUERY_CHARS,
    build_failed_sql_page,
    build_sql_page,
    run_sql_page,
)
from pipeline.dashboard.browse.stored_images import StoredImage, find_image, read_image
from pipeline.dashboard.browse.table_view import RowsRequest, build_rows_page, build_tables_page
from pipeline.errors import LakeLockedError, ScanlakeError, SettingsError, TimeLimitReachedError, to_scanlake_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import duckdb

    WriteCsv = Callable[[str, IO[bytes]], Awaitable[None]]
    """Writes the result of a query, or raises `ScanlakeError`. It runs beside the pages, without their catalog."""

_MAX_CSV_DOWNLOADS: Final = 3
_BUSY: Final = 503
_RETRY_AFTER: Final = {"Retry-After": "5"}
_SPOOL_BYTES: Final = 8_000_000
_CHUNK_BYTES: Final = 1 << 18
_MAX_PAGE_IMAGES: Final = 10_000
_MAX_ID: Final = 2**63 - 1
_MAX_ID_DIGITS: Final = 19


class BrowseSite:
    """The pages below /browse. `source` is the address of the service, as far as it is known."""

    def __init__(
        self, access: CatalogAccess, lake: str, read_source: Callable[[], str | None], write_csv: WriteCsv
    ) -> None:
        self.access = access
        self._write_csv = write_csv
        self._csv_downloads = 0
        self._lake = lake
        self._read_source = read_source
        self._page_images: OrderedDict[str, StoredImage] = OrderedDict()
        self._page_lock = threading.Lock()

    async def answer(self, request: web.BaseRequest, headers: dict[str, str]) -> web.StreamResponse:
        """Return the response to a GET or HEAD request, with `headers` besides its own."""
        query = [(name, _clean(value)) for name, value in request.query.items()]
        path = _clean(unquote(request.path))
        headers = {**headers, "Content-Security-Policy": POLICY}
        if path == CSV_PATH:
            return await self._send_csv(request, dict(query).get("sql", ""), headers)
        if path.startswith(IMAGE_PATH):
            return await asyncio.to_thread(self._build_image_response, path.removeprefix(IMAGE_PATH), headers)
        status, text = await asyncio.to_thread(self._render, path, query)
        headers |= _RETRY_AFTER if status == _BUSY else {}
        return web.Response(status=status, text=text, content_type="text/html", charset="utf-8", headers=headers)

    def _render(self, path: str, query: Sequence[tuple[str, str]]) -> tuple[int, str]:
        def build(lake: duckdb.DuckDBPyConnection) -> tuple[BrowsePage, str]:
            return build_page(lake, path, query), describe_snapshot(lake)

        snapshot = ""
        try:
            page, snapshot = self.access.read(build)
            self._remember_images(page.images)
        except Exception as error:  # noqa: BLE001 - every failure is a page with one line
            page = _build_error_page(to_scanlake_error(error), path, query)
        return page.status, render_browse_page(page, self._lake, self._read_source(), snapshot)

    def _remember_images(self, images: Sequence[StoredImage]) -> None:
        """Keep the paths and types of the images of a page, so that the catalog need not be opened again for each."""
        with self._page_lock:
            for image in images:
                self._page_images[image.sha256] = image
            while len(self._page_images) > _MAX_PAGE_IMAGES:
                self._page_images.popitem(last=False)

    def _build_image_response(self, sha256: str, headers: dict[str, str]) -> web.Response:
        try:
            with self._page_lock:
                image = self._page_images.get(sha256)
            image = image or self.access.read(lambda lake: find_image(lake, sha256))
            body = read_image(self.access.settings.lake, image)
        except Exception as error:  # noqa: BLE001 - every failure is one line
            failure = to_scanlake_error(error)
            status = 404 if isinstance(failure, NothingFoundError) else 503
            return web.Response(status=status, text=f"{failure.message} {failure.hint or ''}\n", headers=headers)
        return web.Response(body=body, headers={**headers, **image.headers})

    async def _send_csv(self, request: web.BaseRequest, sql: str, headers: dict[str, str]) -> web.StreamResponse:
        if self._csv_downloads >= _MAX_CSV_DOWNLOADS:
            return _failed_csv(LakeLockedError("Other results are being written.", hint="Wait for their end."), headers)
        self._csv_downloads += 1
        try:
            with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as file:
                try:
                    _check_length(sql)
                    await self._write_csv(sql, file)
                except ScanlakeError as error:
                    return _failed_csv(error, headers)
                file.seek(0)
                return await _send_file(request, file, headers)
        finally:
            self._csv_downloads -= 1


def _failed_csv(error: ScanlakeError, headers: dict[str, str]) -> web.Response:
    """Return the error as text: 400 for a query that is wrong or too long, 503 for what may work later."""
    is_of_query = isinstance(error, SettingsError | TimeLimitReachedError)
    more = {} if is_of_query else _RETRY_AFTER
    text = f"{error.message} {error.hint or ''}\n"
    return web.Response(status=400 if is_of_query else _BUSY, text=text, headers=headers | more)


async def _send_file(request: web.BaseRequest, file: IO[bytes], headers: dict[str, str]) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={
            **headers,
            "Content-Type": "text/csv; charset=utf-8; header=present",
            "Content-Disposition": 'attachment; filename="result.csv"',
        }
    )
    await response.prepare(request)
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        await response.write(chunk)
    await response.write_eof()
    return response


def build_page(lake: duckdb.DuckDBPyConnection, path: str, query: Sequence[tuple[str, str]]) -> BrowsePage:
    """Return the page of an address. Raises `NothingFoundError` for one that no page links to."""
    values = dict(query)
    if path == ROOT:
        return build_tables_page(lake)
    if path.startswith(TABLE_PATH):
        return build_rows_page(lake, path.removeprefix(TABLE_PATH), RowsRequest.from_query(query))
    if path == SQL_PATH:
        sql = values.get("sql", "")
        if not sql.strip():
            return build_sql_page("")
        _check_length(sql)
        return run_sql_page(lake, sql)
    if path == FILE_PATH and "q" in values:
        return find_file(lake, values["q"].strip())
    number = values.get("id", "")
    if path == FILE_PATH and number.isdecimal() and len(number) <= _MAX_ID_DIGITS and int(number) <= _MAX_ID:
        return build_file_page(lake, int(number))
    raise NothingFoundError("No such page.", hint="The page Tables leads to all others.")


def _check_length(sql: str) -> None:
    if len(sql) > MAX_QUERY_CHARS:
        hint = "Use `scanlake query --file` for longer ones."
        raise SettingsError(f"The query has more than {MAX_QUERY_CHARS:,} characters.", hint=hint)


def _build_error_page(error: ScanlakeError, path: str, query: Sequence[tuple[str, str]]) -> BrowsePage:
    if path == SQL_PATH and isinstance(error, SettingsError):
        return build_failed_sql_page(dict(query).get("sql", ""), error)
    status = 404 if isinstance(error, NothingFoundError) else 400 if isinstance(error, SettingsError) else _BUSY
    return BrowsePage(
        "Not found" if status == 404 else "Error", [error_note(error.message, error.hint or "")], "", status
    )


def _clean(text: str) -> str:
    """Return the text without what HTML and SQL cannot contain."""
    return text.encode("utf-8", "replace").decode().replace("\0", "").replace("\r\n", "\n")
