"""Fault injection: which request fails, and how its response is broken.

A fault is random (seeded), scripted ("the next three lists") or a state (outage, rate limit, poison ids).
The first kinds replace the response, and the request is not carried out. Those after `bomb` break the response of a
request that *was* carried out: the report is ordered, but the client does not learn its URL.
"""

import asyncio
import gzip
import math
import random
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate

from aiohttp import web

from pipeline.emulator.http import HTML, Ending, RawResponse, Response, render_head, to_html_response, to_json_response
from pipeline.emulator.options import Faults

KINDS: dict[str, str] = {
    "refuse": "close the connection without a response; the request is not carried out",
    "429": "too many requests, with Retry-After; any other status (500, 503, 401, ...) works in the same way",
    "html": "200 with an HTML page",
    "redirect": "302 to another origin; also redirect-307, redirect-308",
    "echo-token": "500 with the token in body and header",
    "bomb": "200 with 1 MB of gzip that becomes 1 GB",
    "stall": "accept and carry out the request, never respond",
    "drop-before-status": "reset the connection before the status line",
    "drop-mid-headers": "reset the connection within the headers",
    "drop-mid-body": "reset the connection within the body",
    "cut-length": "close within the body; Content-Length is that of the complete body",
    "cut-chunked": "close within a chunked body",
    "cut-close": "no Content-Length: half the body, then a clean close",
    "cut-json": "half the body, with a matching Content-Length",
    "gzip-no-trailer": "compressed, without the last 8 bytes",
    "gzip-half": "half the compressed bytes",
    "gzip-lie": "Content-Encoding gzip, but a plain body",
    "odd-encoding": "an unknown Content-Encoding",
    "drip": "one byte at a time, with a pause after each",
}
_REDIRECTS = {"redirect": 302, "redirect-307": 307, "redirect-308": 308}
_STATUS_DIGITS = 3
_DRIP_SECONDS = 0.1
_RETRY_AFTER_STATUSES = frozenset({429, 503})


def is_kind(kind: str) -> bool:
    """Return whether `kind` is a fault: one of KINDS, a redirect, or a three-digit status."""
    return kind in KINDS or kind in _REDIRECTS or (kind.isdigit() and len(kind) == _STATUS_DIGITS)


def _check_kind(kind: str) -> None:
    if not is_kind(kind):
        raise ValueError(f"Unknown fault {kind!r}. Use one of {', '.join(KINDS)} or an HTTP status.")


@dataclass(slots=True)
class ScriptedFault:
    """Fault for the next `times` requests with the path prefix `path`, after the first `skip` of them."""

    kind: str
    times: int = 1
    path: str = "/"
    skip: int = 0


