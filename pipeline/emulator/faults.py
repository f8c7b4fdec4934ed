"""Misbehaviour: which request goes wrong, and how its answer is broken.

A fault strikes by chance (seeded), by script ("the next three lists"), or by state (outage, rate limit,
poison ids). Those of `BEFORE` replace the answer and nothing happens; those of `AFTER` break the answer of a
request that *was* carried out, the nastier half: the report is ordered, the client never hears of it.
"""

import gzip
import random
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate

from pipeline.emulator.options import Faults
from pipeline.emulator.wire import HTML, Answer, Raw, head, html_answer, json_answer

BEFORE: dict[str, str] = {
    "refuse": "close the connection without a word, the request is not carried out",
    "429": "too many requests, Retry-After as set; any other status (500, 503, 401, ...) works the same way",
    "html": "200 with an HTML page",
    "redirect": "302 to another origin; also redirect-307, redirect-308",
    "echo-token": "500 with the token in body and header",
    "bomb": "200 with 1 MB of gzip that becomes 1 GB",
}
AFTER: dict[str, str] = {
    "stall": "accept, carry out, never answer",
    "drop-before-status": "reset the connection before the status line",
    "drop-mid-headers": "reset the connection within the headers",
    "drop-mid-body": "reset the connection within the body",
    "cut-length": "close within the body, Content-Length is that of the whole",
    "cut-chunked": "close within a chunked body",
    "cut-close": "no length at all: half the body, then a clean close",
    "cut-json": "half the body, with the right length of that half",
    "gzip-no-trailer": "compressed, without the last 8 bytes",
    "gzip-half": "half the compressed bytes",
    "gzip-lie": "says gzip, is plain",
    "odd-encoding": "an unknown Content-Encoding",
    "drip": "one byte, a pause, one byte",
}
KINDS: dict[str, str] = {**BEFORE, **AFTER}
_REDIRECTS = {"redirect": 302, "redirect-307": 307, "redirect-308": 308}
_STATUS_DIGITS = 3
_SPEAKING = frozenset({429, 503})


def is_kind(kind: str) -> bool:
    """Return whether a word names a fault: one of KINDS, a redirect, or a three-digit status."""
    return kind in KINDS or kind in _REDIRECTS or (kind.isdigit() and len(kind) == _STATUS_DIGITS)


@dataclass(slots=True)
class Scripted:
    """A fault for the next `times` requests whose path begins with `path`, after the first `skip` of them."""

    kind: str
    times: int = 1
    path: str = "/"
    skip: int = 0


