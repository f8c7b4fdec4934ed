"""Misbehaviour, as a client meets it."""

import asyncio
import gzip
from email.utils import formatdate

import aiohttp
import pytest

from pipeline.emulator import Faults
from tests.emulator.http_client import Asker, asking
from tests.virtual_time import START


async def _raw(ask: Asker, path: str = "/api/v2/files") -> bytes:
    """Return everything the emulator sends for one request, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ask.emulator.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\ntoken: {ask.emulator.token}\r\nConnection: close\r\n\r\n".encode())
    got = await reader.read()
    writer.close()
    return got


async def test_a_cut_answer_is_an_error_for_a_careful_client() -> None:
    """Every cut that HTTP can tell from a whole answer is told; the next request is fine."""
    for kind in ("refuse", "drop-before-status", "drop-mid-headers", "drop-mid-body", "cut-length", "cut-chunked"):
        async with asking(6) as ask:
            ask.emulator.script(kind)
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                # POST is never repeated by the client on its own, unlike GET.
                await ask.post("/api/v2/reports", {"files": ask.emulator.world.keys()[:3], "asynchronous": True})
            assert ask.emulator.injected_faults == {kind: 1}
            assert bool(ask.emulator.reports.by_secret) == (kind != "refuse")
            assert (await ask.files()).status == 200


async def test_answers_that_look_whole_are_not() -> None:
    """Half a body without any length, HTML and half a JSON text arrive as if all were well.

    Without its trailer and cut in half, a compressed body has a right length and wrong content.
    """
    async with asking(60) as ask:
        whole = (await ask.files()).body
        ask.emulator.script("cut-close")
        head, _, body = (await _raw(ask)).partition(b"\r\n\r\n")
        assert b"Content-Length" not in head
        assert (body[:9], body == whole) == (b'{"data":[', False)
        ask.emulator.script("gzip-no-trailer")
        body = (await _raw(ask)).partition(b"\r\n\r\n")[2]
        assert body + gzip.compress(whole, 5, mtime=0)[-8:] == gzip.compress(whole, 5, mtime=0)
        ask.emulator.script("gzip-half")
        assert len((await _raw(ask)).partition(b"\r\n\r\n")[2]) < len(body)
        for kind in ("gzip-lie", "odd-encoding"):
            ask.emulator.script(kind)
            assert whole[:40] in await _raw(ask)
        ask.emulator.script("html", path="/api/v2/files")
        page = await ask.files()
        assert (page.status, page.body[:9]) == (200, b"<!DOCTYPE")
        ask.emulator.script("cut-json")
        cut = await ask.files()
        assert (cut.status, cut.body) == (200, whole[: len(cut.body)])
        assert len(cut.body) < len(whole)


async def test_a_stalled_request_is_never_answered_but_was_carried_out() -> None:
    """Stall accepts and says nothing; drip sends a byte every tenth of a second; the emulator still stops at once."""
    async with asking(5) as ask:
        ask.emulator.script("drip")
        reader, writer = await asyncio.open_connection("127.0.0.1", ask.emulator.port)
        writer.write(b"GET /api/v2/files HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.55)
        assert len(await reader.read(1000)) == 6
        writer.close()
        began = asyncio.get_running_loop().time()
        ask.emulator.script("stall", path="/api/v2/reports")
        with pytest.raises(TimeoutError):
            await ask.post("/api/v2/reports", {"files": ask.emulator.world.keys(), "asynchronous": True})
        assert len(ask.emulator.reports.by_secret) == 1
        stopped = asyncio.get_running_loop().time()
        assert stopped - began == pytest.approx(10.0, abs=1.0)  # the client's limit
    assert asyncio.get_running_loop().time() - stopped <= 0.3


async def test_429_comes_with_every_retry_after() -> None:
    """A scripted 429 strikes the next requests to its path, with Retry-After in the form asked for."""
    forms = {"seconds": "7", "absent": None, "garbage": "abc", "huge": "1000000000", "negative": "-5"}
    forms["http-date"] = formatdate(START + 7, usegmt=True)
    for form, shown in forms.items():
        async with asking(5, faults=Faults(retry_after=form, retry_after_seconds=7)) as ask:  # type: ignore[arg-type]
            ask.emulator.script("429", times=2, path="/api/v2/files")
            replies = [await ask.files() for _ in range(3)]
            assert [reply.status for reply in replies] == [429, 429, 200]
            assert replies[0].headers.get("Retry-After") == shown
            assert ask.emulator.statuses[429] == 2


async def test_a_rate_limit_lets_its_number_through_and_recovers() -> None:
    """Beyond the bucket everything is 429; after a pause as many pass as it has been refilled with."""
    async with asking(5, faults=Faults(rate_limit=20, rate_burst=5)) as ask:
        assert [(await ask.files()).status for _ in range(12)] == [200] * 5 + [429] * 7
        await asyncio.sleep(0.125)
        assert [(await ask.files()).status for _ in range(5)] == [200] * 2 + [429] * 3
        ask.emulator.set_faults(rate_limit=0)
        assert {(await ask.files()).status for _ in range(12)} == {200}


async def test_a_window_and_calls_in_flight_are_limits() -> None:
    """Beyond a window's calls everything is refused until it ends, as stated; so is what is too much at a time."""
    faults = Faults(window_calls=3, window_seconds=10.0, limit_headers="x-ratelimit")
    async with asking(5, faults=faults) as ask:
        replies = [await ask.files() for _ in range(5)]
        assert [reply.status for reply in replies] == [200] * 3 + [429] * 2
        assert [replies[4].headers[name] for name in ("Retry-After", "X-RateLimit-Remaining")] == ["10", "0"]
        await asyncio.sleep(10.0)
        assert (await ask.files()).status == 200
        ask.emulator.set_faults(window_calls=0, max_in_flight=4, latency_ms=50, limit_status="503")
        answers = await asyncio.gather(*(ask.files() for _ in range(10)))
        assert sorted(reply.status for reply in answers) == [200] * 4 + [503] * 6


