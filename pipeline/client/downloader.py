"""Downloads of what the service names: reports and images, from its own host and from others.

The URLs give access, so none is shown. The session has no token, cookie or referrer; every address and every redirect
is checked before it is requested.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urljoin

import aiohttp
from msgspec import Struct
from yarl import URL

from pipeline.client.allowed_urls import Origin, PrivateAddressError, SafeResolver, origin, resolve_named_url
from pipeline.client.errors import AIOHTTP_EXCEPTIONS, AttemptError, map_aiohttp_exception, prevent_implicit_retry
from pipeline.client.protocol import Response, raise_for_status
from pipeline.errors import AuthenticationError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from pipeline.client.body_reader import BodyReader, Download
    from pipeline.client.calls import ApiCall, ClientOptions
    from pipeline.client.token_redactor import TokenRedactor

_START: Final = b"%PDF"
_HEAD_BYTES: Final = 1_024  # a PDF begins within these, as for viewers: some services send a warning first
_END: Final = b"%%EOF"
_TAIL_BYTES: Final = 2_048  # the end mark is within these; some writers append blanks or a signature
MAX_REDIRECTS: Final = 5
SPARE_CONNECTIONS: Final = 8
_DOWNLOAD_SECONDS: Final = 3_600.0


class DownloadedReport(Struct, frozen=True):
    """A complete report: its size in bytes and its SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


class ReportNotReady(Struct, frozen=True):
    """The report does not exist yet. `reason` is the service's answer in short."""

    reason: str


class PdfDownload:
    """Writes the bytes of one download into a seekable file, attempt by attempt."""

    def __init__(self, file: BinaryIO, *, max_bytes: int, on_part: Callable[[], object]) -> None:
        self._file = file
        self._on_part = on_part
        self._max_bytes = max_bytes
        self._start = file.tell()
        self.reset()

    def reset(self) -> None:
        """Start an attempt: remove what an earlier one wrote."""
        self._file.seek(self._start)
        self._file.truncate()
        self._hash = hashlib.sha256()
        self._size = 0
        self._head = self._tail = b""

    def write(self, part: bytes) -> bool:
        """Write a part of the body of a 200. Return False if it is not a PDF: the rest is not needed."""
        if len(self._head) < _HEAD_BYTES:
            self._head += part[: _HEAD_BYTES - len(self._head)]
            if len(self._head) == _HEAD_BYTES and _START not in self._head:
                return False
        self._on_part()
        self._size += len(part)
        self.check_size(self._size)
        self._hash.update(part)
        self._tail = (self._tail + part)[-_TAIL_BYTES:]
        self._file.write(part)
        return True

    def check_size(self, size: int) -> None:
        """Raise `AttemptError` for a body above the limit; `size` is its size, compressed or not."""
        if size > self._max_bytes:
            raise AttemptError("size", f"a report of more than {self._max_bytes:,} bytes", retryable=False)

    def result(self, response: Response) -> DownloadedReport | ReportNotReady:
        """Return the result of the download. Raises `AttemptError` for an incomplete PDF."""
        status = response.status
        if status in {202, 204, 403, 404, 409, 410, 425}:
            return ReportNotReady(f"HTTP {status}")
        if status >= 500 or status == 408:
            raise AttemptError(f"status-{status}", f"HTTP {status}", status=status)
        if status != 200:
            raise ProtocolError(f"GET report: HTTP {status}.")
        if _START not in self._head:
            self.reset()
            return ReportNotReady("no PDF" if response.body else "empty body")
        if _END not in self._tail:
            raise AttemptError("cut", "a PDF without its end", status=status)
        self._file.flush()
        return DownloadedReport(self._size, self._hash.hexdigest())


class Link(Struct, frozen=True):
    """A link that may be requested: absolute, and its origin."""

    address: str
    origin: Origin


class Credentials(Struct, frozen=True):
    """The token in a query and as headers, for the service's own origin once that has answered 401."""

    query: str
    headers: dict[str, str]


