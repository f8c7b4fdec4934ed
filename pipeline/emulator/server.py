"""The emulated service on a socket: routes, token checks, bookkeeping."""

import asyncio
import contextlib
import random
import re
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, unquote

from aiohttp import web
from multidict import MultiDict

from pipeline.emulator import control, paging, search, shares
from pipeline.emulator.churn import churn
from pipeline.emulator.documents import Documents
from pipeline.emulator.faults import FaultPlan, Scripted
from pipeline.emulator.options import Faults, Quirks, WorldPlan, changed
from pipeline.emulator.reports import Reports
from pipeline.emulator.wire import Answer, DateText, Ending, Raw, head, html_answer, json_answer, zipped
from pipeline.emulator.world import World

DEFAULT_TOKEN = "ZW11L2xhdG9yK3NjYW5sYWtlLXRva2Vu/+8="  # noqa: S105 (not a secret; needs URL encoding on purpose)
IMAGE_ORIGIN = "https://images.example.invalid"
ENDPOINTS = ("list", "detail", "share", "report", "poll", "download", "other")

_API = "/api/v2/"
_TOKEN = re.compile(r"(token=)[^&]*")


class Seen(NamedTuple):
    """One request as the log keeps it; header values are never shown, as one of them may be the token."""

    number: int
    method: str
    raw_path: str
    headers: Mapping[str, str]
    endpoint: str
    status: int

    def shown(self) -> dict[str, Any]:
        """Return the entry as JSON, without the token."""
        return {
            "number": self.number,
            "method": self.method,
            "path": _TOKEN.sub(r"\1***", self.raw_path),
            "headers": sorted(str(name) for name in self.headers),
            "endpoint": self.endpoint,
            "status": self.status,
        }