async def test_poison_outage_revoked_tokens_and_redirects() -> None:
    """A poisoned id always fails alone, an outage fails everything, a revoked token is refused.

    A scripted redirect names another origin of the emulator, where a follower is noted.
    """
    async with asking(5) as ask:
        first, second = ask.emulator.world.keys()[:2]
        ask.emulator.set_faults(poison=[first])
        assert [(await ask.detail(key)).status for key in (first, second, first)] == [500, 200, 500]
        ask.emulator.set_faults(poison=[], outage=True)
        assert (await ask.files()).status == 503
        ask.emulator.set_faults(outage=False, revoked=True)
        assert (await ask.files()).status == 401
        ask.emulator.faults.clear()
        assert (await ask.detail(first)).status == 200
        ask.emulator.script("redirect-307")
        reply = await ask.files()
        assert (reply.status, reply.headers["Location"].startswith(ask.emulator.other_url)) == (307, True)


async def test_chance_is_seeded() -> None:
    """The same seed and requests meet the same errors, about as many as the ratio says."""
    runs = []
    for _ in range(2):
        async with asking(5, faults=Faults(probabilities={"500": 0.1, "503": 0.1, "html": 0.1})) as ask:
            runs.append([(await ask.files()).status for _ in range(100)])
    assert runs[0] == runs[1]
    assert 8 <= sum(status >= 500 for status in runs[0]) <= 35


async def test_latency_delays_every_answer_and_concurrency_is_counted() -> None:
    """With 50 ms of latency ten requests at once take 50 ms, and ten were in flight."""
    async with asking(5, faults=Faults(latency_ms=50)) as ask:
        await asyncio.gather(*(ask.files() for _ in range(10)))
        assert asyncio.get_running_loop().time() == pytest.approx(0.05, abs=0.01)
        assert ask.emulator.max_in_flight == 10


async def test_an_unknown_fault_is_refused() -> None:
    """A fault nobody knows raises at once, naming those there are."""
    async with asking(1) as ask:
        with pytest.raises(ValueError, match="drop-mid-body"):
            ask.emulator.script("explode")
        with pytest.raises(ValueError, match="Did you mean 'latency_ms'"):
            ask.emulator.set_faults(latency_m=1)
