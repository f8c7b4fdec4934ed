"""Shares and report orders are never repeated."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.client.errors import OutcomeUnknownError, RequestRejectedError, RetriesExhaustedError
from pipeline.errors import AuthenticationError, ProtocolError
from schemas.requests import ReportRequest, ShareRequest
from tests.client.scripted_server import Close, Reset, Wait, answer, scripted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pipeline.client.client import Client
    from tests.client.conftest import Make

pytestmark = pytest.mark.virtual_time
SHARED = answer({"response": "success", "status": "SHARE CREATED", "share_url": "https://s.example/1"})
ORDERED = answer({"url": "https://r.example/1"}, status=201)


CALLS: Final[dict[str, tuple[Callable[[Client], Awaitable[Any]], bytes]]] = {
    "share": (lambda client: client.create_share(ShareRequest(reference="a", email="someone@example.com")), SHARED),
    "order": (lambda client: client.order_report(ReportRequest(files=(1, 2))), ORDERED),
}
REFUSAL: Final = {"response": "error", "status": "NO FILE FOUND"}
DENIAL: Final = {"response": "error", "status": "Unauthorized"}
_UNKNOWN: Final = (OutcomeUnknownError, "may have taken effect")
ENDS: Final[dict[str, tuple[Any, tuple[type[Exception], str]]]] = {
    "reset": ([Reset()], _UNKNOWN),
    "close": ([Close()], _UNKNOWN),
    "cut head": ([b"HTTP/1.1 200 OK\r\nContent-Le", Close()], _UNKNOWN),
    "cut body": ([answer({"x": "y"})[:-3], Close()], _UNKNOWN),
    "page": (answer(b"<html>"), _UNKNOWN),
    "empty": (answer({}), _UNKNOWN),
    "500": (answer(status=500), _UNKNOWN),
    "503": (answer(status=503), _UNKNOWN),
    "stall": ([Wait(100)], _UNKNOWN),
    **{
        f"redirect {status}": (answer(status=status, headers=[("Location", "/api/v2/x")]), (ProtocolError, "redirect"))
        for status in (302, 307, 308)
    },
    "rejected": (answer(REFUSAL, status=404), (RequestRejectedError, "NO FILE FOUND")),
    "denied": (answer(DENIAL, status=401), (AuthenticationError, "token")),
    "long pause": (
        [answer(status=429, headers=[("Retry-After", "1000000000")])],
        (RetriesExhaustedError, "Retry-After that is too long"),
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("end", ENDS)
async def test_a_request_is_sent_once(call: str, end: str, client: Make) -> None:
    """Whatever answers a share or an order, it is sent once; if it may have had an effect, its outcome is unknown."""
    steps, (error, text) = ENDS[end]
    async with scripted([answer({"id": 5}), steps, answer({"id": 5})]) as server, client(server.base) as asking:
        await asking.get_file(5)  # aiohttp repeats a request on a connection that is used again
        started = asyncio.get_running_loop().time()
        with pytest.raises(error, match=text):
            await CALLS[call][0](asking)
        assert len(server.asked) == 2
        if error is not AuthenticationError:
            await asking.get_file(5)  # other calls continue, also after a pause that was not waited for
            assert asyncio.get_running_loop().time() - started <= 6


@pytest.mark.parametrize("call", CALLS)
async def test_what_had_no_effect(call: str, client: Make) -> None:
    """Only after a 429, which has no effect, a request is repeated; without a connection it has simply failed."""
    ask, good = CALLS[call]
    script = [answer(status=429, headers=[("Retry-After", "0")]), good]
    async with scripted(script) as server, client(server.base) as asking:
        assert (await ask(asking)).url
        assert len(server.asked) == 2
    async with client(server.base) as asking:
        with pytest.raises(RetriesExhaustedError, match="no connection"):
            await ask(asking)


ANSWERED: list[Any] = [
    {"response": "error", "status": "INVALID TIMEZONE"},
    {"response": "error", "status": "Too Many Requests"},
    {"response": "error", "status": "Server Error, try again"},
    {"status": "error", "reason": "No file found", "code": 300},
    {"errors": {"files": ["unknown"]}},
    {"data": {"error": "quota used up"}},
    {"id": 17, "state": "queued"},
    *({"url": url} for url in (None, "", 17)),
    [{"url": "https://r.example/1"}],
    b"",
    b"<html>ok</html>",
]


@pytest.mark.parametrize("status", [200, 201, 202])
async def test_an_order_that_is_answered_without_a_url_is_sent_once(status: int, client: Make) -> None:
    """A success without a URL is neither a rejection nor repeated: whether a report exists is unknown."""
    for number, body in enumerate(ANSWERED):
        async with scripted(answer(body, status=status)) as server, client(server.base) as asking:
            with pytest.raises(OutcomeUnknownError, match=r"POST /reports: .*may have taken effect") as raised:
                await CALLS["order"][0](asking)
            assert raised.value.is_answered, number
            assert len(server.asked) == 1


async def test_requests_are_encoded_as_the_interface_defines(client: Make) -> None:
    """A share requests no e-mail; an order is JSON with the token in the query."""
    async with scripted([SHARED, ORDERED]) as server, client(server.base) as asking:
        await asking.create_share(ShareRequest(reference="a b"))
        await asking.order_report(ReportRequest(files=(1, 2), filename="x"))
        shared, ordered = server.asked
        assert (shared.method, shared.path, shared.query["send_email"]) == ("GET", "/api/v2/share", "false")
        assert (ordered.method, ordered.path) == ("POST", "/api/v2/reports")
        assert ordered.query["token"]
        assert json.loads(ordered.body) == {"files": [1, 2], "asynchronous": True, "filename": "x"}
        assert ordered.headers["content-type"] == "application/json"
