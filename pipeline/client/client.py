"""HTTP client for the service.

No aiohttp exception or URL leaves this package, because both can contain the token: every failure is mapped (`errors`)
and raised `from None`. `protocol` parses answers, `rate_limiter` sets the speed, `calls` repeats.
"""

from __future__ import annotations

import resource
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from msgspec.structs import replace

from pipeline import __version__
from pipeline.client.allowed_urls import origin
from pipeline.client.body_reader import BodyReader
from pipeline.client.calls import GIB, MAX_ATTEMPTS, ApiCall, CallRunner, ClientOptions, RequestStats
from pipeline.client.clock import ServiceClock
from pipeline.client.connections import ServiceConnections
from pipeline.client.downloader import (
    SPARE_CONNECTIONS,
    Credentials,
    DownloadedReport,
    Downloader,
    PdfDownload,
    ReportNotReady,
)
from pipeline.client.errors import AIOHTTP_EXCEPTIONS, map_aiohttp_exception
from pipeline.client.image_client import ImageClient
from pipeline.client.protocol import (
    Detail,
    ListPage,
    NotFound,
    ReportOrder,
    Response,
    Share,
    parse_detail,
    parse_list,
    parse_report_order,
    parse_share,
)
from pipeline.client.rate_limiter import LearnedLimits
from pipeline.client.token_redactor import TokenRedactor
from pipeline.errors import ProtocolError
from pipeline.output.logs import log
from pipeline.settings.urls import API_PREFIX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from typing import BinaryIO

    from pipeline.client.calls import TimeSource
    from pipeline.client.rate_limiter import RateLimiter
    from pipeline.settings.settings import Settings
    from schemas.file_query import FileQuery
    from schemas.requests import ReportRequest, ShareRequest

_DNS_CACHE_SECONDS: Final = 60
_MAX_ATTEMPT_TIMEOUT_SECONDS: Final = 60.0
_FILES_OF_THE_LAKE: Final = 128  # open files that are no connections: 22 measured in a sync, and parts while published
_MIN_CONNECTIONS: Final = 8
_MAX_IMAGE_CONCURRENCY: Final = 64  # of one image host
_MAX_IMAGE_HOST_SILENCE_SECONDS: Final = 10.0  # one that restarts is back; one that is down ends the run
_NOT_OPEN: Final = "use the client as an asynchronous context: async with Client(...)"
_encode_json: Final = msgspec.json.Encoder().encode


