"""Network and HTTP failures, byte for byte, charsets, and the client's result."""

from __future__ import annotations

import asyncio
import codecs
import gzip
import io
import json
import socket
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.limit_search import INITIAL_CONCURRENCY
from pipeline.client.protocol import Detail, NotFound
from pipeline.errors import AuthenticationError, ProtocolError, ScanlakeError, ServiceUnavailableError
from pipeline.settings.urls import normalize_base_url
from schemas.file_query import FileQuery
from schemas.requests import ReportRequest
from tests.client.scripted_server import Asked, Close, Reset, Wait, answer, scripted

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pipeline.client.client import Client
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


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "start",
    [b"", answer({"id": 6})[:-1], answer({"id": 6}, length=False)],
    ids=["no answer", "cut off", "of unknown length"],
)
async def test_each_stall_ends_at_its_own_time(start: bytes, client: Make) -> None:
    """Requests without a complete answer time out after their own time each; others continue meanwhile."""
    loop, ends = asyncio.get_running_loop(), list[float]()

    def script(asked: Asked) -> Any:
        return GOOD if asked.path.endswith("/5") else [start, Wait(60)]

    async def ask(call: Coroutine[Any, Any, object]) -> None:
        with pytest.raises(ScanlakeError, match="in time") as raised:
            await call
        assert getattr(raised.value, "kind", "timeout") == "timeout"  # an order has no kind: its outcome is unknown
        ends.append(loop.time())

    async with scripted(script) as server, client(server.base, max_attempts=1) as asking:
        calls = [asyncio.ensure_future(ask(asking.order_report(ReportRequest(files=(1,)), timeout_seconds=20.0)))]
        for _ in range(3):
            await asyncio.sleep(1.0)
            calls.append(asyncio.ensure_future(ask(asking.get_file(6))))
            assert isinstance(await asking.get_file(5), Detail)
        await asyncio.gather(*calls)
    assert ends == pytest.approx([6.0, 7.0, 8.0, 20.0], abs=0.1)


@pytest.mark.virtual_time
async def test_a_cancelled_request_is_no_timeout(client: Make) -> None:
    """A request that is cancelled at the moment of its timeout stays cancelled."""
    async with scripted([[Wait(60)]]) as server, client(server.base, max_attempts=1) as asking:
        task = asyncio.ensure_future(asking.get_file(5))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(5.0, task.cancel)
        await asyncio.wait({task})
        assert task.cancelled()


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_download", [False, True])
@pytest.mark.parametrize(
    ("start", "step", "limit", "kind"),
    [
        (answer(b"%PDF" + BODY)[:-100], (Wait(0.3), b"x"), 60.0, "slow"),
        (b"HTTP/1.1 200 OK\r\n", (Wait(3), b"X-A: 1\r\n"), 5.0, "timeout"),
    ],
    ids=["body", "head"],
)
async def test_a_slow_answer_ends(
    start: bytes, step: tuple[Any, ...], limit: float, kind: str, *, is_download: bool, client: Make
) -> None:
    """A body that comes byte by byte fails for its throughput, long before the timeout, a head with its attempt."""
    drip = [start, *(step * 80)]
    async with scripted([drip]) as server, client(server.base, max_attempts=1, attempt_timeout_seconds=limit) as asking:
        with pytest.raises(RetriesExhaustedError) as raised:
            await (asking.download_report("/r/1", io.BytesIO()) if is_download else asking.get_file(5))
        assert raised.value.kind == kind
        assert asyncio.get_running_loop().time() <= 5.5


async def test_no_connection_in_time(client: Make) -> None:
    """A connection that is not made in time is an error of its own: the request cannot have reached the service."""
    with socket.socket() as server, socket.socket() as first:  # its queue of connections is full
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        first.connect(server.getsockname())
        base = f"http://127.0.0.1:{server.getsockname()[1]}"
        async with client(base, connect_timeout_seconds=0.1, max_attempts=1) as asking:
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


async def test_a_refused_token_stops_all_requests(client: Make) -> None:
    """Waiting and later calls fail without another request."""
    for status in (401, 403):
        async with scripted([[Wait(0.05), answer(status=status)]]) as server, client(server.base) as asking:
            results = await asyncio.gather(*(asking.get_file(number) for number in range(100)), return_exceptions=True)
            assert {type(result) for result in results} == {AuthenticationError}
            asked = len(server.asked)
            with pytest.raises(AuthenticationError):
                await asking.list_files(FileQuery())
            assert asked == len(server.asked) <= INITIAL_CONCURRENCY


BIG: Final = b'{"data": [], "x": "' + b"x" * 300_000 + b'"}'
UTF7: Final = [("Content-Type", "application/json; charset=utf-7")]