class FaultPlan:
    """Decides request by request; `quiet` says that nothing at all is planned, so that nothing is asked."""

    def __init__(self, faults: Faults, seed: int, token: str, other_origin: str) -> None:
        self._rng = random.Random(f"faults:{seed}")
        self._token = token
        self._other = other_origin
        self._tokens = 0.0
        self._filled = time.monotonic()
        self._bomb: bytes | None = None
        self.script: list[Scripted] = []
        self.quiet = True
        self.set(faults)

    def set(self, faults: Faults) -> None:
        """Misbehave by other rules from now on. ValueError for an unknown kind."""
        for kind in faults.shares:
            if not is_kind(kind):
                raise ValueError(f"no fault {kind!r}; there are: {', '.join(KINDS)} and every status")
        self.faults = faults
        self._tokens = self._bucket()
        self._weigh()

    def add(self, scripted: Scripted) -> None:
        """Put a fault on the script. ValueError for an unknown kind."""
        if not is_kind(scripted.kind):
            raise ValueError(f"no fault {scripted.kind!r}; there are: {', '.join(KINDS)} and every status")
        self.script.append(scripted)
        self._weigh()

    def clear(self) -> None:
        """Behave from now on."""
        self.script.clear()
        self.set(Faults())

    def delay(self) -> float:
        """Return how long to wait before answering, in seconds."""
        faults = self.faults
        if not (faults.latency_ms or faults.jitter_ms):
            return 0.0
        return (faults.latency_ms + self._rng.random() * faults.jitter_ms) / 1000

    def draw(self, path: str) -> str | None:
        """Return the kind of fault that strikes this request, or None."""
        faults = self.faults
        for entry in self.script:
            if path.startswith(entry.path):
                if entry.skip:
                    entry.skip -= 1
                    continue
                entry.times -= 1
                if entry.times <= 0:
                    self.script.remove(entry)
                    self._weigh()
                return entry.kind
        if faults.outage:
            return "503"
        if faults.rate_limit and not self._take():
            return "429"
        if faults.poison and path.startswith("/api/v2/files/") and path[14:] in {str(key) for key in faults.poison}:
            return "500"
        return self._chance() if path.startswith(faults.paths) else None

    def instead(self, kind: str) -> Answer | None:
        """Return the answer a fault of `BEFORE` gives in place of the service's, None for the others."""
        if kind.isdigit():
            return self._status(int(kind))
        if kind in _REDIRECTS:
            origin = self.faults.redirect_to or self._other
            return Answer(_REDIRECTS[kind], b"", HTML, {"Location": f"{origin}/elsewhere"})
        if kind == "html":
            return html_answer("Please sign in")
        if kind == "echo-token":
            return json_answer({"status": f"bad token {self._token}"}, 500, {"X-Token": self._token})
        if kind == "bomb":
            return Answer(200, self._bomb_bytes(), headers={"Content-Encoding": "gzip"})
        return None

    def broken(  # noqa: PLR0911 (one a kind)
        self, kind: str, answer: Answer, date: str | None
    ) -> Raw:
        """Return an answer of the service broken in the way of a fault of `AFTER`."""
        body, half, status = answer.body, len(answer.body) // 2, answer.status
        match kind:
            case "drop-before-status":
                return Raw(b"", ending="abort")
            case "drop-mid-headers":
                whole = head(answer, date, length=len(body), ending="keep")
                return Raw(whole[: len(whole) // 2], ending="abort")
            case "drop-mid-body" | "cut-length":
                start = head(answer, date, length=len(body), ending="keep")
                return Raw(start + body[:half], ending="abort" if kind == "drop-mid-body" else "close", status=status)
            case "cut-chunked":
                start = head(answer, date, length=None, ending="keep", extra="Transfer-Encoding: chunked\r\n")
                return Raw(start + b"%x\r\n%s\r\n" % (max(half, 1), body[: max(half, 1)]), ending="close")
            case "cut-close":
                return Raw(head(answer, date, length=None, ending="close") + body[:half], ending="close")
            case "drip":
                start = head(answer, date, length=len(body), ending="close")
                return Raw(start + body, ending="close", pause=self.faults.drip_seconds)
            case _:
                garbled = _garbled(kind, answer)
                return Raw(head(garbled, date, length=len(garbled.body), ending="keep") + garbled.body, status=status)

    # Inside.

    def _weigh(self) -> None:
        self.quiet = not self.script and self.faults == Faults()

    def _chance(self) -> str | None:
        faults = self.faults
        if faults.error_share and self._rng.random() < faults.error_share:
            return str(self._rng.choice(faults.error_statuses))
        for kind, share in faults.shares.items():
            if self._rng.random() < share:
                return kind
        return None

    def _bucket(self) -> float:
        return self.faults.rate_burst or max(self.faults.rate_limit, 1.0)

    def _take(self) -> bool:
        now = time.monotonic()
        self._tokens = min(self._bucket(), self._tokens + (now - self._filled) * self.faults.rate_limit)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _status(self, status: int) -> Answer:
        headers = self._retry_after() if status in _SPEAKING else {}
        if self._rng.random() < 0.5:
            return replace(html_answer(f"Error {status}", status), headers=headers)
        return json_answer({"status": "error", "reason": f"Error {status}"}, status, headers)

    def _retry_after(self) -> Mapping[str, str]:
        seconds = self.faults.retry_after_seconds
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

    def _bomb_bytes(self) -> bytes:
        """Return gzip that unpacks to a JSON string of 1 GB; made once, in pieces, as it must not hurt us."""
        if self._bomb is None:
            packer = zlib.compressobj(9, zlib.DEFLATED, 31)
            piece = b"a" * (1 << 20)
            parts = [packer.compress(b'{"data":"')] + [packer.compress(piece) for _ in range(1024)]
            self._bomb = b"".join([*parts, packer.compress(b'"}'), packer.flush()])
        return self._bomb


def _garbled(kind: str, answer: Answer) -> Answer:
    """Return an answer with a complete transfer of a wrong body."""
    body = answer.body
    if kind == "cut-json":
        return replace(answer, body=body[: len(body) // 2])
    coded = {**answer.headers, "Content-Encoding": "gzip"}
    packed = gzip.compress(body, 5, mtime=0)
    if kind == "gzip-no-trailer":
        return replace(answer, body=packed[:-8], headers=coded)
    if kind == "gzip-half":
        return replace(answer, body=packed[: len(packed) // 2], headers=coded)
    if kind == "gzip-lie":
        return replace(answer, headers=coded)
    return replace(answer, headers={**answer.headers, "Content-Encoding": "br2"})
