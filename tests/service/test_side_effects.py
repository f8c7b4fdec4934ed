"""Shares and report orders: never done twice by us."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import ContractBroken, TokenRefused
from pipeline.service.faults import OutcomeUnknown, RequestFailed, RequestRefused
from schemas.requests import ReportRequest, ShareRequest
from tests.service.scripted import Close, Reset, Wait, answer, scripted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pipeline.service.client import Client

    Make = Callable[..., Client]

SHARED = answer({"response": "success", "status": "SHARE CREATED", "share_url": "https://s.example/1"})
ORDERED = answer({"url": "https://r.example/1"}, status=201)


def share(client: Client) -> Awaitable[Any]:
    """Share a file."""
    return client.share(ShareRequest(reference="a", email="someone@example.com"))


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
        answer(status=502),
        answer(status=503),
        answer(status=504),
        [Wait(5)],
    ],
    ids=["reset", "close", "cut head", "cut body", "page", "empty", "500", "502", "503", "504", "stall"],
)
async def test_what_may_have_happened_is_not_repeated(act: Any, steps: Any, client: Make) -> None:
    """Once the request may have reached the service, it is sent exactly once and its outcome is unknown."""
    async with scripted([steps]) as server, client(server.base, total_timeout=0.4) as asking:
        with pytest.raises(OutcomeUnknown, match="may have taken effect"):
            await act(asking)
        assert len(server.asked) == 1


@BOTH
async def test_a_kept_connection_that_closes_is_no_reason_to_repeat(act: Any, client: Make) -> None:
    """The HTTP library's own second try on a connection that was kept alive does not happen."""
    async with scripted([answer(status=404), [Close()], SHARED]) as server, client(server.base) as asking:
        await asking.get(5)
        with pytest.raises(OutcomeUnknown):
            await act(asking)
        assert len(server.asked) == 2


@BOTH
async def test_what_was_told_to_wait_is_asked_again(act: Any, client: Make) -> None:
    """A 429 says that nothing was done: then, and only then, the request is sent again."""
    script = [answer(status=429, headers=[("Retry-After", "0")]), SHARED if act is share else ORDERED]
    async with scripted(script) as server, client(server.base) as asking:
        assert (await act(asking)).url
        assert len(server.asked) == 2


@BOTH
async def test_what_never_arrived_has_not_happened(act: Any, client: Make) -> None:
    """Without a connection nothing can have taken effect; that is a plain failure."""
    async with scripted(SHARED) as server:
        base = server.base
    async with client(base) as asking:
        with pytest.raises(RequestFailed, match="no connection"):
            await act(asking)


@BOTH
@pytest.mark.parametrize("status", [302, 307, 308])
async def test_redirects_are_not_followed(act: Any, status: int, client: Make) -> None:
    """Neither a share nor an order is sent on to where a redirect leads, the service itself included."""
    moved = answer(status=status, headers=[("Location", "/api/v2/elsewhere")])
    async with scripted(moved) as server, client(server.base) as asking:
        with pytest.raises(ContractBroken):
            await act(asking)
        assert len(server.asked) == 1


@BOTH
async def test_refusals_are_told_apart(act: Any, client: Make) -> None:
    """A refused request carries the service's reason, a refused token is a refused token."""
    refusal = {"response": "error", "status": "NO FILE FOUND"}
    async with scripted(answer(refusal, status=404)) as server, client(server.base) as asking:
        with pytest.raises(RequestRefused, match="NO FILE FOUND"):
            await act(asking)
        assert len(server.asked) == 1
    denied = answer({"response": "error", "status": "Unauthorized"}, status=401)
    async with scripted(denied) as server, client(server.base) as asking:
        with pytest.raises(TokenRefused):
            await act(asking)


async def test_requests_are_spelled_as_the_interface_says(client: Make) -> None:
    """A share says that no e-mail is wanted; an order is JSON with the token in the query."""
    async with scripted([SHARED, ORDERED]) as server, client(server.base) as asking:
        await asking.share(ShareRequest(reference="a b"))
        await asking.order_report(ReportRequest(files=(1, 2), filename="x"))
        shared, ordered = server.asked
        assert (shared.method, shared.path, shared.query["send_email"]) == ("GET", "/api/v2/share", "false")
        assert (ordered.method, ordered.path) == ("POST", "/api/v2/reports")
        assert ordered.query["token"]
        assert json.loads(ordered.body) == {"files": [1, 2], "asynchronous": True, "filename": "x"}
        assert ordered.headers["content-type"] == "application/json"
