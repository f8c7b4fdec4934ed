"""Network and HTTP failures, byte for byte, and the client's result."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.client.concurrency_search import INITIAL_CONCURRENCY
from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import Detail, NotFound
from pipeline.errors import AuthenticationError, ProtocolError, ServiceUnavailableError
from schemas.requests import FileQuery
from tests.client.scripted_server import Asked, Close, Reset, Wait, answer, scripted

if TYPE_CHECKING:
    from tests.client.conftest import Make

GOOD = answer({"id": 5})
BODY = json.dumps({"id": 5, "text": "x" * 200}).encode()
PACKED = gzip.compress(BODY)
GZIP = [("Content-Encoding", "gzip")]

FAULTS: dict[str, tuple[Any, str]] = {
    "reset before the status": ([Reset()], "closed"),
    "close before the status": ([Close()], "closed"),
    "reset in the status": ([b"HTTP/1.1 2", Reset()], "closed"),
    "close in the headers": ([GOOD[:30], Close()], "closed"),
    "reset in the body": ([answer(BODY)[:-50], Wait(0.05), Reset()], "closed|cut"),
    "close in the body": ([answer(BODY)[:-50], Close()], "cut"),
    "no body at all": ([answer(length=False), Close()], "cut"),
    "cut without a length": ([answer(BODY[:-50], length=False), Close()], "json"),
    "cut chunked": ([answer(b"5\r\n{'id'", headers=[("Transfer-Encoding", "chunked")], length=False), Close()], "cut"),
    "gzip without its trailer": (answer(PACKED[:-8], headers=GZIP), "cut"),
    "half a gzip": (answer(PACKED[: len(PACKED) // 2], headers=GZIP), "cut"),
    "not gzip at all": (answer(BODY, headers=GZIP), "cut"),
    "unknown encoding": (answer(BODY, headers=[("Content-Encoding", "br2")]), "encoding"),
    "nested encodings": (answer(PACKED, headers=GZIP * 50), "encoding|malformed"),
    "two lengths": (answer(BODY, headers=[("Content-Length", "3")]), "malformed"),
    "negative length": (answer(BODY, headers=[("Content-Length", "-3")], length=False), "malformed"),
    "HTTP/0.9": ([BODY, Close()], "malformed|closed"),
    "TLS bytes": ([b"\x16\x03\x01\x02\x00\x01\x00", Close()], "malformed|closed"),
    "a header of 100 kB": (answer(BODY, headers=[("X-Long", "x" * 100_000)]), "malformed"),
    "500": (answer(b"<html>oops", status=500), "status-500"),
    "502": (answer(status=502), "status-502"),
    "504": (answer(status=504), "status-504"),
    "a page in a 200": (answer(b"<html>maintenance"), "html"),
    "cut JSON in a 200": (answer(b'{"id": 5, "sca'), "json"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_failed_attempt_is_retried(name: str, client: Make) -> None:
    """A single failure is retried; a permanent one ends after all attempts with its kind and count."""
    steps, kind = FAULTS[name]
    async with scripted([steps, GOOD]) as server, client(server.base) as asking:
        found = await asking.get_file(5)
        assert isinstance(found, Detail)
        assert asking.stats.retries == 1
        assert len(server.asked) == 2
        assert set(asking.stats.error_kinds) <= set(kind.split("|"))
    async with scripted([steps]) as server, client(server.base) as asking:
        with pytest.raises(RetriesExhaustedError, match=r"GET /files/5: .* \(after 3 attempts\)") as raised:
            await asking.get_file(5)
        assert raised.value.kind in kind.split("|")
        assert raised.value.attempts == len(server.asked) == 3


@pytest.mark.parametrize(
    "steps",
    [
        answer(PACKED, headers=GZIP),
        [answer(BODY, length=False), Close()],
        [b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", answer(BODY)],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n"
        b"5;ext=1\r\n"
        + BODY[:5]
        + b"\r\n"
        + f"{len(BODY) - 5:x}".encode()
        + b"\r\n"
        + BODY[5:]
        + b"\r\n0\r\nX: y\r\n\r\n",
        [answer(BODY)[:-100], Wait(0.05), answer(BODY)[-100:]],
    ],
    ids=["gzip", "ended by close", "early hints", "chunk extensions and trailers", "in two parts"],
)
async def test_unusual_but_valid_answers(steps: Any, client: Make) -> None:
    """Every valid way of sending a body is read on the first attempt."""
    async with scripted([steps]) as server, client(server.base) as asking:
        found = await asking.get_file(5)
        assert isinstance(found, Detail)
        assert found.raw == BODY
        assert not asking.stats.error_kinds


async def test_a_stall_ends(client: Make) -> None:
    """A request without an answer times out; other requests continue."""

    def script(asked: Asked) -> Any:
        return [Wait(30)] if asked.path.endswith("/6") else GOOD

    async with scripted(script) as server, client(server.base, attempt_timeout_seconds=0.3, max_attempts=2) as asking:
        stuck = asyncio.ensure_future(asking.get_file(6))
        for _ in range(20):
            assert isinstance(await asking.get_file(5), Detail)
        with pytest.raises(RetriesExhaustedError) as raised:
            await stuck
        assert raised.value.kind == "timeout"


async def test_a_slow_body_ends(client: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that arrives byte by byte fails for its throughput, long before the timeout."""
    monkeypatch.setattr("pipeline.client.body_reader._THROUGHPUT_GRACE_SECONDS", 0.2)
    drip = [answer(BODY)[:-100], *[step for _ in range(80) for step in (Wait(0.02), b"x")]]
    async with scripted([drip]) as server, client(server.base, max_attempts=1, min_bytes_per_second=5000) as asking:
        with pytest.raises(RetriesExhaustedError) as raised:
            await asking.get_file(5)
        assert raised.value.kind == "slow"


