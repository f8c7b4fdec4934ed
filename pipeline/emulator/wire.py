"""Answers as bytes: written straight to the connection, so that they can be fast, and broken on purpose."""

import asyncio
import gzip
import http
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import Any, Literal

import msgspec
from aiohttp import web

Ending = Literal["keep", "close", "abort"]

JSON = "application/json"
HTML = "text/html; charset=UTF-8"
_PHRASES = {int(status): status.phrase for status in http.HTTPStatus}
_GZIP_FROM = 200  # smaller bodies grow


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service says: status, body and headers beyond those that every answer has."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer whose body is a JSON value."""
    return Answer(status, msgspec.json.encode(value), headers=headers or {})


def html_answer(title: str, status: int = 200) -> Answer:
    """Return a page as gateways and log-in screens send it."""
    page = f"<!DOCTYPE html><html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>"
    return Answer(status, page.encode(), HTML)


def zipped(answer: Answer) -> Answer:
    """Return the answer compressed, unless it is too small for that."""
    if len(answer.body) < _GZIP_FROM:
        return answer
    headers = {**answer.headers, "Content-Encoding": "gzip"}
    return replace(answer, body=gzip.compress(answer.body, 5, mtime=0), headers=headers)


def head(answer: Answer, date: str | None, *, length: int | None, ending: Ending, extra: str = "") -> bytes:
    """Return status line and headers; `length` None leaves Content-Length out."""
    phrase = _PHRASES.get(answer.status, "Status")
    lines = f"HTTP/1.1 {answer.status} {phrase}\r\nContent-Type: {answer.content_type}\r\n{extra}"
    if length is not None:
        lines += f"Content-Length: {length}\r\n"
    if date is not None:
        lines += f"Date: {date}\r\n"
    for name, value in answer.headers.items():
        lines += f"{name}: {value}\r\n"
    if ending != "keep":
        lines += "Connection: close\r\n"
    return f"{lines}\r\n".encode("latin-1", "replace")


class DateText:
    """The Date header's text, made anew once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def at(self, moment: float | None = None) -> str:
        """Return a moment (seconds since 1970; None: now) as an HTTP date."""
        second = int(time.time() if moment is None else moment)
        if second != self._second:
            self._second, self._text = second, formatdate(second, usegmt=True)
        return self._text


class Raw(web.StreamResponse):
    """A response that is exactly these bytes, in pieces with pauses, and then this ending.

    aiohttp's own response builds and validates headers; here that would cost half of a request's time
    and forbid the broken answers this emulator exists for.
    """

    def __init__(self, data: bytes, *, status: int = 200, ending: Ending = "keep", pause: float = 0.0) -> None:
        super().__init__(status=status)
        self._data = data
        self._ending = ending
        self._pause = pause

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection lives on."""
        return self._ending == "keep"

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write the bytes; with a pause, one by one."""
        transport = request.transport
        if transport is None:
            return
        if self._ending == "keep" and not request.keep_alive:
            self._ending = "close"
        if self._pause:
            for place in range(len(self._data)):
                if transport.is_closing():
                    return
                transport.write(self._data[place : place + 1])
                await asyncio.sleep(self._pause)
        else:
            transport.write(self._data)
        if self._ending == "close":
            transport.close()
        elif self._ending == "abort":
            # Whatever was written must leave first, or the client sees a bare reset instead of a cut answer.
            await asyncio.sleep(0.005 if self._data else 0)
            transport.abort()

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""
