"""The service's client: the one module that asks by the HTTP library.

Nothing of the library leaves it: its exceptions and URLs hold the token, so every failure is translated
(`translating`) and raised `from None`. What an answer means is `protocol`'s; how fast is `pace`'s; how often
again `retry`'s.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, cast
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from pipeline.errors import ContractBroken, TokenRefused
from pipeline.service.address import API, Mask, read_base_url, read_token
from pipeline.service.asking import Asker, Call, RequestCounts
from pipeline.service.clock import ServiceClock
from pipeline.service.decoding import decode_body, too_large
from pipeline.service.faults import Fault
from pipeline.service.hosts import (
    leads_to_login,
    literal_address,
    may_ask,
    origin,
    report_address,
    same_origin_target,
)
from pipeline.service.options import ClientOptions
from pipeline.service.pace import Pacer
from pipeline.service.protocol import (
    Detail,
    Gone,
    ListPage,
    Reply,
    ReportOrder,
    Share,
    read_detail,
    read_list,
    read_report_order,
    read_share,
    refuse_status,
)
from pipeline.service.reports import NotReady, ReportFile, ReportSink
from pipeline.service.resolving import GuardedResolver, PrivateAddress
from pipeline.service.retry import RetryPolicy, Seams
from pipeline.service.translating import LIBRARY, never_twice, translated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType
    from typing import BinaryIO

    from pydantic import SecretStr

    from schemas.requests import FileQuery, ReportRequest, ShareRequest

_REDIRECTS: Final = 5
_ERROR_BODY: Final = 65_536
_NOT_OPEN: Final = "use the client as an asynchronous context: async with Client(...)"
_DOWNLOAD_SECONDS: Final = 3_600.0
GIB: Final = 1024**3
_GRACE: Final = 5.0  # seconds before the minimum rate is demanded
_encode_json: Final = msgspec.json.Encoder().encode


class Client:
    """Asks the service. `async with Client(base_url, token) as client: ...`.

    Raises `SettingsError`, `TokenRefused`, `ContractBroken`, `RequestFailed` (a `ServiceUnavailable`), and
    for shares and report orders `OutcomeUnknown` and `RequestRefused`.
    """

    def __init__(
        self,
        base_url: str,
        token: str | SecretStr,
        *,
        options: ClientOptions | None = None,
        pacer: Pacer | None = None,
        seams: Seams | None = None,
    ) -> None:
        self.options = options = options or ClientOptions()
        self._base = read_base_url(base_url)
        token = read_token(token if isinstance(token, str) else token.get_secret_value())
        self._mask = Mask(token)
        in_query = options.token_in == "query"  # noqa: S105 - the place, not the token
        self._query = f"token={quote(token, safe='')}" if in_query else ""
        self._headers = {} if in_query else {"token": token}
        self.pacer = pacer or Pacer(
            max_concurrency=options.max_concurrency,
            max_rate=options.max_requests_per_second,
            retry_after_cap=options.retry_after_cap,
        )
        self.counts = RequestCounts()
        self.clock = ServiceClock()
        self._policy = RetryPolicy(
            attempts=options.attempts,
            max_seconds=options.max_seconds,
            first_contact_seconds=options.first_contact_seconds,
            retry_after_cap=options.retry_after_cap,
            seams=seams,
        )
        self._asker = Asker(self._send, pacer=self.pacer, policy=self._policy, counts=self.counts, mask=self._mask)
        self._session: aiohttp.ClientSession | None = None
        self._outside: aiohttp.ClientSession | None = None
        self._resolver = GuardedResolver(origin(self._base)[1], proxy=options.proxy)
        self._files = f"{self._base}{API}/files"
        self._proxy = options.proxy if origin(self._base)[0] == "https" else None
        self._detail_tail = f"?{self._query}" if self._query else ""

    def __repr__(self) -> str:
        return f"Client({self._base!r}, token=***)"

    async def __aenter__(self) -> Self:
        options = self.options
        connect = min(options.connect_timeout, options.first_contact_seconds)
        session = partial(
            aiohttp.ClientSession,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            middlewares=(never_twice,),
        )
        self._session = session(
            proxy=self._proxy,
            connector=aiohttp.TCPConnector(limit=options.max_concurrency + 8, ttl_dns_cache=60),
            timeout=aiohttp.ClientTimeout(total=options.total_timeout, sock_connect=connect),
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "gzip, deflate",
                "User-Agent": options.user_agent,
                **self._headers,
            },
        )
        self._outside = session(
            connector=aiohttp.TCPConnector(resolver=cast("Any", self._resolver), use_dns_cache=False),
            timeout=aiohttp.ClientTimeout(
                total=_DOWNLOAD_SECONDS, sock_connect=connect, sock_read=options.total_timeout
            ),
            headers={
                "Accept": "application/pdf",
                "Accept-Encoding": "identity",
                "User-Agent": options.user_agent,
            },
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in (self._session, self._outside):
            if session is not None:
                await session.close()

    async def list(self, query: FileQuery, *, page: int = 1) -> ListPage:
        """One page of `GET /files`."""
        self.counts.list += 1
        given = query.parameters()
        if page != 1:
            given.append(("page", str(page)))
        return await self._asker.ask(Call("GET /files", self._url(self._files, given), partial(read_list, asked=page)))

    async def pages(self, query: FileQuery) -> AsyncIterator[ListPage]:
        """All pages, one after the other.

        Beware: a list that is paged while files change **loses files**, for ever. For a complete copy list
        windows of update time that fit in one page each; this is for looking around.
        """
        page = 1
        seen: set[int] = set()
        while True:
            found = await self.list(query, page=page)
            yield found
            if found.more is False or (found.more is None and len(found.items) < query.page_size):
                return
            print_of_it = hash(tuple(item.raw for item in found.items))
            if not found.items or print_of_it in seen:
                raise ContractBroken(f"GET /files: page {page} is empty or a repetition, yet tells of more")
            seen.add(print_of_it)
            page += 1

    async def get(self, file_id: int, *, lang: str | None = None) -> Detail | Gone:
        """One file by `GET /files/{id}`, or that the service has none of that id. `lang` is for its texts."""
        self.counts.detail += 1
        if lang is None:
            url = URL(f"{self._files}/{file_id}{self._detail_tail}", encoded=True)
        else:
            url = self._url(f"{self._files}/{file_id}", [("lang", lang)])
        return await self._asker.ask(Call(f"GET /files/{file_id}", url, partial(read_detail, file_id=file_id)))

    async def share(self, request: ShareRequest) -> Share:
        """Create a share. Never repeated once it may have reached the service: `OutcomeUnknown` instead."""
        self.counts.share += 1
        url = self._url(f"{self._base}{API}/share", request.parameters())
        return await self._asker.ask(Call("GET /share", url, read_share, repeats=False))

    async def order_report(self, request: ReportRequest) -> ReportOrder:
        """Order a report. Never repeated once it may have reached the service: `OutcomeUnknown` instead."""
        self.counts.report += 1
        url = self._url(f"{self._base}{API}/reports", [])
        body = _encode_json(request.body())
        return await self._asker.ask(
            Call("POST /reports", url, read_report_order, method="POST", body=body, repeats=False)
        )

    async def fetch_report(self, url: str, into: BinaryIO, *, max_bytes: int = GIB) -> ReportFile | NotReady:
        """Download a report into a seekable file, or tell that it is not ready: one poll.

        The URL is the service's word, so nothing of ours goes there: no token, no cookie, no referrer. It may
        lie on any public host; private ones are refused unless the service itself is there.
        """
        self.counts.other += 1
        sink = ReportSink(into, cap=max_bytes)
        target = self._report_target(url)
        asker = Asker(
            partial(self._download, sink),
            pacer=self.pacer,
            policy=self._policy,
            counts=self.counts,
            mask=self._mask,
        )
        return await asker.ask(Call("GET report", URL(target, encoded=True), sink.judge))

    def _report_target(self, url: str) -> str:
        target = report_address(url, self._base)
        host = origin(target)[1]
        if (literal := literal_address(host)) is not None and not may_ask(literal, self._resolver.service):
            raise ContractBroken("the service named a report address that must not be asked: a private one")
        if self._mask.text(target) != target and origin(target) != origin(self._base):
            raise ContractBroken("the service named a report address elsewhere with our token in it")
        return target

    async def _download(self, sink: ReportSink, call: Call[Any]) -> Reply:
        """Like `_send`, but into the sink, from a session that knows no secret."""
        if self._outside is None:
            raise RuntimeError(_NOT_OPEN)
        target = str(call.url)
        for _ in range(_REDIRECTS + 1):
            sink.begin()
            try:
                await self._resolver.learn()
                proxy = await self._proxy_to(target)
                request = partial(self._outside.get, allow_redirects=False, proxy=proxy)
                async with request(URL(target, encoded=True)) as response:
                    status, headers = response.status, response.headers
                    start = await self._pour(response, sink) if status == 200 else b""
            except LIBRARY as error:
                fault = translated(error)
                private = isinstance(getattr(error, "os_error", error), PrivateAddress)
            else:
                if not 300 <= status < 400:
                    reply = Reply(status, headers, start)
                    if status in {429, 503}:
                        refuse_status(reply, call.what)
                    return reply
                moved = same_origin_target(target, target, headers.get("Location"))
                if moved is None:
                    raise ContractBroken("GET report: redirected to another host")
                target = self._report_target(moved)
                continue
            if private:
                raise ContractBroken("the service named a report host at a private address")
            raise fault
        raise ContractBroken(f"GET report: redirected more than {_REDIRECTS} times")

    async def _proxy_to(self, target: str) -> str | None:
        """The proxy on the way to a report. Names are the proxy's to resolve; private ones are refused here."""
        scheme, host, _ = origin(target)
        if self._proxy is None or scheme != "https":
            return None
        await self._resolver.refuse_private(host)
        return self._proxy

    async def _pour(self, response: aiohttp.ClientResponse, sink: ReportSink) -> bytes:
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Fault("encoding", "a Content-Encoding that was not asked for")
        size, begun, start = 0, time.monotonic(), b""
        while part := await response.content.readany():
            size += len(part)
            self.counts.bytes += len(part)
            start = start or part[:16]
            if not sink.take(part):
                break
            self._demand_rate(size, begun)
        return start

    def _demand_rate(self, size: int, begun: float) -> None:
        taken = time.monotonic() - begun
        if taken > _GRACE and size < taken * self.options.min_bytes_per_second:
            raise Fault("slow", f"fewer than {self.options.min_bytes_per_second} bytes a second")

    def _url(self, address: str, given: Any) -> URL:
        query = urlencode(given, quote_via=quote)
        return URL(f"{address}?{'&'.join(part for part in (query, self._query) if part)}", encoded=True)

    async def _send(self, call: Call[Any]) -> Reply:
        """Send, follow redirects within the service, and give the whole reply, without the token in it."""
        if self._session is None:
            raise RuntimeError(_NOT_OPEN)
        url = call.url
        for _ in range(_REDIRECTS + 1):
            try:
                async with self._session.request(
                    call.method,
                    url,
                    data=call.body,
                    headers=_JSON if call.body else None,
                    allow_redirects=False,
                ) as response:
                    status, headers = response.status, response.headers
                    body = await self._read(response)
            except LIBRARY as error:
                fault = translated(error)
            else:
                self._policy.contacted = True
                self.clock.observe(headers.get("Date"))
                if not 300 <= status < 400:
                    body = self._mask.body(body, error=status >= 300)
                    return Reply(status, headers, body)
                url = self._redirect(call, status, str(url), headers.get("Location"))
                continue
            raise fault  # out here: the library's exception must not be its context
        raise ContractBroken(f"{call.what}: redirected more than {_REDIRECTS} times")

    def _redirect(self, call: Call[Any], status: int, current: str, location: str | None) -> URL:
        target = same_origin_target(self._base, current, location)
        if status not in {301, 302, 303, 307, 308} or target is None or not call.repeats:
            raise ContractBroken(
                f"{call.what}: redirected (HTTP {status}), and not to the service itself",
                remedy="Check base_url: the service may have moved, or needs https.",
            )
        if leads_to_login(target):
            raise TokenRefused(f"{call.what}: redirected to a sign-in page")
        target = target.partition("#")[0]
        if self._query and "token=" not in target:
            target += ("&" if "?" in target else "?") + self._query
        return URL(target, encoded=True)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The body, decoded, within its size and not slower than the minimum rate."""
        headers, content = response.headers, response.content
        cap = self.options.max_body
        good = response.status < 300
        if good and (response.content_length or 0) > cap:
            raise too_large(cap)
        parts: list[bytes] = []
        size, begun = 0, time.monotonic()
        while part := await content.readany():
            parts.append(part)
            size += len(part)
            if size > (cap if good else _ERROR_BODY):
                if good:
                    raise too_large(cap)
                break
            self._demand_rate(size, begun)
        self.counts.bytes += size
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if good and not body and response.status == 200 and not _framed(headers):
            raise Fault("cut", "an answer that ended before its body", status=response.status)
        encoding = headers.get("Content-Encoding")
        if not encoding:
            return body
        try:
            return decode_body(body, ",".join(headers.getall("Content-Encoding")), cap=cap)
        except Fault:
            if good:
                raise
            return b""  # the status says enough


_JSON: Final = {"Content-Type": "application/json"}


def _framed(headers: Any) -> bool:
    return "Content-Length" in headers or "chunked" in headers.get("Transfer-Encoding", "").lower()