@pytest.mark.parametrize(
    ("steps", "requests", "error", "text"),
    [
        # A rejection is not repeated, whatever its charset, nor is a redirect, or an answer above the size limit.
        *(
            (
                answer({"message": "bad?query"}, status=status),
                1,
                ProtocolError,
                f"GET /files: HTTP {status}: bad\\?query",
            )
            for status in (400, 404, 405, 410, 418, 422)
        ),
        (answer(b"+AMk-", status=422, headers=UTF7), 1, ProtocolError, "HTTP 422"),
        (answer(status=302, headers=[("Location", "/api/v2/moved?x=1")]), 1, ProtocolError, "redirected"),
        (answer(status=302, headers=[("Location", "/login")]), 1, AuthenticationError, "sign-in"),
        *(
            (steps, 1, RetriesExhaustedError, r"more than 100,000 bytes \(after 1 attempt\)")
            for steps in (
                *([answer(BIG, length=length), Close()] for length in (True, False)),
                answer(gzip.compress(BIG), headers=GZIP),
            )
        ),
        # Without `data`, or with another success than 200, it is a protocol error rather than an outage.
        (answer({}), 3, ProtocolError, "without `data`"),
        *((answer({}, status=status), 3, ProtocolError, f"HTTP {status}") for status in (201, 299)),
        (answer(b" <html>", headers=UTF7), 3, RetriesExhaustedError, "HTML"),
    ],
)
async def test_a_list_fails(steps: Any, requests: int, error: type[Exception], text: str, client: Make) -> None:
    """A list that is no list is an error that says why, after one request or after all attempts."""
    async with scripted([steps]) as server, client(server.base, max_body_bytes=100_000) as asking:
        with pytest.raises(error, match=text):
            await asking.list_files(FileQuery())
        assert len(server.asked) == requests


async def test_requests_have_query_and_token(client: Make) -> None:
    """The query is encoded as the interface defines it; the token is in query or header; no cookie is ever sent."""
    cookies = [("Set-Cookie", f"c{number}=x; Path=/") for number in range(100)]
    async with scripted(answer({"data": []}, headers=cookies)) as server:
        async with client(normalize_base_url(f"{server.base}/tenant/api/v2/"), token="a+b/c==") as asking:
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


TEXT: Final = "écrasé à 5 °C"
CASES: Final = [  # parameters, codec of the body, and what happens: stored, refused by name, or never another text
    *(
        (parameters, codec, "stored")
        for codec in ("utf-8", "utf-8-sig")
        for parameters in (
            *("", "; version=1", "; charset=", "; charset=utf-8", '; charset="UTF8"', " ; CHARSET = 'utf-8'"),
            *("; charset=utf-8; charset=UTF8", "; charset=us-ascii", "; charset=iso-8859-1"),
        )
    ),
    *((f"; charset={name}", "utf-8", "refused") for name in ("utf-7", "bogus", "\u202eutf-8", "utf-8; charset=utf-16")),
    *((f"; charset={name}", name, "refused") for name in ("utf-7", "utf-16", "UTF-16LE", "iso-8859-1", "windows-1252")),
    ("; charset=us-ascii", "cp1252", "refused"),
    *((parameters, codec, "not read") for parameters in ("; charset=utf-8", "") for codec in ("latin-1", "utf-16-le")),
]


async def call(client: Client, *, is_list: bool) -> bytes | ProtocolError | RetriesExhaustedError:
    """Return the file's bytes as the client stores them, or the error."""
    try:
        if is_list:
            return (await client.list_files(FileQuery())).items[0].raw
        found = await client.get_file(5)
        assert isinstance(found, Detail)
    except (ProtocolError, RetriesExhaustedError) as error:
        return error
    return found.raw


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_list", [True, False], ids=["list", "detail"])
async def test_only_utf8_is_stored(is_list: bool, client: Make) -> None:  # noqa: FBT001
    """UTF-8 is kept whatever default its server names; another charset, or other bytes, is refused by its name."""
    file = {"id": 5, "scan_code": TEXT}
    text = json.dumps({"data": [file]} if is_list else file, ensure_ascii=False)
    for parameters, codec, outcome in CASES:
        headers = [("Content-Type", f"application/json{parameters}")]
        async with scripted(answer(text.encode(codec), headers=headers)) as server, client(server.base) as asking:
            result = await call(asking, is_list=is_list)
        if outcome == "stored":
            assert isinstance(result, bytes), parameters
            assert json.loads(result.removeprefix(codecs.BOM_UTF8)) == file
        elif outcome == "refused":
            assert isinstance(result, ProtocolError if is_list else RetriesExhaustedError), parameters
            assert "charset" in result.message
            assert parameters.rpartition("=")[2].strip("\u202e").lower() in result.message
            assert result.message.isprintable()
        elif isinstance(result, bytes):  # the exact bytes are kept, and named as a reject when they are parsed
            with pytest.raises(UnicodeDecodeError):
                result.decode()