class Downloader:
    """Downloads from one session. Use `open` and `close`.

    `subject` is "a report URL" or similar, for messages. Without `credentials` the token is never sent; with them a
    redirect to another origin is refused.
    """

    def __init__(
        self,
        base_url: str,
        options: ClientOptions,
        redactor: TokenRedactor,
        body_reader: BodyReader,
        *,
        subject: str,
        accept: str,
        credentials: Credentials | None = None,
    ) -> None:
        self._base_url = base_url
        self._options = options
        self._redactor = redactor
        self._body_reader = body_reader
        self._subject = subject
        self._accept = accept
        self._credentials = credentials
        self._needs_token = False  # the service wants the token for its reports
        self._own_origin = origin(base_url)
        self._resolver = SafeResolver(self._own_origin[1], proxy=options.proxy)
        self.session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Open the session. It keeps no cookies, decodes nothing and repeats nothing by itself."""
        options, resolver = self._options, cast("aiohttp.abc.AbstractResolver", self._resolver)
        self.session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            middlewares=(prevent_implicit_retry,),
            connector=aiohttp.TCPConnector(
                resolver=resolver, use_dns_cache=False, limit=options.max_concurrency + SPARE_CONNECTIONS
            ),
            timeout=aiohttp.ClientTimeout(
                total=_DOWNLOAD_SECONDS,
                sock_connect=options.connect_timeout_seconds,
                sock_read=options.attempt_timeout_seconds,
            ),
            headers={"User-Agent": options.user_agent, "Accept": self._accept, "Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        """Close the session."""
        if self.session is not None:
            await self.session.close()

    def check(self, url: str) -> Link:
        """Return a link that may be requested. Raises `ProtocolError` for one that must not be."""
        link = Link(*resolve_named_url(url, self._base_url, self._subject))
        if link.origin != self._own_origin and self._redactor.redact_text(link.address) != link.address:
            raise ProtocolError(f"The service named {self._subject} on another host that contains the token.")
        return link

    async def send(self, download: Download, link: Link, call: ApiCall[Any]) -> Response:
        """Request a link, follow its redirects, and write the body of a 200 to `download`.

        Public hosts are allowed; private addresses only if the service itself has one. Raises `AttemptError`,
        `ProtocolError`, and `AuthenticationError` for a 401 with the token.
        """
        if self.session is None:
            raise RuntimeError("use the client as an asynchronous context: async with Client(...)")
        for _ in range(MAX_REDIRECTS + 1):
            download.reset()
            try:
                await self._resolver.resolve_service_host()
                self._resolver.check_host(link.origin[1])
                proxy = await self._proxy_for(link.origin)
                has_token, (url, secrets) = self._needs_token, self._authorize(link)
                # Of a head that arrives byte by byte no other limit ends the wait.
                async with asyncio.timeout(self._options.attempt_timeout_seconds):
                    head = await self.session.get(url, allow_redirects=False, proxy=proxy, headers=secrets)
                async with head as answer:
                    status, headers = answer.status, answer.headers
                    start = await self._body_reader.stream_to(answer, download, call.label) if status == 200 else b""
            except AIOHTTP_EXCEPTIONS as error:
                attempt_error = map_aiohttp_exception(error)
                is_private = isinstance(getattr(error, "os_error", error), PrivateAddressError)
            else:
                if status == 401 and self._credentials is not None:
                    self._require_token(link, call.label, was_sent=has_token)
                elif 300 <= status < 400:
                    link = self._resolve_redirect(link, headers.get("Location"), call.label)
                else:
                    response = Response(status, headers, start)
                    if status in {429, 503}:
                        raise_for_status(response, call.label)
                    return response
                continue
            if is_private:
                raise ProtocolError(f"The service named {self._subject} with a private address.")
            raise attempt_error  # outside of the handler, so that aiohttp's exception is not its context
        raise ProtocolError(f"{call.label}: redirected more than {MAX_REDIRECTS} times.")

    def _resolve_redirect(self, link: Link, location: str | None, label: str) -> Link:
        if not location:
            raise ProtocolError(f"{label}: redirected without an address.")
        try:
            target = self.check(urljoin(link.address, location))
        except ValueError:
            raise ProtocolError(f"{label}: redirected to an invalid address.") from None
        if self._credentials is not None and target.origin != link.origin:
            raise ProtocolError(f"{label}: redirected to another host.")
        return target

    def _require_token(self, link: Link, label: str, *, was_sent: bool) -> None:
        """Send the token with downloads from now on. Raises if it was sent, or if it must not be sent to this host."""
        if link.origin != self._own_origin:
            raise ProtocolError(f"{label}: another host wants credentials (HTTP 401); it never gets the token.")
        if was_sent:
            raise AuthenticationError(f"{label}: HTTP 401, without the token and with it.")
        self._needs_token = True

    def _authorize(self, link: Link) -> tuple[URL, dict[str, str]]:
        """Return URL and headers of a request: with the token on the service's own origin, if that needs it."""
        target = link.address.partition("#")[0]
        if self._credentials is None or not self._needs_token or link.origin != self._own_origin:
            return URL(target, encoded=True), {}
        if self._credentials.query and "token=" not in target:
            target += ("&" if "?" in target else "?") + self._credentials.query
        return URL(target, encoded=True), self._credentials.headers

    async def _proxy_for(self, target: Origin) -> str | None:
        """Return the proxy for an origin. The proxy resolves names; private ones are refused here."""
        scheme, host, _ = target
        if self._options.proxy is None or scheme != "https":
            return None
        await self._resolver.check_not_private(host)
        return self._options.proxy
