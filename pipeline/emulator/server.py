"""HTTP server of the emulator: sockets, routes, token checks and request counting."""

import asyncio
import contextlib
import random
from typing import Any, Self
from urllib.parse import parse_qsl, unquote

from aiohttp import web
from multidict import MultiDict

from pipeline.emulator import control, paging, search, shares
from pipeline.emulator.http import (
    DateHeaderCache,
    Ending,
    RawResponse,
    Response,
    find_credentials,
    gzip_response,
    render_head,
    to_html_response,
    to_json_response,
)
from pipeline.emulator.service import DEFAULT_TOKEN, EmulatedService, LoggedRequest

__all__ = ["DEFAULT_TOKEN", "Emulator"]


class Emulator(EmulatedService):
    """The service on 127.0.0.1, as a context manager for the event loop of a test.

    A client needs `base_url` and `token`. Entering raises OSError if the port is taken.
    """

    def __init__(
        self, files: int = 500, seed: int = 0, *, host: str = "127.0.0.1", port: int = 0, **options: Any
    ) -> None:
        super().__init__(files, seed, **options)
        self.host = host
        self.port = port
        self.other_port = 0
        self._rng = random.Random(f"server:{self.plan.seed}")
        self._date = DateHeaderCache()
        self._runners: list[web.ServerRunner] = []
        self._closing = asyncio.Event()

    @property
    def base_url(self) -> str:
        """Address of the service, without a path."""
        return f"http://{self.host}:{self.port}"

    @property
    def other_url(self) -> str:
        """Another origin of the same process, which must never receive the token; see `strays`."""
        return f"http://{self.host}:{self.other_port}"

    async def __aenter__(self) -> Self:
        self.other_port = await self._listen(self._handle_other_origin, 0)
        if self.images is not None:
            # Rendered links show the origin, so it must be known first.
            port = await self._listen(self.images.handle, self.images.options.port)
            self.images.url = f"http://{self.host}:{port}"
            self.images.faults.other_origin = self.other_url
            self.documents.set_image_host(self.images.url, self.images.sign)
        if self._prerenders:
            self.documents.prerender()
        self.port = await self._listen(self._handle, self.port)
        self.faults.other_origin = self.other_url
        self.set_churn(self.churn_rate)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        if self.images is not None:
            self.images.close()
        if self._churn_task is not None:
            self._churn_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._churn_task
        for runner in self._runners:
            await runner.cleanup()

    async def _listen(self, handler: Any, port: int) -> int:
        # Faults leave connections in every state; a stalled handler ends when its client disconnects.
        server = web.Server(handler, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=0.2)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, self.host, port, backlog=2048).start()
        return int(runner.addresses[0][1])

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle one request; all requests except control are counted and may get a fault."""
        raw_path = request.raw_path
        path, _, query = raw_path.partition("?")
        if path.startswith(control.PREFIX):
            return await control.handle_request(self, request, path, dict(parse_qsl(query)))
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        self.requests += 1
        endpoint = _classify_path(path)
        status = 0
        if self.on_request is not None:
            self.on_request(endpoint)
        try:
            if self.faults.quiet:
                response, endpoint = await self._respond(request, path, query, endpoint)
                reply: web.StreamResponse = self._to_raw_response(request, response)
            else:
                reply, endpoint = await self._handle_with_faults(request, path, query, endpoint)
            status = reply.status
        finally:
            self.in_flight -= 1
            self.counts[endpoint] += 1
            self.statuses[status] += 1
            self.log.append(LoggedRequest(self.requests, request.method, raw_path, request.headers, endpoint, status))
        return reply

    async def _handle_with_faults(
        self, request: web.BaseRequest, path: str, query: str, endpoint: str
    ) -> tuple[web.StreamResponse, str]:
        """Handle one request while faults are configured."""
        kind = self.faults.pick_fault(path)
        delay = self.faults.pick_delay()
        if delay:
            await asyncio.sleep(delay)
        if kind is None:
            response, endpoint = await self._respond(request, path, query, endpoint)
            return self._to_raw_response(request, response), endpoint
        self.injected_faults[kind] += 1
        if kind == "refuse":
            return RawResponse(b"", ending="abort"), endpoint
        replacement = self.faults.replace_response(kind)
        if replacement is not None:
            return self._to_raw_response(request, replacement), endpoint
        response, endpoint = await self._respond(request, path, query, endpoint)
        if kind == "stall":
            await self._closing.wait()
            return RawResponse(b"", ending="abort"), endpoint
        return self.faults.corrupt_response(kind, response, self._format_date()), endpoint

    async def _respond(  # noqa: PLR0911 (one return per route)
        self, request: web.BaseRequest, path: str, query: str, endpoint: str
    ) -> tuple[Response, str]:
        """Return the response and the endpoint it is counted for (a poll may become a download)."""
        if endpoint == "poll":
            return self._get_report(request, path, query)
        args = MultiDict(parse_qsl(query, keep_blank_values=True))
        if endpoint == "other":
            if path.startswith("/s/"):
                return self.shares.view(path[3:]), endpoint
            return to_json_response({"message": "Not Found"}, 404), endpoint
        if not self._is_authorized(request, args):
            if endpoint == "share":
                return shares.build_error_response(401, "Unauthorized"), endpoint
            return self._build_unauthorized_response(), endpoint
        if request.method != ("POST" if endpoint == "report" else "GET"):
            return to_json_response({"message": "Method Not Allowed"}, 405), endpoint
        match endpoint:
            case "detail":
                return self._get_detail(path, args), endpoint
            case "list":
                return self._list_files(request.raw_path, args), endpoint
            case "share":
                return self.shares.create(args, self.base_url), endpoint
            case _:
                origin = self.other_url if self.quirks.report_host == "other-port" else self.base_url
                return await self.reports.order(await request.read(), origin), endpoint

    def _list_files(self, raw_path: str, args: MultiDict[str]) -> Response:
        documents, quirks = self.documents, self.quirks
        try:
            query = search.parse_query(args, quirks)
        except search.UnprocessableError as error:
            problems = {name: [text] for name, text in error.errors.items()}
            return to_json_response({"message": "The given data was invalid.", "errors": problems}, 422)
        page = search.search(documents, query, self._rng)
        location = paging.RequestLocation(raw_path, self.base_url, self.other_url)
        items = [documents.render_item(record, query.includes, query.lang) for record in page.records]
        return Response(body=paging.render_list(page, items, location, quirks))

    def _get_detail(self, path: str, args: MultiDict[str]) -> Response:
        tail = path[14:]
        is_id = tail.isascii() and tail.isdigit() and len(tail) < 20
        record = self.world.find(int(tail)) if is_id else None
        if record is None:
            return build_not_found_response(self.quirks.not_found)
        body = self.documents.render_detail(record, args.get("lang"))
        return Response(body=b'{"data":' + body + b"}" if self.quirks.detail_wrap == "data" else body)

    def _get_report(self, request: web.BaseRequest, path: str, query: str) -> tuple[Response, str]:
        access = self.quirks.report_download_token
        if access == "ignored" or request.url.port == self.other_port:
            self.leaks.extend(find_credentials(request, self.token))
        elif access == "refused" or not self._is_authorized(request, MultiDict(parse_qsl(query))):
            return self._build_unauthorized_response(), "poll"
        response, is_report = self.reports.fetch(unquote(path).split("/")[2])
        return response, "download" if is_report else "poll"

    def _is_authorized(self, request: web.BaseRequest, args: MultiDict[str]) -> bool:
        if self.faults.faults.revoked:
            return False
        location = self.quirks.token_location
        if location != "header" and args.get("token") == self.token:
            return True
        return location != "query" and request.headers.get("token") == self.token

    def _build_unauthorized_response(self) -> Response:
        status = int(self.quirks.bad_token_status)
        match self.quirks.bad_token_shape:
            case "html":
                return to_html_response("Please sign in", status)
            case "empty":
                return Response(status)
            case "message":
                return to_json_response({"message": "Unauthenticated."}, status)
            case _:
                return to_json_response({"response": "error", "status": "Unauthorized"}, status)

    def _to_raw_response(self, request: web.BaseRequest, response: Response) -> RawResponse:
        """Return a response without faults."""
        if self.quirks.gzip == "on" and "gzip" in request.headers.get("Accept-Encoding", ""):
            response = gzip_response(response) if "Content-Encoding" not in response.headers else response
        ending: Ending = "keep" if request.keep_alive else "close"
        head = render_head(response, self._format_date(), length=len(response.body), ending=ending)
        body = b"" if request.method == "HEAD" else response.body
        return RawResponse(head + body, status=response.status, ending=ending)

    def _format_date(self) -> str | None:
        if self.quirks.date_header == "off":
            return None
        return self._date.format(self.world.clock.now() / 1e6 + self.quirks.date_skew_seconds)

    async def _handle_other_origin(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle a request to the other origin: serve reports, record everything else."""
        path = request.raw_path.partition("?")[0]
        if path.startswith("/reports/"):
            return await self._handle(request)
        leaks = find_credentials(request, self.token)
        self.leaks.extend(leaks)
        leaked = f" with {'+'.join(leaks)}" if leaks else ""
        self.strays.append(f"{request.method} {path}{leaked}")
        return self._to_raw_response(request, to_json_response({"message": "Not Found"}, 404))


def _classify_path(path: str) -> str:
    """Return the endpoint of a path; a report URL is a poll until it returns the report."""
    if path.startswith("/api/v2/files/"):
        return "detail"
    if path.startswith("/reports/"):
        return "poll"
    return {"/api/v2/files": "list", "/api/v2/share": "share", "/api/v2/reports": "report"}.get(path, "other")


def build_not_found_response(shape: str) -> Response:
    """Return the detail response for a file that does not exist."""
    if shape in {"404", "410"}:
        return to_json_response({"response": "error", "status": "NO FILE FOUND"}, int(shape))
    bodies: dict[str, Any] = {
        "null": None,
        "[]": [],
        "{}": {},
        "data-null": {"data": None},
        "data-list": {"data": []},
        "envelope-300": {"status": "error", "reason": "No file found", "code": 300},
        "response-error": {"response": "error", "status": "NO FILE FOUND"},
    }
    return Response() if shape == "empty" else to_json_response(bodies[shape])