class Emulator:
    """The whole service on 127.0.0.1, with its world, for `async with` in a test's own loop.

    `base_url` and `token` are what a client needs; `world` can be changed while it is served, `script` and
    `set_faults` make it misbehave, `counts` and `log` say what was asked, `truth` what is there.
    Raises OSError when the port is taken.
    """

    def __init__(
        self,
        files: int = 500,
        seed: int = 0,
        *,
        plan: WorldPlan | None = None,
        quirks: Quirks | None = None,
        faults: Faults | None = None,
        token: str = DEFAULT_TOKEN,
        host: str = "127.0.0.1",
        port: int = 0,
        churn: float = 0.0,
        cache_bytes: int = 256_000_000,
        prerender: bool = False,
    ) -> None:
        self.plan = plan or WorldPlan(files=files, seed=seed)
        self.quirks = quirks or Quirks()
        self.token = token
        self.host = host
        self.port = port
        self.other_port = 0
        self.churn_rate = churn
        self.world = World(self.plan, self.quirks)
        self.documents = Documents(self.world, self.quirks, IMAGE_ORIGIN, cache_bytes)
        self.reports = Reports(self.documents, random.Random(f"reports:{self.plan.seed}"))
        self.shares = shares.Shares(self.world)
        if prerender:
            self.documents.prerender()
        self.faults = FaultPlan(faults or Faults(), self.plan.seed, token, "")
        self._rng = random.Random(f"server:{self.plan.seed}")
        self._date = DateText()
        self._runners: list[web.ServerRunner] = []
        self._churner: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._started = time.monotonic()
        self.in_flight = 0
        self.reset()

    # What tests ask.

    @property
    def base_url(self) -> str:
        """The service's address, without a path."""
        return f"http://{self.host}:{self.port}"

    @property
    def other_url(self) -> str:
        """Another origin of the same process, which must never see the token; see `strays`."""
        return f"http://{self.host}:{self.other_port}"

    @property
    def emails(self) -> list[tuple[str, str]]:
        """The e-mails sent by shares: (recipient, reference)."""
        return self.shares.emails

    def truth(self) -> Iterator[dict[str, Any]]:
        """Yield every file: {key, id, scan_code, updated (microseconds), item (all includes), detail}."""
        self.world.settle()
        for key in self.world.keys():  # noqa: SIM118 (a copy: the world may change between two rows)
            record = self.world.records.get(key)
            if record is not None:
                yield {
                    "key": key,
                    "id": record.id,
                    "scan_code": record.scan_code,
                    "updated": record.updated,
                    "item": self.documents.item(record),
                    "detail": self.documents.detail(record),
                }

    def reset(self) -> None:
        """Forget all counts, the log and what was leaked; the world stays as it is."""
        self.counts: Counter[str] = Counter(dict.fromkeys(ENDPOINTS, 0))
        self.statuses: Counter[int] = Counter()
        self.struck: Counter[str] = Counter()
        self.log: deque[Seen] = deque(maxlen=20_000)
        self.leaks: list[str] = []
        self.strays: list[str] = []
        self.max_in_flight = self.in_flight
        self.requests = 0

    def script(self, kind: str, times: int = 1, path: str = "/", skip: int = 0) -> None:
        """Break the next `times` requests to paths with this prefix; see `faults.KINDS`."""
        self.faults.add(Scripted(kind, times, path, skip))

    def set_faults(self, **settings: Any) -> None:
        """Change some fields of the running `Faults`."""
        self.faults.set(changed(self.faults.faults, settings))

    def set_quirks(self, **settings: Any) -> None:
        """Answer by other quirks from now on; those marked "set at start" stay as they are for old files."""
        self.quirks = changed(self.quirks, settings)
        self.world.quirks = self.quirks
        self.documents.restyle(self.quirks)

    def set_churn(self, rate: float) -> None:
        """Let the world change so many times a second; 0 stops it."""
        if self._churner is not None:
            self._churner.cancel()
            self._churner = None
        self.churn_rate = rate
        if rate:
            self._churner = asyncio.get_running_loop().create_task(churn(self.world, rate, self.plan.seed))

    # Life.

    async def __aenter__(self) -> Self:
        self.other_port = await self._listen(self._answer_elsewhere, 0)
        self.port = await self._listen(self._handle, self.port)
        self.faults = self._replan()
        self.set_churn(self.churn_rate)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        if self._churner is not None:
            self._churner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._churner
        for runner in self._runners:
            await runner.cleanup()

    async def _listen(self, handler: Any, port: int) -> int:
        # A fault leaves clients behind in every state; stalled handlers end when their client goes.
        server = web.Server(handler, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=0.2)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, self.host, port, backlog=2048).start()
        return int(runner.addresses[0][1])

    def _replan(self) -> FaultPlan:
        plan = FaultPlan(self.faults.faults, self.plan.seed, self.token, self.other_url)
        for scripted in self.faults.script:
            plan.add(scripted)
        return plan

    # Requests.

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; everything but control goes through counting and faults."""
        raw_path = request.raw_path
        path, _, query = raw_path.partition("?")
        if path.startswith(control.PREFIX):
            return await control.answer(self, request, path, dict(parse_qsl(query)))
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        self.requests += 1
        endpoint = _endpoint(path)
        status = 0
        response: web.StreamResponse
        try:
            if self.faults.quiet:
                answer, endpoint = await self._answer(request, path, query, endpoint)
                response = self._sent(request, answer)
            else:
                response, endpoint = await self._misbehave(request, path, query, endpoint)
            status = response.status
        finally:
            self.in_flight -= 1
            self.counts[endpoint] += 1
            self.statuses[status] += 1
            self.log.append(Seen(self.requests, request.method, raw_path, request.headers, endpoint, status))
        return response

    async def _misbehave(
        self, request: web.BaseRequest, path: str, query: str, endpoint: str
    ) -> tuple[web.StreamResponse, str]:
        """Answer one request while faults are planned."""
        kind = self.faults.draw(path)
        delay = self.faults.delay()
        if delay:
            await asyncio.sleep(delay)
        if kind is None:
            answer, endpoint = await self._answer(request, path, query, endpoint)
            return self._sent(request, answer), endpoint
        self.struck[kind] += 1
        if kind == "refuse":
            return Raw(b"", ending="abort"), endpoint
        instead = self.faults.instead(kind)
        if instead is not None:
            return self._sent(request, instead), endpoint
        answer, endpoint = await self._answer(request, path, query, endpoint)
        if kind == "stall":
            await self._closing.wait()
            return Raw(b"", ending="abort"), endpoint
        return self.faults.broken(kind, answer, self._date_text()), endpoint

    async def _answer(  # noqa: PLR0911 (a table of routes)
        self, request: web.BaseRequest, path: str, query: str, endpoint: str
    ) -> tuple[Answer, str]:
        """Return what the service says, and the endpoint it counts for (a download may be a mere poll)."""
        if endpoint == "poll":
            return self._report(request, path, query)
        args = MultiDict(parse_qsl(query, keep_blank_values=True))
        if endpoint == "other":
            if path.startswith("/s/"):
                return self.shares.view(path[3:]), endpoint
            return json_answer({"message": "Not Found"}, 404), endpoint
        if not self._admitted(request, args):
            return (shares.unauthorized() if endpoint == "share" else self._unauthorized()), endpoint
        if request.method != ("POST" if endpoint == "report" else "GET"):
            return json_answer({"message": "Method Not Allowed"}, 405), endpoint
        match endpoint:
            case "detail":
                return self._detail(path, args), endpoint
            case "list":
                return self._list(request.raw_path, args), endpoint
            case "share":
                return self.shares.create(args, self.base_url), endpoint
            case _:
                elsewhere = self.quirks.report_host == "other-port"
                origin = self.other_url if elsewhere else self.base_url
                return await self.reports.order(await request.read(), origin), endpoint

    def _list(self, raw_path: str, args: MultiDict[str]) -> Answer:
        documents, quirks = self.documents, self.quirks
        try:
            query = search.read_query(args, quirks)
        except search.Unprocessable as error:
            problems = {name: [text] for name, text in error.errors.items()}
            return json_answer({"message": "The given data was invalid.", "errors": problems}, 422)
        page = search.search(documents, query, self._rng)
        place = paging.Place(raw_path, self.base_url, self.other_url)
        items = [documents.item_bytes(record, query.includes, query.lang) for record in page.records]
        return Answer(body=paging.envelope(page, items, place, quirks))

    def _detail(self, path: str, args: MultiDict[str]) -> Answer:
        tail = path[14:]
        readable = tail.isascii() and tail.isdigit() and len(tail) < 20
        record = self.world.find(int(tail)) if readable else None
        if record is None:
            return gone(self.quirks.gone)
        body = self.documents.detail_bytes(record, args.get("lang"))
        return Answer(body=b'{"data":' + body + b"}" if self.quirks.detail_wrap == "data" else body)

    def _report(self, request: web.BaseRequest, path: str, query: str) -> tuple[Answer, str]:
        self._watch(request, query)
        answer, whole = self.reports.fetch(unquote(path).split("/")[2])
        return answer, "download" if whole else "poll"

    def _watch(self, request: web.BaseRequest, query: str) -> None:
        """Note credentials that reached an address which needs none."""
        found = [name for name in ("token", "authorization", "cookie", "referer") if name in request.headers]
        if "token=" in query or self.token in unquote(request.raw_path):
            found.append("query")
        self.leaks.extend(found)

    def _admitted(self, request: web.BaseRequest, args: MultiDict[str]) -> bool:
        if self.faults.faults.revoked:
            return False
        place = self.quirks.token_place
        if place != "header" and args.get("token") == self.token:
            return True
        return place != "query" and request.headers.get("token") == self.token

    def _unauthorized(self) -> Answer:
        status = int(self.quirks.bad_token_status)
        match self.quirks.bad_token_shape:
            case "html":
                return html_answer("Please sign in", status)
            case "empty":
                return Answer(status)
            case "message":
                return json_answer({"message": "Unauthenticated."}, status)
            case _:
                return json_answer({"response": "error", "status": "Unauthorized"}, status)

    def _sent(self, request: web.BaseRequest, answer: Answer) -> Raw:
        """Return the bytes of an unbroken answer."""
        if self.quirks.gzip == "on" and "gzip" in request.headers.get("Accept-Encoding", ""):
            answer = zipped(answer) if "Content-Encoding" not in answer.headers else answer
        ending: Ending = "keep" if request.keep_alive else "close"
        start = head(answer, self._date_text(), length=len(answer.body), ending=ending)
        body = b"" if request.method == "HEAD" else answer.body
        return Raw(start + body, status=answer.status, ending=ending)

    def _date_text(self) -> str | None:
        if self.quirks.date_header == "off":
            return None
        return self._date.at(self.world.clock.now() / 1e6 + self.quirks.date_skew_seconds)

    async def _answer_elsewhere(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer at the other origin: reports when they live there, and a note of everything else."""
        path, _, query = request.raw_path.partition("?")
        if path.startswith("/reports/"):
            return await self._handle(request)
        before = len(self.leaks)
        self._watch(request, query)
        leaked = f" with {'+'.join(self.leaks[before:])}" if self.leaks[before:] else ""
        self.strays.append(f"{request.method} {path}{leaked}")
        return self._sent(request, json_answer({"message": "Not Found"}, 404))


def _endpoint(path: str) -> str:
    """Return the name of what a path asks for; a report's address is a poll until it delivers."""
    if path.startswith("/api/v2/files/"):
        return "detail"
    if path.startswith("/reports/"):
        return "poll"
    return {"/api/v2/files": "list", "/api/v2/share": "share", "/api/v2/reports": "report"}.get(path, "other")


def gone(shape: str) -> Answer:
    """Return the detail answer for a file that is not there."""
    if shape in {"404", "410"}:
        return json_answer({"response": "error", "status": "NO FILE FOUND"}, int(shape))
    bodies: dict[str, Any] = {
        "null": None,
        "[]": [],
        "{}": {},
        "data-null": {"data": None},
        "data-list": {"data": []},
        "envelope-300": {"status": "error", "reason": "No file found", "code": 300},
        "response-error": {"response": "error", "status": "NO FILE FOUND"},
    }
    return Answer() if shape == "empty" else json_answer(bodies[shape])