@pytest.mark.parametrize("declared", [True, False])
async def test_a_large_answer_is_capped(declared: bool, client: Make) -> None:  # noqa: FBT001
    """An answer above the size limit fails and is not retried, with or without length or compression."""
    big = b'{"id": 5, "x": "' + b"x" * 300_000 + b'"}'
    for script in ([answer(big, length=declared), Close()], answer(gzip.compress(big), headers=GZIP)):
        async with scripted([script]) as server, client(server.base, max_body_bytes=100_000) as asking:
            with pytest.raises(RetriesExhaustedError, match="more than 100,000 bytes") as raised:
                await asking.get_file(5)
            assert raised.value.attempts == len(server.asked) == 1


async def test_refused_at_the_start(client: Make) -> None:
    """A refused connection ends within the initial connect time, as an outage."""
    async with scripted(GOOD) as server:
        base = server.base
    async with client(base) as asking:
        with pytest.raises(ServiceUnavailableError, match="no connection") as raised:
            await asking.get_file(5)
        assert isinstance(raised.value, RetriesExhaustedError)
        assert raised.value.kind == "connect"


async def test_proxies_and_netrc_are_ignored(client: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Proxies and credentials of the environment are not used."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    async with scripted(answer(status=500)) as proxy, scripted(GOOD) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.base)
        async with client(server.base) as asking:
            assert isinstance(await asking.get_file(5), Detail)
        assert not proxy.asked
        assert "authorization" not in server.asked[0].headers


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_token_stops_all_requests(status: int, client: Make) -> None:
    """Waiting and later calls fail without another request."""
    async with scripted([[Wait(0.05), answer(status=status)]]) as server, client(server.base) as asking:
        results = await asyncio.gather(*(asking.get_file(number) for number in range(100)), return_exceptions=True)
        assert all(isinstance(result, AuthenticationError) for result in results)
        assert len(server.asked) <= INITIAL_CONCURRENCY
        asked = len(server.asked)
        with pytest.raises(AuthenticationError):
            await asking.list_files(FileQuery())
        assert len(server.asked) == asked


async def test_a_rejected_list_is_not_retried(client: Make) -> None:
    """A rejected list fails immediately with method, path and status."""
    for status in (400, 404, 405, 410, 418, 422):
        async with scripted(answer({"message": "bad?query"}, status=status)) as server, client(server.base) as asking:
            with pytest.raises(ProtocolError, match=f"GET /files: HTTP {status}: bad\\?query"):
                await asking.list_files(FileQuery())
            assert len(server.asked) == 1


@pytest.mark.parametrize(("status", "says"), [(200, "without `data`"), (201, "HTTP 201"), (299, "HTTP 299")])
async def test_a_list_that_never_has_data_is_a_protocol_error(status: int, says: str, client: Make) -> None:
    """`{}` on the list, or another success than 200, is retried, and then a protocol error rather than an outage."""
    async with scripted(answer({}, status=status)) as server, client(server.base) as asking:
        with pytest.raises(ProtocolError, match=says):
            await asking.list_files(FileQuery())
        assert len(server.asked) == 3


async def test_requests_have_query_and_token(client: Make) -> None:
    """The query is encoded as the interface defines it; the token is in query or header; no cookie is ever sent."""
    cookies = [("Set-Cookie", f"c{number}=x; Path=/") for number in range(100)]
    async with scripted(answer({"data": []}, headers=cookies)) as server:
        async with client(f"{server.base}/tenant/api/v2/", token="a+b/c==") as asking:
            await asking.list_files(FileQuery(include=("uploads", "forms"), reference="ü & b"), page=3)
        assert server.asked[0].target == (
            "/tenant/api/v2/files?limit=50&format=json&reference=%C3%BC%20%26%20b"
            "&include%5B%5D=uploads&include%5B%5D=forms&page=3&token=a%2Bb%2Fc%3D%3D"
        )
        # By name: the library never keeps cookies of bare addresses.
        base = f"http://localhost:{server.port}"
        async with client(base, token="a+b/c==", token_location="header") as asking:
            for _ in range(2):
                await asking.list_files(FileQuery())
        assert "token" not in server.asked[2].query
        assert server.asked[2].headers["token"] == "a+b/c=="
        assert not any("cookie" in asked.headers for asked in server.asked)


async def test_the_service_clock_is_learned(client: Make) -> None:
    """The `Date` of any answer, an error too, sets the service's clock."""
    dated = answer(status=404, headers=[("Date", "Sat, 21 Nov 2026 03:28:32 GMT")])
    async with scripted(dated) as server, client(server.base) as asking:
        assert asking.clock.now() is None
        assert await asking.get_file(5) == NotFound("404")
        assert asking.clock.now() == pytest.approx(1_795_231_712_000_000, abs=5_000_000)


async def test_a_redirect_within_the_service_is_an_error(client: Make) -> None:
    """A redirect is not followed; to a sign-in page it is an authentication error."""
    for location, error in (("/api/v2/moved?x=1", ProtocolError), ("/login", AuthenticationError)):
        moved = answer(status=302, headers=[("Location", location)])
        async with scripted(moved) as server, client(server.base) as asking:
            with pytest.raises(error):
                await asking.get_file(5)
            assert len(server.asked) == 1


async def test_next_links_are_never_followed(client: Make) -> None:
    """The next page is requested with the client's own parameters, whatever the link contains."""
    async with scripted(GOOD, host="127.0.0.2") as other:
        first = answer({"data": [{"id": 1}], "next_page_url": f"http://127.0.0.2:{other.port}/?page=2"})
        last = answer({"data": [{"id": 2}], "next_page_url": None})
        async with scripted([first, last]) as server, client(server.base) as asking:
            query = FileQuery(closed=True, include=("uploads",))
            ids = [item.id async for page in asking.iter_pages(query) for item in page.items]
            assert ids == [1, 2]
            assert server.asked[1].query == {**server.asked[0].query, "page": "2"}
        assert other.connections == 0


async def test_endless_pages_end(client: Make) -> None:
    """Empty pages with a next page, and repeated pages, are protocol errors."""
    for items in ([], [{"id": 1}]):
        endless = answer({"data": items, "next_page_url": "?page=2"})
        async with scripted(endless) as server, client(server.base) as asking:
            with pytest.raises(ProtocolError, match="empty or a repetition"):
                async for _ in asking.iter_pages(FileQuery()):
                    pass
            assert len(server.asked) <= 2


async def test_cancelling_frees_slots_and_connections(client: Make) -> None:
    """Tasks that are cancelled while waiting, sending or backing off free their slots and connections."""
    async with scripted([[Wait(30)]]) as server, client(server.base) as asking:
        tasks = [asyncio.ensure_future(asking.get_file(number)) for number in range(50)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert (asking.rate_limiter.state.in_flight, asking.rate_limiter.state.waiting) == (0, 0)


async def test_an_unreliable_service_is_read_completely(client: Make) -> None:
    """With a third of all requests lost, everything arrives with a bounded number of retries."""
    lost = iter(range(10_000))

    def script(asked: Asked) -> Any:
        if next(lost) * 7919 % 100 < 30:
            return [Reset()]
        return answer({"id": int(asked.path.rpartition("/")[2])})

    async with scripted(script) as server, client(server.base, max_attempts=8) as asking:
        found = await asyncio.gather(*(asking.get_file(number) for number in range(300)))
        assert [one.id for one in found if isinstance(one, Detail)] == list(range(300))
        assert len(server.asked) < 600


async def test_a_client_that_was_not_entered(client: Make) -> None:
    """A client outside its context raises an error that explains it."""
    with pytest.raises(RuntimeError, match="async with"):
        await client("http://127.0.0.1:1").get_file(5)
    with pytest.raises(RuntimeError, match="async with"):
        await client("http://127.0.0.1:1").download_report("http://127.0.0.1:1/x", io.BytesIO())
