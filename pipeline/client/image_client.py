"""HTTP client for the images' hosts, which the service names.

It has no token to send, and shows no URL: the links are signed and give access. Each host has a rate limiter and a
retry policy of its own, so an image host that is slow or down does not slow down the service's calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urljoin

import aiohttp
from yarl import URL

from pipeline.client.allowed_urls import Origin, PrivateAddressError, SafeResolver, origin, resolve_named
from pipeline.client.body_reader import BodyReader
from pipeline.client.calls import ApiCall, CallRunner, RequestStats
from pipeline.client.connector import create_connector
from pipeline.client.errors import (
    AIOHTTP_EXCEPTIONS,
    map_aiohttp_exception,
    prevent_implicit_retry,
)
from pipeline.client.image_downloads import ImageAnswer, ImageDownload, ImageTarget, RefusedImage
from pipeline.client.options import ClientOptions, check_base_url
from pipeline.client.protocol import Response, raise_for_status
from pipeline.client.rate_limiter import RateLimiter
from pipeline.client.retry import RetryPolicy, TimeSource
from pipeline.client.token_redactor import TokenRedactor
from pipeline.errors import ProtocolError

if TYPE_CHECKING:
    from types import TracebackType

_MAX_REDIRECTS: Final = 5
_SPARE_CONNECTIONS: Final = 8
_DOWNLOAD_SECONDS: Final = 3_600.0
_SUBJECT: Final = "an image URL"
_ACCEPT: Final = "image/*, application/pdf;q=0.9"


@dataclass(frozen=True, slots=True)
class ImageLink:
    """A link that may be requested: absolute, and its origin."""

    address: str
    origin: Origin


@dataclass(slots=True)
class _Host:
    """One origin: its limits and its retries."""

    rate_limiter: RateLimiter
    retry_policy: RetryPolicy


class ImageClient:
    """Downloads images. Use: `async with ImageClient(base_url, token, options=...) as client: ...`.

    `token` is only redacted from messages, and recognised in URLs that must not have it.
    """

    def __init__(
        self, base_url: str, token: str, *, options: ClientOptions, time_source: TimeSource | None = None
    ) -> None:
        self._base_url = check_base_url(base_url)
        self._redactor = TokenRedactor(token)
        self._options = options
        self.max_concurrency = options.max_concurrency
        self._time_source = time_source or TimeSource()
        self._own_origin = origin(self._base_url)
        self._resolver = SafeResolver(self._own_origin[1], proxy=options.proxy)
        self._session: aiohttp.ClientSession | None = None
        self._hosts: dict[Origin, _Host] = {}
        self.stats = RequestStats()
        self._body_reader = BodyReader(options, self.stats)

    def __repr__(self) -> str:
        return f"ImageClient({self._base_url!r})"

    async def __aenter__(self) -> Self:
        options = self._options
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            middlewares=(prevent_implicit_retry,),
            connector=create_connector(
                resolver=self._resolver, use_dns_cache=False, limit=options.max_concurrency + _SPARE_CONNECTIONS
            ),
            timeout=aiohttp.ClientTimeout(
                total=_DOWNLOAD_SECONDS,
                sock_connect=min(options.connect_timeout_seconds, options.initial_connect_seconds),
                sock_read=options.attempt_timeout_seconds,
            ),
            headers={"Accept": _ACCEPT, "Accept-Encoding": "identity", "User-Agent": options.user_agent},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def concurrency(self) -> int:
        """The requests that may be in flight now, to the host that allows the most."""
        return max((host.rate_limiter.concurrency for host in self._hosts.values()), default=0)

    def check(self, url: str) -> ImageLink | RefusedImage:
        """Return a link that may be requested, or why it must not be."""
        try:
            return self._check(url)
        except ProtocolError as error:
            return RefusedImage(error.message.rstrip("."))

    async def download(self, link: ImageLink, target: ImageTarget) -> ImageAnswer:
        """Download an image into a file.

        Public hosts are allowed; private addresses only if the service itself has one: else the answer is a refusal,
        as for a redirect that must not be followed. Raises `RetriesExhaustedError`.
        """
        download = ImageDownload(target)
        host = self._host(link.origin)
        self.stats.other += 1
        runner = CallRunner(
            partial(self._send, download, host, link), host.rate_limiter, host.retry_policy, self.stats, self._redactor
        )
        try:
            return await runner.run(ApiCall("GET image", _to_url(link), download.result))
        except ProtocolError as error:
            return RefusedImage(error.message.rstrip("."))

    def _check(self, url: str) -> ImageLink:
        address, target = resolve_named(url, self._base_url, _SUBJECT)
        link = ImageLink(address, target)
        if link.origin != self._own_origin and self._redactor.redact_text(address) != address:
            raise ProtocolError(f"The service named {_SUBJECT} on another host that contains the token.")
        return link

    def _host(self, address: Origin) -> _Host:
        if (host := self._hosts.get(address)) is None:
            options = self._options
            host = self._hosts[address] = _Host(
                RateLimiter(
                    max_concurrency=options.max_concurrency,
                    max_retry_after_seconds=options.max_retry_after_seconds,
                ),
                RetryPolicy(
                    max_attempts=options.max_attempts,
                    total_deadline_seconds=options.total_deadline_seconds,
                    initial_connect_seconds=options.initial_connect_seconds,
                    max_retry_after_seconds=options.max_retry_after_seconds,
                    time_source=self._time_source,
                ),
            )
        return host

    async def _send(self, download: ImageDownload, host: _Host, link: ImageLink, call: ApiCall[Any]) -> Response:
        """Send a request and follow its redirects by hand: each target is checked as the first one."""
        if self._session is None:
            raise RuntimeError("use the client as an asynchronous context")
        url = call.url
        for _ in range(_MAX_REDIRECTS + 1):
            download.reset()
            is_private = False
            try:
                await self._resolver.resolve_service_host()
                self._resolver.check_host(link.origin[1])
                proxy = await self._proxy_for(link.origin)
                async with self._session.get(url, allow_redirects=False, proxy=proxy) as answer:
                    status, headers = answer.status, answer.headers
                    start = await self._body_reader.stream_to(answer, download, call.label) if status == 200 else b""
            except AIOHTTP_EXCEPTIONS as error:
                attempt_error = map_aiohttp_exception(error)
                is_private = isinstance(getattr(error, "os_error", error), PrivateAddressError)
            else:
                host.retry_policy.was_answered = True
                if not 300 <= status < 400:
                    response = Response(status, headers, start)
                    if status in {429, 503}:
                        raise_for_status(response, call.label)
                    return response
                link = self._resolve_redirect(link.address, headers.get("Location"))
                url = _to_url(link)
                continue
            if is_private:
                raise ProtocolError("The service named an image host with a private address.")
            raise attempt_error  # outside of the handler, so that aiohttp's exception is not its context
        raise ProtocolError(f"{call.label}: redirected more than {_MAX_REDIRECTS} times.")

    def _resolve_redirect(self, current: str, location: str | None) -> ImageLink:
        if not location:
            raise ProtocolError("GET image: redirected without an address.")
        try:
            return self._check(urljoin(current, location))
        except ValueError:
            raise ProtocolError("GET image: redirected to an invalid address.") from None

    async def _proxy_for(self, target: Origin) -> str | None:
        """Return the proxy for an origin. The proxy resolves names; private ones are refused here."""
        scheme, host, _ = target
        if self._options.proxy is None or scheme != "https":
            return None
        await self._resolver.check_not_private(host)
        return self._options.proxy


def _to_url(link: ImageLink) -> URL:
    return URL(link.address.partition("#")[0], encoded=True)
