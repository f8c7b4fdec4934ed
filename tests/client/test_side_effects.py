"""Shares and report orders are never repeated."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.client.errors import OutcomeUnknownError, RequestRejectedError, RetriesExhaustedError
from pipeline.errors import AuthenticationError, ProtocolError
from schemas.requests import ReportRequest, ShareRequest
from tests.client.scripted_server import Close, Reset, Wait, answer, scripted

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pipeline.client.client import Client
    from tests.client.conftest import Make

pytestmark = pytest.mark.virtual_time
SHARED = answer({"response": "success", "status": "SHARE CREATED", "share_url": "https://s.example/1"})
ORDERED = answer({"url": "https://r.example/1"}, status=201)


def share(client: Client) -> Awaitable[Any]:
    """Share a file."""
    return client.create_share(ShareRequest(reference="a", email="someone@example.com"))


def order(client: Client) -> Awaitable[Any]:
    """Order a report."""
    return client.order_report(ReportRequest(files=(1, 2)))


BOTH = pytest.mark.parametrize("act", [share, order])


@BOTH
@pytest.mark.parametrize(
    "steps",
    [
        [Reset()],
        [Close()],
        [b"HTTP/1.1 200 OK\r\nContent-Le", Close()],
        [answer({"x": "y"})[:-3], Close()],
        answer(b"<html>"),
        answer({}),
        answer(status=500),
        answer(status=503),
        [Wait(100)],
    ],
    ids=["reset", "close", "cut head", "cut body", "page", "empty", "500", "503", "stall"],
)
async def test_a_request_that_may_have_taken_effect_is_not_repeated(act: Any, steps: Any, client: Make) -> None:
    """A request that may have reached the service is sent exactly once, and its outcome is unknown."""
    async with scripted([steps]) as server, client(server.base) as asking:
        with pytest.raises(OutcomeUnknownError, match="may have taken effect"):
            await act(asking)
        assert len(server.asked) == 1


@BOTH
async def test_a_closed_keep_alive_connection_is_not_retried(act: Any, client: Make) -> None:
    """Aiohttp's own retry on a keep-alive connection is disabled."""
    async with scripted([answer(status=404), [Close()], SHARED]) as server, client(server.base) as asking:
        await asking.get_file(5)
        with pytest.raises(OutcomeUnknownError):
            await act(asking)
        assert len(server.asked) == 2


@BOTH
async def test_a_throttled_request_is_repeated(act: Any, client: Make) -> None:
    """A 429 means that nothing took effect: only then the request is repeated."""
    script = [answer(status=429, headers=[("Retry-After", "0")]), SHARED if act is share else ORDERED]
    async with scripted(script) as server, client(server.base) as asking:
        assert (await act(asking)).url
        assert len(server.asked) == 2


@BOTH
async def test_a_pause_that_is_too_long_ends_the_call(act: Any, client: Make) -> None:
    """A Retry-After above the limit is not waited for: one request, one message, and other calls continue."""
    script = [answer(status=429, headers=[("Retry-After", "1000000000")]), answer({"id": 5})]
    async with scripted(script) as server, client(server.base) as asking:
        with pytest.raises(RetriesExhaustedError, match="Retry-After"):
            await asyncio.wait_for(act(asking), 5)
        assert len(server.asked) == 1
        await asyncio.wait_for(asking.get_file(5), 5)


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
                await order(asking)
            assert raised.value.is_answered, number
            assert len(server.asked) == 1


@BOTH
async def test_a_request_without_a_connection_failed(act: Any, client: Make) -> None:
    """Without a connection nothing can have taken effect: that is an ordinary failure."""
    async with scripted(SHARED) as server:
        base = server.base
    async with client(base) as asking:
        with pytest.raises(RetriesExhaustedError, match="no connection"):
            await act(asking)


@BOTH
@pytest.mark.parametrize("status", [302, 307, 308])
async def test_redirects_are_not_followed(act: Any, status: int, client: Make) -> None:
    """Neither a share nor an order follows a redirect, not even within the service."""
    moved = answer(status=status, headers=[("Location", "/api/v2/elsewhere")])
    async with scripted(moved) as server, client(server.base) as asking:
        with pytest.raises(ProtocolError):
            await act(asking)
        assert len(server.asked) == 1


@BOTH
async def test_rejections_and_authentication_errors_differ(act: Any, client: Make) -> None:
    """A rejected request has the service's reason; a refused token is an authentication error."""
    refusal = {"response": "error", "status": "NO FILE FOUND"}
    async with scripted(answer(refusal, status=404)) as server, client(server.base) as asking:
        with pytest.raises(RequestRejectedError, match="NO FILE FOUND"):
            await act(asking)
        assert len(server.asked) == 1
    denied = answer({"response": "error", "status": "Unauthorized"}, status=401)
    async with scripted(denied) as server, client(server.base) as asking:
        with pytest.raises(AuthenticationError):
            await act(asking)


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