class Client:
    """Calls the service. Use: `async with Client(base_url, token) as client: ...`.

    `base_url` and `token` are those of valid settings. Raises `AuthenticationError`, `ProtocolError`,
    `RetriesExhaustedError` (a `ServiceUnavailableError`), and for shares and report orders `OutcomeUnknownError` and
    `RequestRejectedError`.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        options: ClientOptions | None = None,
        rate_limiter: RateLimiter | None = None,
        learned: LearnedLimits | None = None,
        time_source: TimeSource | None = None,
    ) -> None:
        self.options = options = options or ClientOptions()
        self._base_url = base_url
        self._redactor = TokenRedactor(token)
        is_in_query = options.token_location == "query"  # noqa: S105 - a location, not a token
        self._token_query = f"token={quote(token, safe='')}" if is_in_query else ""
        self._token_headers = {} if is_in_query else {"token": token}
        self.stats = RequestStats()
        self._body_reader = BodyReader(options, self.stats)
        self.clock = ServiceClock()
        self.has_announced_next = False  # a list has had a next page: its counts and links mean something
        self.has_linked_next = False  # by a link, whatever the counts are
        self._runner = CallRunner.create(
            self._send, options, self.stats, self._redactor, learned=learned, time_source=time_source
        )
        if rate_limiter is not None:
            self._runner = replace(self._runner, rate_limiter=rate_limiter)
        self.rate_limiter = self._runner.rate_limiter
        self._report_hosts = {origin(base_url): self._runner}  # a pause of another host holds back no call here
        self._connections: ServiceConnections | None = None
        self._downloader = Downloader(
            self._base_url,
            options,
            self._redactor,
            self._body_reader,
            subject="a report URL",
            accept="application/pdf",
            credentials=Credentials(self._token_query, self._token_headers),
        )
        self._files_url = f"{self._base_url}{API_PREFIX}/files"
        self._proxy = options.proxy if origin(self._base_url)[0] == "https" else None
        self._detail_query = f"?{self._token_query}" if self._token_query else ""

    def __repr__(self) -> str:
        return f"Client({self._base_url!r}, token=***)"

    async def __aenter__(self) -> Self:
        options = self.options
        self._connections = ServiceConnections(
            self._base_url,
            aiohttp.TCPConnector(limit=options.max_concurrency + SPARE_CONNECTIONS, ttl_dns_cache=_DNS_CACHE_SECONDS),
            headers={
                "User-Agent": options.user_agent,
                "Accept": "application/json",
                "Accept-Encoding": "gzip",
                **self._token_headers,
            },
            connect_seconds=options.connect_timeout_seconds,
            proxy=self._proxy,
        )
        self._downloader.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._downloader.close()
        if self._connections is not None:
            await self._connections.close()

    async def list_files(self, query: FileQuery, *, page: int = 1) -> ListPage:
        """Return one page of `GET /files`."""
        self.stats.list += 1
        parameters = query.parameters()
        if page != 1:
            parameters.append(("page", str(page)))
        url = self._build_url(self._files_url, parameters)
        result = await self._runner.run(ApiCall("GET /files", url, partial(parse_list, requested_page=page)))
        self.has_announced_next |= bool(result.has_next)
        self.has_linked_next |= bool(result.has_next_link)
        return result

    async def iter_pages(self, query: FileQuery) -> AsyncGenerator[ListPage, None]:
        """Yield all pages, one after the other, each file once.

        Beware: a list that is paged while files change **loses files**. For a complete copy, list windows of update
        time that fit in one page each; this is for a quick look. A service without any hint at a next page can send
        shorter pages than requested: it is asked until a page is empty or a repetition. Raises `ProtocolError` for such
        a page that announces a next one.
        """
        number = 1
        page_hashes: set[int] = set()
        keys: set[tuple[int | None, int | None] | bytes] = set()
        while True:
            page = await self.list_files(query, page=number)
            page_hash = hash(tuple(item.raw for item in page.items))
            is_new = bool(page.items) and page_hash not in page_hashes
            if page.has_next is None and number > 1 and not is_new:
                return
            items = {(item.id, item.instance_id) if item.id is not None else item.raw: item for item in page.items}
            yield replace(page, items=tuple(item for key, item in items.items() if key not in keys))
            keys.update(items)
            if page.has_next is False or (page.has_next is None and not page.items):
                return
            if not is_new:
                raise ProtocolError(f"GET /files: page {number} is empty or a repetition, but announces a next page.")
            page_hashes.add(page_hash)
            number += 1

    async def get_file(self, file_id: int, *, lang: str | None = None) -> Detail | NotFound:
        """Return one file by `GET /files/{id}`, or `NotFound`. `lang` selects the language of its texts."""
        self.stats.detail += 1
        if lang is None:
            url = f"{self._files_url}/{file_id}{self._detail_query}"
        else:
            url = self._build_url(f"{self._files_url}/{file_id}", [("lang", lang)])
        return await self._runner.run(ApiCall(f"GET /files/{file_id}", url, partial(parse_detail, file_id=file_id)))

    async def create_share(self, request: ShareRequest) -> Share:
        """Create a share. A request that may have reached the service is never repeated: `OutcomeUnknownError`."""
        self.stats.other += 1
        url = self._build_url(f"{self._base_url}{API_PREFIX}/share", request.parameters())
        return await self._runner.run(ApiCall("GET /share", url, parse_share, is_idempotent=False))

    async def order_report(self, request: ReportRequest, *, timeout_seconds: float | None = None) -> ReportOrder:
        """Order a report. A request that may have reached the service is never repeated: `OutcomeUnknownError`.

        `timeout_seconds` is for the answer: that to a synchronous order comes when the report is made.
        """
        self.stats.other += 1
        call: ApiCall[ReportOrder] = ApiCall(
            "POST /reports",
            self._build_url(f"{self._base_url}{API_PREFIX}/reports", []),
            parse_report_order,
            method="POST",
            body=_encode_json(request.body()),
            is_idempotent=False,
            timeout_seconds=timeout_seconds,
        )
        return await self._runner.run(call)

    async def download_report(
        self, url: str, file: BinaryIO, *, max_bytes: int = GIB, on_part: Callable[[], object] = lambda: None
    ) -> DownloadedReport | ReportNotReady:
        """Download a report into a seekable file, or return that it is not ready. This is one poll.

        `on_part` is called when bytes of it arrive.

        The URL comes from the service, so no token, cookie or referrer is sent to it. Only the service's own origin
        gets the token, once it has answered 401. Public hosts are allowed; private addresses only if the service itself
        has one. Raises `AuthenticationError` for a 401 with the token, `ProtocolError` for one from another origin.
        """
        self.stats.other += 1
        download = PdfDownload(file, max_bytes=max_bytes, on_part=on_part)
        link = self._downloader.check(url)
        send = partial(self._downloader.send, download, link)
        if (runner := self._report_hosts.get(link.origin)) is None:
            seams = self._runner.retry_policy.time_source
            runner = CallRunner.create(send, self.options, self.stats, self._redactor, time_source=seams)
            self._report_hosts[link.origin] = runner
        return await replace(runner, send=send).run(ApiCall("GET report", link.address, download.result))

    def _build_url(self, url: str, parameters: list[tuple[str, str]]) -> str:
        query = "&".join(filter(None, (urlencode(parameters, quote_via=quote), self._token_query)))
        return f"{url}?{query}" if query else url

    async def _send(self, call: ApiCall[Any]) -> Response:
        """Send a request, and return the response without the token. No redirect is followed."""
        if self._connections is None:
            raise RuntimeError(_NOT_OPEN)
        seconds = min(call.timeout_seconds or self.options.attempt_timeout_seconds, call.patience_seconds)
        try:
            status, headers, body = await self._connections.exchange(
                call.method, call.url, call.body, self._body_reader.read_body, timeout_seconds=seconds
            )
        except AIOHTTP_EXCEPTIONS as error:
            attempt_error = map_aiohttp_exception(error)
        else:
            self.clock.observe(headers.get("Date"))
            return Response(status, headers, self._redactor.redact_body(body, error=status >= 300))
        raise attempt_error  # outside of the handler, so that aiohttp's exception is not its context


def create_client(
    settings: Settings, token: str, *, learned: dict[str, Any] | None = None, max_attempts: int | None = None
) -> Client:
    """Return the client for `settings`. `learned` are the stored limits of an earlier run."""
    options = replace(
        _create_options(settings, settings.max_concurrency),
        max_requests_per_second=settings.max_requests_per_second,
        max_attempts=max_attempts or MAX_ATTEMPTS,
        token_location=settings.token_location,
    )
    limits = LearnedLimits(**learned) if learned else None
    return Client(str(settings.base_url), token, options=options, learned=limits)


def create_image_client(settings: Settings, token: str) -> ImageClient:
    """Return the client for the images' hosts. It never sends `token`."""
    options = _create_options(settings, _MAX_IMAGE_CONCURRENCY)
    options = replace(options, max_silence_seconds=_MAX_IMAGE_HOST_SILENCE_SECONDS)
    return ImageClient(str(settings.base_url), token, options=options)


def _create_options(settings: Settings, max_concurrency: int) -> ClientOptions:
    return ClientOptions(
        max_concurrency=_limit_to_open_files(max_concurrency),
        max_attempts=MAX_ATTEMPTS,
        total_deadline_seconds=settings.request_timeout_seconds,
        attempt_timeout_seconds=min(_MAX_ATTEMPT_TIMEOUT_SECONDS, settings.request_timeout_seconds),
        proxy=settings.proxy,
        user_agent=f"scanlake/{__version__}",
    )


def _limit_to_open_files(max_concurrency: int) -> int:
    """Return how many requests may be in flight at most: each is a connection, and each connection an open file."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = max(_MIN_CONNECTIONS, open_files - _FILES_OF_THE_LAKE)
    if open_files == resource.RLIM_INFINITY or max_concurrency <= possible:
        return max_concurrency
    log.info("concurrency.limited", max_concurrency=max_concurrency, limit=possible, open_files=open_files)
    return possible