class FaultInjector:
    """Chooses the fault of each request; `quiet` means that no fault is configured."""

    def __init__(self, faults: Faults, seed: int, token: str) -> None:
        self.other_origin = ""  # the target of redirects, known once the server listens
        self._rng = random.Random(f"faults:{seed}")
        self._token = token
        self._tokens = 0.0
        self._window_ends, self._window_used = 0.0, 0
        self._busy = 0
        self._filled = time.monotonic()
        self._bomb: bytes | None = None
        self.injected: Counter[str] = Counter()
        self.closing = asyncio.Event()  # ends stalled requests
        self.script: list[ScriptedFault] = []
        self.quiet = True
        self.set(faults)

    def set(self, faults: Faults) -> None:
        """Replace the configured faults. Raise ValueError for an unknown kind."""
        for kind in faults.probabilities:
            _check_kind(kind)
        self.faults = faults
        self._tokens = self._bucket_size()
        self._update_quiet()

    def add(self, scripted: ScriptedFault) -> None:
        """Add a scripted fault. Raise ValueError for an unknown kind."""
        _check_kind(scripted.kind)
        self.script.append(scripted)
        self._update_quiet()

    def clear(self) -> None:
        """Remove all faults."""
        self.script.clear()
        self.set(Faults())

    async def handle(
        self,
        path: str,
        unbroken: Callable[[], Awaitable[web.StreamResponse]],
        respond: Callable[[], Awaitable[Response]],
        send: Callable[[Response], web.StreamResponse],
        date: str | None,
    ) -> web.StreamResponse:
        """Return the reply to a request with its fault, if any.

        `unbroken` carries the request out and sends the response, `respond` only carries it out, `send` only sends.
        """
        if self.faults.max_in_flight and self._busy >= self.faults.max_in_flight:
            self.injected[self.faults.limit_status] += 1
            return send(self._build_status_response(int(self.faults.limit_status)))
        self._busy += 1
        try:
            kind = None if self.quiet else self.pick_fault(path)
            if self.faults.latency_ms:
                await asyncio.sleep(self.faults.latency_ms / 1000)
            if kind is None:
                return await unbroken()
            self.injected[kind] += 1
            if kind == "refuse":
                return RawResponse(b"", ending="abort")
            replacement = self.replace_response(kind)
            if replacement is not None:
                return send(replacement)
            response = await respond()
            if kind == "stall":
                await self.closing.wait()
                return RawResponse(b"", ending="abort")
            return self.corrupt_response(kind, response, date)
        finally:
            self._busy -= 1

    def pick_fault(self, path: str) -> str | None:
        """Return the kind of fault for this request, or None."""
        faults = self.faults
        for entry in self.script:
            if path.startswith(entry.path):
                if entry.skip:
                    entry.skip -= 1
                    continue
                entry.times -= 1
                if entry.times <= 0:
                    self.script.remove(entry)
                    self._update_quiet()
                return entry.kind
        if faults.outage:
            return "503"
        if (faults.rate_limit and not self._take_token()) or (faults.window_calls and not self._take_of_window()):
            return faults.limit_status
        if faults.poison and path.startswith("/api/v2/files/") and path[14:] in {str(key) for key in faults.poison}:
            return "500"
        return self._pick_random_kind() if path.startswith(faults.paths) else None

    def replace_response(self, kind: str) -> Response | None:
        """Return the response of a fault that replaces it, None for other kinds."""
        if kind.isdigit():
            return self._build_status_response(int(kind))
        if kind in _REDIRECTS:
            return Response(_REDIRECTS[kind], b"", HTML, {"Location": f"{self.other_origin}/elsewhere"})
        if kind == "html":
            return to_html_response("Please sign in")
        if kind == "echo-token":
            return to_json_response({"status": f"bad token {self._token}"}, 500, {"X-Token": self._token})
        if kind == "bomb":
            return Response(200, self._build_bomb(), headers={"Content-Encoding": "gzip"})
        return None

    def corrupt_response(  # noqa: PLR0911 (one return per kind)
        self, kind: str, response: Response, date: str | None
    ) -> RawResponse:
        """Return the response with a fault that breaks it."""
        body, half, status = response.body, len(response.body) // 2, response.status
        match kind:
            case "drop-before-status":
                return RawResponse(b"", ending="abort")
            case "drop-mid-headers":
                head = render_head(response, date, length=len(body), ending="keep")
                return RawResponse(head[: len(head) // 2], ending="abort")
            case "drop-mid-body" | "cut-length":
                head = render_head(response, date, length=len(body), ending="keep")
                ending: Ending = "abort" if kind == "drop-mid-body" else "close"
                return RawResponse(head + body[:half], ending=ending, status=status)
            case "cut-chunked":
                head = render_head(response, date, length=None, ending="keep", extra="Transfer-Encoding: chunked\r\n")
                return RawResponse(head + b"%x\r\n%s\r\n" % (max(half, 1), body[: max(half, 1)]), ending="close")
            case "cut-close":
                head = render_head(response, date, length=None, ending="close")
                return RawResponse(head + body[:half], ending="close")
            case "drip":
                head = render_head(response, date, length=len(body), ending="close")
                return RawResponse(head + body, ending="close", pause=_DRIP_SECONDS)
            case _:
                corrupted = _corrupt_body(kind, response)
                head = render_head(corrupted, date, length=len(corrupted.body), ending="keep")
                return RawResponse(head + corrupted.body, status=status)

    def _update_quiet(self) -> None:
        self.quiet = not self.script and self.faults == Faults()

    def _pick_random_kind(self) -> str | None:
        for kind, probability in self.faults.probabilities.items():
            if self._rng.random() < probability:
                return kind
        return None

    def _bucket_size(self) -> float:
        return self.faults.rate_burst or max(self.faults.rate_limit, 1.0)

    def _take_token(self) -> bool:
        now = time.monotonic()
        self._tokens = min(self._bucket_size(), self._tokens + (now - self._filled) * self.faults.rate_limit)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _take_of_window(self) -> bool:
        now = time.monotonic()
        if now >= self._window_ends:
            missed = (now - self._window_ends) // self.faults.window_seconds if self._window_ends else math.inf
            start = now if missed == math.inf else self._window_ends + missed * self.faults.window_seconds
            self._window_ends, self._window_used = start + self.faults.window_seconds, 0
        self._window_used += 1
        return self._window_used <= self.faults.window_calls

    def _build_status_response(self, status: int) -> Response:
        headers = {**self._build_retry_after(), **self._state_window()} if status in _RETRY_AFTER_STATUSES else {}
        if self._rng.random() < 0.5:
            return replace(to_html_response(f"Error {status}", status), headers=headers)
        return to_json_response({"status": "error", "reason": f"Error {status}"}, status, headers)

    def _build_retry_after(self) -> Mapping[str, str]:
        seconds = self.faults.retry_after_seconds
        if self.faults.window_calls:
            seconds = max(1, math.ceil(self._window_ends - time.monotonic()))
        texts = {
            "seconds": str(seconds),
            "http-date": formatdate(time.time() + seconds, usegmt=True),
            "past-date": formatdate(time.time() - 3600, usegmt=True),
            "garbage": "abc",
            "huge": str(10**9),
            "negative": "-5",
        }
        text = texts.get(self.faults.retry_after)
        return {} if text is None else {"Retry-After": text}

    def _state_window(self) -> Mapping[str, str]:
        left = max(0, self.faults.window_calls - self._window_used)
        seconds = max(0, math.ceil(self._window_ends - time.monotonic()))
        if self.faults.limit_headers == "ratelimit":
            return {"RateLimit": f'"default";r={left};t={seconds}'}
        if self.faults.limit_headers == "x-ratelimit":
            return {"X-RateLimit-Remaining": str(left), "X-RateLimit-Reset": str(seconds)}
        return {}

    def _build_bomb(self) -> bytes:
        """Return gzip of a JSON string of 1 GB, compressed once and in pieces to limit memory."""
        if self._bomb is None:
            packer = zlib.compressobj(9, zlib.DEFLATED, 31)
            piece = b"a" * (1 << 20)
            parts = [packer.compress(b'{"data":"')] + [packer.compress(piece) for _ in range(1024)]
            self._bomb = b"".join([*parts, packer.compress(b'"}'), packer.flush()])
        return self._bomb


def _corrupt_body(kind: str, response: Response) -> Response:
    """Return a response with a wrong body that is transferred completely."""
    body = response.body
    if kind == "cut-json":
        return replace(response, body=body[: len(body) // 2])
    coded = {**response.headers, "Content-Encoding": "gzip"}
    packed = gzip.compress(body, 5, mtime=0)
    if kind == "gzip-no-trailer":
        return replace(response, body=packed[:-8], headers=coded)
    if kind == "gzip-half":
        return replace(response, body=packed[: len(packed) // 2], headers=coded)
    if kind == "gzip-lie":
        return replace(response, headers=coded)
    return replace(response, headers={**response.headers, "Content-Encoding": "br2"})
