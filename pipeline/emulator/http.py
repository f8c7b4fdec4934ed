"""Responses as bytes, written directly to the connection: fast, and can be broken on purpose."""

import asyncio
import gzip
import http
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import unquote

import msgspec
from aiohttp import web

Ending = Literal["keep", "close", "abort"]

JSON = "application/json"
HTML = "text/html; charset=UTF-8"
_PHRASES = {int(status): status.phrase for status in http.HTTPStatus}
_GZIP_MIN_BYTES = 200  # smaller bodies would grow


@dataclass(frozen=True, slots=True)
class Response:
    """Response of the service: status, body and headers in addition to the usual ones."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


def to_json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a JSON body."""
    return Response(status, msgspec.json.encode(value), headers=headers or {})


def to_html_response(title: str, status: int = 200) -> Response:
    """Return an HTML page as gateways and login screens send it."""
    page = f"<!DOCTYPE html><html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>"
    return Response(status, page.encode(), HTML)


def gzip_response(response: Response) -> Response:
    """Return the response compressed, unless it is too small."""
    if len(response.body) < _GZIP_MIN_BYTES:
        return response
    headers = {**response.headers, "Content-Encoding": "gzip"}
    return replace(response, body=gzip.compress(response.body, 5, mtime=0), headers=headers)


def render_head(response: Response, date: str | None, *, length: int | None, ending: Ending, extra: str = "") -> bytes:
    """Return status line and headers; without `length` there is no Content-Length."""
    phrase = _PHRASES.get(response.status, "Status")
    lines = f"HTTP/1.1 {response.status} {phrase}\r\nContent-Type: {response.content_type}\r\n{extra}"
    if length is not None:
        lines += f"Content-Length: {length}\r\n"
    if date is not None:
        lines += f"Date: {date}\r\n"
    for name, value in response.headers.items():
        lines += f"{name}: {value}\r\n"
    if ending != "keep":
        lines += "Connection: close\r\n"
    return f"{lines}\r\n".encode("latin-1", "replace")


def find_credentials(request: web.BaseRequest, token: str) -> list[str]:
    """Return the names of the credentials that a request carries, for URLs that need none."""
    credentials = [name for name in ("token", "authorization", "cookie", "referer") if name in request.headers]
    if "token=" in request.raw_path or token in unquote(request.raw_path):
        credentials.append("query")
    return credentials


@lru_cache(maxsize=2)
def format_date(second: int) -> str:
    """Return a time (seconds since 1970) as an HTTP date."""
    return formatdate(second, usegmt=True)


class RawResponse(web.StreamResponse):
    """Response of exactly these bytes, with an optional pause after each step and a defined ending.

    aiohttp's own response builds and validates headers. That takes half of the time of a request and rejects
    the broken responses that the emulator must send.
    """

    def __init__(
        self, data: bytes, *, status: int = 200, ending: Ending = "keep", pause: float = 0.0, step: int = 1
    ) -> None:
        super().__init__(status=status)
        self._data = data
        self._ending = ending
        self._pause = pause
        self._step = step

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection stays open."""
        return self._ending == "keep"

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write the bytes; with a pause, `step` at a time."""
        transport = request.transport
        if transport is None:
            return
        if self._ending == "keep" and not request.keep_alive:
            self._ending = "close"
        if self._pause:
            for index in range(0, len(self._data), self._step):
                if transport.is_closing():
                    return
                transport.write(self._data[index : index + self._step])
                await asyncio.sleep(self._pause)
        else:
            transport.write(self._data)
        if self._ending == "close":
            transport.close()
        elif self._ending == "abort":
            # The written bytes must leave first, or the client sees only a reset instead of a truncated response.
            await asyncio.sleep(0.005 if self._data else 0)
            transport.abort()

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: `prepare` has written everything."""


def to_raw_response(request: web.BaseRequest, response: Response, date: str | None) -> RawResponse:
    """Return a response as it is sent without a fault."""
    ending: Ending = "keep" if request.keep_alive else "close"
    head = render_head(response, date, length=len(response.body), ending=ending)
    body = b"" if request.method == "HEAD" else response.body
    return RawResponse(head + body, status=response.status, ending=ending)
