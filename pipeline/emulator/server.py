"""The emulated service: world, documents, faults, counters and request log, behind an HTTP server.

Routes under /_emulator/ show and change it: for the demo, the benchmarks and people. They need no token, because the
emulator listens on 127.0.0.1 only. GET /_emulator/ lists them.
"""

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, unquote

import msgspec
from aiohttp import web
from multidict import MultiDict

from pipeline.emulator import listing
from pipeline.emulator.documents import DocumentRenderer
from pipeline.emulator.faults import FaultInjector, ScriptedFault
from pipeline.emulator.http import (
    RawResponse,
    Response,
    find_credentials,
    format_date,
    gzip_response,
    to_json_response,
    to_raw_response,
)
from pipeline.emulator.image_host import ImageHost
from pipeline.emulator.options import Faults, ImageOptions, Quirks, WorldPlan, replace_fields
from pipeline.emulator.reports import Reports, Shares, build_share_error
from pipeline.emulator.world import World, run_churn

DEFAULT_TOKEN = "ZW11L2xhdG9yK3NjYW5sYWtlLXRva2Vu/+8="  # noqa: S105 (not a secret; needs URL encoding on purpose)
IMAGE_ORIGIN = "https://images.example.invalid"
HOST = "127.0.0.1"  # also the control routes, which need no token, are for this machine only
_UNAUTHORIZED = to_json_response({"response": "error", "status": "Unauthorized"}, 401)
ENDPOINTS = ("list", "detail", "share", "report", "poll", "download", "other")
_CONTROL_PREFIX = "/_emulator/"

_CONTROL_HELP = """\
GET  /_emulator/state    files, and requests by endpoint and status, e-mails, leaked tokens, stray requests
GET  /_emulator/truth    all files, one JSON object per line: key, id, scan_code, updated, item, detail
POST /_emulator/world    {"op": "create", "n": 10} | {"op": "update|close|reopen|delete", "ids": [1, 2] or "n": 5}
POST /_emulator/faults   fields of Faults
POST /_emulator/churn    {"rate": 5} changes per second
POST /_emulator/reset    clear the counters and the log
"""


class LoggedRequest(NamedTuple):
    """Entry of the request log."""

    method: str
    raw_path: str
    headers: Mapping[str, str]
    endpoint: str
    status: int


