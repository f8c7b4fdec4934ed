"""The token is in no message, log, repr, traceback or stored document, however the service returns it."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import traceback
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pytest

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import Detail
from pipeline.errors import ScanlakeError
from schemas.file_query import FileQuery
from schemas.requests import ReportRequest, ShareRequest
from tests.client.conftest import CANARY, spell_token
from tests.client.scripted_server import Asked, Close, Reset, answer, scripted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.client.client import Client
    from tests.client.conftest import Make

pytestmark = pytest.mark.virtual_time
SPELLINGS = spell_token(CANARY)
ESCAPED = CANARY.replace("A", "\\u0041").replace("/", "\\/", 1)


def leaks(text: str) -> bool:
    """Return whether the text contains any form of the token."""
    return any(spelling in text for spelling in SPELLINGS)


def everything_about(error: BaseException) -> str:
    """Return what a log or debugger could show of an error and its causes."""
    seen: list[str] = []
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None:
            seen += [str(one), repr(one), repr(getattr(one, "__dict__", {})), repr(one.args)]
            todo += [one.__cause__, one.__context__]
    return "\n".join([*seen, *traceback.format_exception(error)])


def echoes() -> list[Any]:
    """Return answers that contain the token in every place and form."""
    found: list[Any] = []
    for spelling in SPELLINGS:
        for status in (200, 400, 401, 404, 422, 429, 500, 503):
            body = {"status": "error", "reason": f"bad token {spelling}", "errors": {"token": [spelling]}}
            found.append(answer(body, status=status, headers=[("Retry-After", "0"), ("X-Echo", spelling)]))
        found.append(answer(f"<html>{spelling}".encode(), status=500))
        found.append(answer(status=302, headers=[("Location", f"http://127.0.0.2:1/?token={spelling}")]))
        found.append([f"HTTP/1.1 {spelling}\r\n\r\n".encode(), Close()])
        found.append(answer(b"x", headers=[("Content-Encoding", spelling)]))
    found.append(answer(f'{{"reason": "bad token {ESCAPED}", "errors": {{"{ESCAPED}": [1]}}}}'.encode(), status=422))
    found += [[Reset()], [Close()], [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", Close()]]
    return found


REQUESTS: Final[list[Callable[[Client, str], Any]]] = [
    lambda asking, _: asking.get_file(5),
    lambda asking, _: asking.list_files(FileQuery()),
    lambda asking, _: asking.create_share(ShareRequest(reference="a")),
    lambda asking, _: asking.order_report(ReportRequest(files=(1,))),
    lambda asking, base: asking.download_report(f"{base}/r?token={quote(CANARY, safe='')}", io.BytesIO()),
]


@pytest.mark.parametrize("place", ["query", "header"])
async def test_no_error_shows_the_token(place: str, client: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever the service answers to any request, no error and no log line contains the token."""
    errors = 0
    for steps in echoes():
        async with scripted([steps]) as server:
            for ask in REQUESTS:
                async with client(server.base, max_attempts=1 + (place == "query"), token_location=place) as asking:
                    found: Any = (await asyncio.gather(ask(asking, server.base), return_exceptions=True))[0]
                    if isinstance(found, BaseException):
                        errors += 1
                        assert isinstance(found, ScanlakeError)
                        assert not leaks(f"{found.hint} {everything_about(found)}")
                    assert not leaks(f"{asking!r} {asking.__dict__['rate_limiter'].state} {asking.stats}")
    assert errors > 200
    shown = "".join(capfd.readouterr())
    assert "request.retried" in shown
    assert not leaks(shown)


async def test_connections_that_fail_do_not_show_the_token(client: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer aiohttp's errors contain the URL; the client's do not."""

    async def fail_to_resolve(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "no such host")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail_to_resolve)
    for base, kind in (("http://127.0.0.1:1", "connect"), ("https://no-such-host.invalid", "dns")):
        async with client(base, max_attempts=2) as asking:
            with pytest.raises(RetriesExhaustedError) as raised:
                await asking.get_file(5)
            assert raised.value.kind == kind
            assert not leaks(everything_about(raised.value))


async def test_the_warning_claims_nothing_of_the_lake(client: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """A page with the token, which is dropped and asked for again, warns, and nothing says that the lake has it."""
    page = answer(f"<html>{SPELLINGS[0]}</html>".encode(), headers=[("Content-Type", "text/html")])
    pages = [page, answer(b'{"id": 5}')]
    async with scripted(lambda _: pages.pop(0)) as server, client(server.base) as asking:
        assert isinstance(await asking.get_file(5), Detail)
    shown = "".join(capfd.readouterr())
    assert (shown.count("token.redacted"), pages) == (1, [])
    assert "the service sends the token in its answers" in shown
    assert "The lake holds" not in shown


async def test_documents_are_stored_without_the_token(client: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """A token inside a document is removed before the document is stored, and one warning says so."""

    def script(asked: Asked) -> bytes:
        links = [f'"k{place}": "https://x/?token={spelling}"' for place, spelling in enumerate([*SPELLINGS, ESCAPED])]
        body = f'{{"id": 5, {", ".join(links)}}}'
        return answer((body if asked.path.endswith("/5") else f'{{"data":[{body}]}}').encode())

    async with scripted(script) as server, client(server.base) as asking:
        detail = await asking.get_file(5)
        assert isinstance(detail, Detail)
        item = (await asking.list_files(FileQuery())).items[0]
        for raw in (detail.raw, item.raw):
            assert not leaks(f"{raw.decode()} {json.loads(raw)}")
            assert json.loads(raw)["k0"] == "https://x/?token=***"
    shown = "".join(capfd.readouterr())
    assert shown.count("token.redacted") == 1
    assert not leaks(shown)
