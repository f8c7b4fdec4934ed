"""The image host: a second origin with the pictures of all uploads behind signed links."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from pipeline.emulator.documents import DocumentRenderer
from pipeline.emulator.faults import FaultInjector
from pipeline.emulator.http import (
    RawResponse,
    Response,
    find_credentials,
    format_date,
    render_head,
    to_html_response,
    to_raw_response,
)
from pipeline.emulator.options import Faults, ImageOptions, replace_fields
from pipeline.emulator.pictures import KINDS, Kind, Picture, Pictures
from pipeline.emulator.timestamps import SECOND

_PATH_RE = re.compile(r"/images/([0-9a-f]{1,16})/(full|thumb)\.jpg")
_KINDS: dict[str, Kind] = {"full": "image", "thumb": "thumbnail"}
_FOREVER = 4_102_444_800  # 2100-01-01, as seconds since 1970
_SLOW_PIECES = 10


class ImageHost:
    """Signs links and serves pictures; `url` is its origin once it listens.

    `fetches` counts the complete answers per (upload id, kind), `counts` all answers by what they were, and
    `leaks` names the credentials that arrived, which must never happen.
    """

    def __init__(self, documents: DocumentRenderer, options: ImageOptions, faults: Faults, token: str) -> None:
        self.options = options
        self.pictures = Pictures(documents, options)
        self.faults = FaultInjector(faults, documents.world.plan.seed, token)
        self.url = ""
        self._documents = documents
        self._token = token
        self._key = f"links:{documents.world.plan.seed}".encode()
        self._nonce = 0
        self.in_flight = 0
        self.reset()

    def set_options(self, **settings: Any) -> None:
        """Change some options."""
        self.options = replace_fields(self.options, settings)
        self.pictures.set_options(self.options)

    def set_faults(self, **settings: Any) -> None:
        """Change some fields of the current faults of this host; the service has faults of its own."""
        self.faults.set(replace_fields(self.faults.faults, settings))

    def reset(self) -> None:
        """Clear all counters."""
        self.counts: Counter[str] = Counter()
        self.faults.injected.clear()
        self.fetches: Counter[tuple[int, Kind]] = Counter()
        self.leaks: list[str] = []
        self.sent_bytes = 0
        self.max_in_flight = self.in_flight

    def read_state(self) -> dict[str, Any]:
        """Return the counters as JSON."""
        return {
            "url": self.url,
            "requests": self.counts.total() + self.faults.injected.total(),
            "counts": dict(self.counts) | {f"fault {kind}": count for kind, count in self.faults.injected.items()},
            "fetched": len(self.fetches),
            "repeated": self.fetches.total() - len(self.fetches),
            "bytes": self.sent_bytes,
            "leaks": self.leaks,
            "max_in_flight": self.max_in_flight,
        }

    # The truth.

    def truth(self) -> Iterator[dict[str, Any]]:
        """Yield each picture of each file: what a complete download must give.

        {file_id, upload_id, kind, outcome, sha256, bytes, mime, width, height}. `outcome` is what a download gives
        now: served, slow, or why it cannot succeed. A PDF has no size.
        """
        world = self._documents.world
        for key in world.keys():  # noqa: SIM118 (a copy: the world may change between two files)
            record = world.records.get(key)
            for subject in self.pictures.list_subjects(record).values() if record is not None else ():
                for kind in KINDS:
                    picture = self.pictures.build(subject, kind)
                    yield {
                        "file_id": key,
                        "upload_id": subject.upload_id,
                        "kind": kind,
                        "outcome": self.pictures.choose_outcome(subject.upload_id),
                        "sha256": hashlib.sha256(picture.body).hexdigest(),
                        "bytes": len(picture.body),
                        "mime": picture.mime,
                        "width": picture.width,
                        "height": picture.height,
                    }

    def read_picture(self, upload_id: int, kind: Kind = "image") -> bytes:
        """Return the bytes that a complete download must give. Raise KeyError for an unknown upload."""
        subject = self.pictures.find_subject(upload_id)
        if subject is None:
            raise KeyError(upload_id)
        return self.pictures.build(subject, kind).body

    # Links.

    def sign(self) -> bytes:
        """Return the query of the links of one response, without the question mark."""
        lifetime, now = self.options.link_seconds, self._now()
        if self._documents.quirks.image_urls == "fresh":
            self._nonce += 1
            expires = int(now + lifetime) if lifetime else _FOREVER
            return self._build_query(self._nonce, expires)
        # A stable link changes only when its period ends, and is then valid for another one.
        return self._build_query(0, int((now // lifetime + 2) * lifetime) if lifetime else _FOREVER)

    def _build_query(self, nonce: int, expires: int) -> bytes:
        text = f"{nonce:010d}"
        code = hashlib.blake2b(f"{text}:{expires}".encode(), key=self._key, digest_size=8).hexdigest()
        return f"signature={text}{code}&expires={expires}".encode()

    def _check_link(self, query: str) -> Response | None:
        """Return the refusal of a link, None if it is valid."""
        args = dict(parse_qsl(query))
        signature, expires = args.get("signature", ""), args.get("expires", "")
        if not (signature[:10].isdigit() and expires.isdigit()):
            return _build_refusal("AccessDenied", "The link is not signed.")
        if f"signature={signature}&expires={expires}".encode() != self._build_query(int(signature[:10]), int(expires)):
            return _build_refusal("SignatureDoesNotMatch", "The signature is wrong.")
        if self._now() >= int(expires):
            return _build_refusal("AccessDenied", "Request has expired.")
        return None

    def _now(self) -> float:
        """Return the time of the world in seconds since 1970."""
        return self._documents.world.clock.now() / SECOND

    # Requests.

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle one request; each is counted and may get a fault."""
        path, _, query = request.raw_path.partition("?")
        self.leaks.extend(find_credentials(request, self._token))
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)

        async def find() -> Response:
            return self._find(path, query)[0]

        try:
            return await self.faults.handle(
                path,
                partial(self._respond, request, path, query),
                find,
                partial(self._send, request),
                self._format_date(),
            )
        finally:
            self.in_flight -= 1

    async def _respond(  # noqa: PLR0911 (one return per outcome)
        self, request: web.BaseRequest, path: str, query: str
    ) -> web.StreamResponse:
        """Answer without a fault, by the outcome of the upload."""
        response, target = self._find(path, query)
        if target is None:
            self.counts[str(response.status)] += 1
            return self._send(request, response)
        outcome = self.pictures.choose_outcome(target[0])
        self.counts[outcome if outcome != "served" else target[1]] += 1
        match outcome:
            case "removed":
                return self._send(request, to_html_response("No such picture", 404))
            case "broken":
                return self.faults.corrupt_response(self.options.broken, response, self._format_date())
            case "html":
                return self._send(request, to_html_response("Please sign in"))
            case "huge":
                return self._send(request, replace(response, body=response.body.ljust(self.options.huge_bytes, b"\0")))
        self.fetches[target] += 1
        self.sent_bytes += len(response.body)
        if outcome == "slow":
            head = render_head(response, self._format_date(), length=len(response.body), ending="close")
            step = len(response.body) // _SLOW_PIECES + 1
            data = head + response.body
            return RawResponse(data, ending="close", pause=self.options.slow_seconds / _SLOW_PIECES, step=step)
        return self._send(request, response)

    def _find(self, path: str, query: str) -> tuple[Response, tuple[int, Kind] | None]:
        """Return the response of a link, and the picture that it is, None for a refusal."""
        refusal = self._check_link(query)
        if refusal is not None:
            return refusal, None
        match = _PATH_RE.fullmatch(path)
        upload_id = int(match[1], 16) if match else 0
        subject = self.pictures.find_subject(upload_id) if match else None
        if match is None or subject is None:
            return to_html_response("No such picture", 404), None
        kind = _KINDS[match[2]]
        picture: Picture = self.pictures.build(subject, kind)
        return Response(200, picture.body, picture.mime), (upload_id, kind)

    def _send(self, request: web.BaseRequest, response: Response) -> RawResponse:
        return to_raw_response(request, response, self._format_date())

    def _format_date(self) -> str:
        return format_date(int(self._now()))


def _build_refusal(code: str, message: str) -> Response:
    """Return a 403 as object stores send it."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return Response(403, body.encode(), "application/xml")