class Emulator:
    """The service on 127.0.0.1, as a context manager for the event loop of a test.

    A client needs `base_url` and `token`. Entering raises OSError if the port is taken. `world` can change while it is
    served. `script` and `set_faults` configure faults, `counts` and `log` record the requests, `truth` yields the
    files. `images` is the image host, None unless image options are given.
    """

    def __init__(
        self,
        files: int = 500,
        seed: int = 0,
        *,
        plan: WorldPlan | None = None,
        quirks: Quirks | None = None,
        faults: Faults | None = None,
        images: ImageOptions | None = None,
        image_faults: Faults | None = None,
        port: int = 0,
        token: str = DEFAULT_TOKEN,
        churn: float = 0.0,
        prerender: bool = False,
    ) -> None:
        self.plan = plan or WorldPlan(files=files, seed=seed)
        self.quirks = quirks or Quirks()
        self.token = token
        self.churn_rate = churn
        self.world = World(self.plan, self.quirks)
        self.documents = DocumentRenderer(self.world, self.quirks, IMAGE_ORIGIN)
        self.reports = Reports(self.documents, random.Random(f"reports:{self.plan.seed}"))
        self.shares = Shares(self.world)
        self.images = None
        if images is not None:
            self.images = ImageHost(self.documents, images, image_faults or Faults(), token)
        self._prerenders = prerender
        self.faults = FaultInjector(faults or Faults(), self.plan.seed, token)
        self.in_flight = 0
        self.on_request: Callable[[str], None] | None = None  # called with the endpoint before each request is handled
        self._churn_task: asyncio.Task[None] | None = None
        self.port = port
        self.other_port = 0
        self._rng = random.Random(f"server:{self.plan.seed}")
        self._cached: dict[str, tuple[int, Response]] = {}  # by path and query, with the time of the world
        self._runners: list[web.ServerRunner] = []
        self.reset()

    @property
    def base_url(self) -> str:
        """Address of the service, without a path."""
        return f"http://{HOST}:{self.port}"

    @property
    def other_url(self) -> str:
        """Another origin of the same process, which must never receive the token; see `strays`."""
        return f"http://{HOST}:{self.other_port}"

    @property
    def injected_faults(self) -> Counter[str]:
        """Counts of the faults by kind."""
        return self.faults.injected

    @property
    def emails(self) -> list[tuple[str, str]]:
        """E-mails of share links: (recipient, reference)."""
        return self.shares.emails

    def truth(self) -> Iterator[dict[str, Any]]:
        """Yield each file: {key, id, scan_code, updated (microseconds), item (all includes), detail}."""
        self.world.apply_late_commits()
        for key in self.world.keys():  # noqa: SIM118 (a copy: the world may change between two files)
            record = self.world.records.get(key)
            if record is not None:
                yield {
                    "key": key,
                    "id": record.id,
                    "scan_code": record.scan_code,
                    "updated": record.updated,
                    "item": self.documents.build_item(record),
                    "detail": self.documents.build_detail(record),
                }

    def reset(self) -> None:
        """Clear all counters and the log; the world does not change."""
        self.counts: Counter[str] = Counter(dict.fromkeys(ENDPOINTS, 0))
        self.statuses: Counter[int] = Counter()
        self.log: deque[LoggedRequest] = deque(maxlen=20_000)
        self.leaks: list[str] = []
        self.strays: list[str] = []
        self.max_in_flight = self.in_flight
        self.requests = 0
        self.faults.injected.clear()
        if self.images is not None:
            self.images.reset()

    def script(self, kind: str, times: int = 1, path: str = "/", skip: int = 0) -> None:
        """Break the next `times` requests with this path prefix; see `faults.KINDS`."""
        self.faults.add(ScriptedFault(kind, times, path, skip))

    def set_faults(self, **settings: Any) -> None:
        """Change some fields of the current `Faults`."""
        self.faults.set(replace_fields(self.faults.faults, settings))

    def set_quirks(self, **settings: Any) -> None:
        """Change some quirks; those marked "set at start" have no effect on existing files."""
        self.quirks = replace_fields(self.quirks, settings)
        self.world.quirks = self.quirks
        self.documents.set_quirks(self.quirks)

    def set_churn(self, rate: float) -> None:
        """Set the number of random changes per second; 0 stops them."""
        if self._churn_task is not None:
            self._churn_task.cancel()
            self._churn_task = None
        self.churn_rate = rate
        if rate:
            loop = asyncio.get_running_loop()
            self._churn_task = loop.create_task(run_churn(self.world, rate, self.plan.seed))

    def read_state(self) -> dict[str, Any]:
        """Return the counters and sizes as JSON."""
        return {
            **({} if self.images is None else {"images": self.images.read_state()}),
            "files": len(self.world.records),
            "requests": self.requests,
            "counts": dict(self.counts),
            "statuses": {str(status): count for status, count in self.statuses.items()},
            "injected_faults": dict(self.injected_faults),
            "max_in_flight": self.max_in_flight,
            "emails": [list(mail) for mail in self.emails],
            "leaks": self.leaks,
            "strays": self.strays,
        }

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:  # such as a port that is taken: uvloop may wait for an open server at the end of the loop
            await self.__aexit__()
            raise
        return self

    async def _start(self) -> None:
        self.other_port = await self._listen(self._handle_other_origin, 0)
        if self.images is not None:
            # Rendered links show the origin, so it must be known first.
            port = await self._listen(self.images.handle, self.images.options.port)
            self.images.url = f"http://{HOST}:{port}"
            self.images.faults.other_origin = self.other_url
            self.documents.set_image_host(self.images.url, self.images.sign)
        if self._prerenders:
            self.documents.prerender()
        self.port = await self._listen(self._handle, self.port)
        self.faults.other_origin = self.other_url
        self.set_churn(self.churn_rate)

    async def __aexit__(self, *_: object) -> None:
        self.faults.closing.set()
        if self.images is not None:
            self.images.faults.closing.set()
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
        await web.TCPSite(runner, HOST, port, backlog=2048).start()
        return int(runner.addresses[0][1])

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle one request; all requests except control are counted and may get a fault."""
        raw_path = request.raw_path
        path, _, query = raw_path.partition("?")
        if path.startswith(_CONTROL_PREFIX):
            return await _handle_control(self, request, path)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        self.requests += 1
        endpoint = _classify_path(path)
        status = 0
        if self.on_request is not None:
            self.on_request(endpoint)

        async def respond() -> Response:
            nonlocal endpoint
            response, endpoint = await self._respond(request, path, query, endpoint)
            return response

        async def respond_unbroken() -> web.StreamResponse:
            return send(await respond())

        def send(response: Response) -> web.StreamResponse:
            return self._to_raw_response(request, response)

        try:
            reply = await self.faults.handle(path, respond_unbroken, respond, send, self._format_date())
            status = reply.status
        finally:
            self.in_flight -= 1
            self.counts[endpoint] += 1
            self.statuses[status] += 1
            self.log.append(LoggedRequest(request.method, raw_path, request.headers, endpoint, status))
        return reply

    async def _respond(  # noqa: PLR0911 (one return per route)
        self, request: web.BaseRequest, path: str, query: str, endpoint: str
    ) -> tuple[Response, str]:
        """Return the response and the endpoint it is counted for (a poll may become a download)."""
        if endpoint == "poll":
            return self._get_report(request, path, query)
        args = MultiDict(parse_qsl(query, keep_blank_values=True))
        if endpoint == "other":
            return to_json_response({"message": "Not Found"}, 404), endpoint
        if not self._is_authorized(request, args):
            if endpoint == "share":
                return build_share_error(401, "Unauthorized"), endpoint
            return _UNAUTHORIZED, endpoint
        if request.method != ("POST" if endpoint == "report" else "GET"):
            return to_json_response({"message": "Method Not Allowed"}, 405), endpoint
        match endpoint:
            case "detail":
                seconds = self.quirks.detail_cache_seconds
                return self._cache(request.raw_path, seconds, lambda: self._get_detail(path, args)), endpoint
            case "list":
                seconds = self.quirks.list_cache_seconds
                return self._cache(
                    request.raw_path, seconds, lambda: self._list_files(request.raw_path, args)
                ), endpoint
            case "share":
                return self.shares.create(args, self.base_url), endpoint
            case _:
                origin = self.other_url if self.quirks.report_host == "other-port" else self.base_url
                return await self.reports.order(await request.read(), origin), endpoint

    def _cache(self, raw_path: str, seconds: float, answer: Callable[[], Response]) -> Response:
        """Return the cached response of a request, or the new one of `answer`, which then lives so long."""
        now = self.world.clock.now()
        cached_at, response = self._cached.get(raw_path, (0, None))
        if response is None or now >= cached_at + seconds * 1e6:
            response = answer()
            if seconds:
                self._cached[raw_path] = (now, response)
        return response

    def _list_files(self, raw_path: str, args: MultiDict[str]) -> Response:
        documents, quirks = self.documents, self.quirks
        try:
            query = listing.parse_query(args, quirks)
        except listing.UnprocessableError as error:
            problems = {name: [text] for name, text in error.errors.items()}
            return to_json_response({"message": "The given data was invalid.", "errors": problems}, 422)
        page = listing.search(documents, query, self._rng)
        location = listing.RequestLocation(raw_path, self.base_url, self.other_url)
        items = [documents.render_item(record, query.includes, query.lang) for record in page.records]
        return Response(body=listing.render_list(page, items, location, quirks))

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
            return _UNAUTHORIZED, "poll"
        response, is_report = self.reports.fetch(unquote(path).split("/")[2])
        return response, "download" if is_report else "poll"

    def _is_authorized(self, request: web.BaseRequest, args: MultiDict[str]) -> bool:
        if self.faults.faults.revoked:
            return False
        location = self.quirks.token_location
        if location != "header" and args.get("token") == self.token:
            return True
        return location != "query" and request.headers.get("token") == self.token

    def _to_raw_response(self, request: web.BaseRequest, response: Response) -> RawResponse:
        """Return a response without faults."""
        if self.quirks.gzip == "on" and "gzip" in request.headers.get("Accept-Encoding", ""):
            response = gzip_response(response) if "Content-Encoding" not in response.headers else response
        return to_raw_response(request, response, self._format_date())

    def _format_date(self) -> str | None:
        if self.quirks.date_header == "off":
            return None
        return format_date(int(self.world.clock.now() / 1e6 + self.quirks.date_skew_seconds))

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


# Control


async def _handle_control(  # noqa: PLR0911 (one return per route)
    service: Emulator, request: web.BaseRequest, path: str
) -> web.StreamResponse:
    """Return the response to a control request; 400 if it is invalid."""
    try:
        match request.method, path.removeprefix(_CONTROL_PREFIX):
            case "GET", "":
                return web.Response(text=_CONTROL_HELP)
            case "GET", "state":
                return _to_json_response(service.read_state())
            case "GET", "truth":
                return web.Response(body=b"\n".join(map(msgspec.json.encode, service.truth())))
            case "POST", name if name in _OPERATIONS:
                command = msgspec.json.decode(await request.read() or b"{}", type=dict[str, Any])
                return _to_json_response({"keys": _OPERATIONS[name](service, command)})
            case _:
                return web.Response(text=f"Unknown control route.\n\n{_CONTROL_HELP}", status=404)
    except KeyError as error:
        return web.Response(text=f"Unknown file: {error}.", status=400)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        return web.Response(text=str(error), status=400)


def _change_world(world: World, command: dict[str, Any]) -> list[int]:
    """Change the files of a command, or `n` random ones; return their keys."""
    count = int(command.get("n", 1))
    match command.get("op"):
        case "create":
            return world.create(count)
        case "update" | "close" | "reopen" | "delete" as op:
            keys: list[int] = getattr(world, op)(command.get("ids") or world.pick_random(count))
            return keys
        case op:
            raise ValueError(f"Unknown op {op!r}.\n\n{_CONTROL_HELP}")


def _to_json_response(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


_OPERATIONS: dict[str, Callable[[Emulator, dict[str, Any]], list[int] | None]] = {
    "world": lambda service, command: _change_world(service.world, command),
    "faults": lambda service, command: service.set_faults(**command),
    "churn": lambda service, command: service.set_churn(float(command.get("rate", 0))),
    "reset": lambda service, _command: service.reset(),
}
