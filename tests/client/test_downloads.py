"""Downloads of reports from any host, without the client's secrets, and compressed bodies."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.allowed_urls import SafeResolver
from pipeline.client.body_reader import BodyDecoder, decode_body
from pipeline.client.downloader import DownloadedReport, ReportNotReady
from pipeline.client.errors import AttemptError, RetriesExhaustedError
from pipeline.errors import ProtocolError
from tests.client.scripted_server import Close, Wait, answer, scripted
from tests.rows import every

if TYPE_CHECKING:
    from tests.client.conftest import Make

pytestmark = pytest.mark.virtual_time
PDF = b"%PDF-1.7\n" + b"x" * 5_000 + b"\n%%EOF\n"
PACKED = gzip.compress(PDF, mtime=0)
GZIP = [("Content-Encoding", "gzip")]
BOMB = b"%PDF-1.7\n" + b"x" * 50_000_000 + b"\n%%EOF\n"


async def test_not_ready(client: Make) -> None:
    """Every answer for an unfinished report is recognized in one request, and nothing is written."""
    into = io.BytesIO()
    answers = {answer(status=status): f"HTTP {status}" for status in (404, 403, 202)}
    answers |= {answer(b""): "empty body", answer(b"<html>soon"): "no PDF", answer(b"%P"): "no PDF"}
    async with scripted([*answers]) as server, client(server.base) as asking:
        for reason in answers.values():
            assert await asking.download_report(f"{server.base}/r/1", into) == ReportNotReady(reason)
        assert len(server.asked) == len(answers)
    assert into.getvalue() == b""


@pytest.mark.parametrize("before", [b"\n", b"\xef\xbb\xbf", b"<br />\n<b>Warning</b>: Undefined $x", b" " * 1_020])
@pytest.mark.parametrize("pieces", [3, 2_000])
async def test_bytes_before_a_pdf_are_part_of_it(before: bytes, pieces: int, client: Make) -> None:
    """A line end, a mark or a warning before the PDF does not hide it: it is saved as it came, in one request.

    As for viewers, it begins within the first 1,024 bytes.
    """
    body, into = before + PDF, io.BytesIO()
    whole = answer(body)
    head = whole[: -len(body)]
    parts = [head, *(step for at in range(0, 1_200, pieces) for step in (body[at : at + pieces], Wait(0.0)))]
    sent = sum(len(part) for part in parts if isinstance(part, bytes))
    async with scripted([[*parts, whole[sent:]]]) as server, client(server.base) as asking:
        found = await asking.download_report("/r/1", into)
        assert len(server.asked) == 1
    assert (into.getvalue(), found) == (body, DownloadedReport(len(body), hashlib.sha256(body).hexdigest()))
    into = io.BytesIO()
    async with scripted(answer(b" " * 1_022 + PDF)) as server, client(server.base) as asking:
        assert await asking.download_report("/r/1", into) == ReportNotReady("no PDF")
    assert into.getvalue() == b""


BROKEN: dict[str, Any] = {
    "cut": [answer(PDF)[:-2_000], Close()],
    "cut without a length": [answer(PDF[:-2_000], length=False), Close()],
    "without its end": answer(PDF[:-2_000]),
    "cut gzip": answer(PACKED[:-4], headers=GZIP),
    "half a gzip": answer(PACKED[:40], headers=GZIP),
    "no gzip": answer(PDF, headers=GZIP),
    "cut in gzip": answer(gzip.compress(PDF[:-2_000], mtime=0), headers=GZIP),
    "500": answer(status=500),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_download_is_retried(name: str, client: Make) -> None:
    """An incomplete PDF is downloaded again over the first one; if it stays incomplete, it fails."""
    into = io.BytesIO()
    async with scripted([BROKEN[name], answer(PDF)]) as server, client(server.base) as asking:
        assert isinstance(await asking.download_report(f"{server.base}/r/1", into), DownloadedReport)
    assert into.getvalue() == PDF
    async with scripted([BROKEN[name]]) as server, client(server.base) as asking:
        with pytest.raises(RetriesExhaustedError, match="GET report"):
            await asking.download_report(f"{server.base}/r/1", into)


@pytest.mark.parametrize(
    ("encoding", "body", "pieces"),
    [
        ("", PDF, 2_000),
        ("gzip", PACKED, 1),
        ("X-GZIP", gzip.compress(PDF[:3_000], mtime=0) + gzip.compress(PDF[3_000:], mtime=0), 7),
        ("identity", PDF, 100_000),
    ],
    ids=["plain", "gzip", "members", "identity"],
)
async def test_a_ready_report_is_saved_completely(encoding: str, body: bytes, pieces: int, client: Make) -> None:
    """The PDF is saved, however it is cut and compressed, with its size and hash; earlier bytes in the file stay."""
    into = io.BytesIO(b"kept")
    into.seek(4)
    whole = answer(body, headers=[("Content-Encoding", encoding)])
    head, parts = whole[: -len(body)], [body[start : start + pieces] for start in range(0, len(body), pieces)][:200]
    steps = [head, *(step for part in parts for step in (part, Wait(0.0))), body[sum(map(len, parts)) :]]
    async with scripted([steps]) as server, client(server.base) as asking:
        found = await asking.download_report("/r/1", into)
    assert into.getvalue() == b"kept" + PDF
    assert found == DownloadedReport(len(PDF), hashlib.sha256(PDF).hexdigest())


@pytest.mark.parametrize(
    ("sent", "error", "texts"),
    [
        *(
            (sent, RetriesExhaustedError, ["more than 60,000 bytes"])
            for sent in (
                answer(BOMB[:70_000]),
                answer(gzip.compress(BOMB, mtime=0), headers=GZIP),
                answer(gzip.compress(b"%PDF", mtime=0) + gzip.compress(b"", mtime=0) * 4_000, headers=GZIP),
            )
        ),
        *(
            (answer(PDF, headers=[("Content-Encoding", sent)]), ProtocolError, [name, "that was not requested"])
            for name in ("br", "zstd", "compress", "gzip, gzip", "aes128gcm")
            for sent in (name, f"\u202e{name}")
        ),
    ],
)
async def test_a_report_is_refused_at_once(sent: bytes, error: Any, texts: list[str], client: Make) -> None:
    """A body above the limit, also a small one that decompresses to more or without end, and another encoding fail."""
    into = io.BytesIO()
    async with scripted(sent) as server, client(server.base) as asking:
        with pytest.raises(error) as raised:
            await asking.download_report("/r/1", into, max_bytes=60_000)
        assert all(text in raised.value.message for text in texts)
        assert raised.value.message.isprintable()
        assert (getattr(raised.value, "kind", "size"), len(server.asked)) == ("size", 1)
    assert len(into.getvalue()) <= 60_000


async def test_no_secret_is_sent_to_the_report_host(client: Make) -> None:
    """Another origin gets no token, cookie or referrer; a URL with the token is refused."""
    async with scripted(answer({"id": 5})) as server, scripted(answer(PDF)) as other:
        for place in ("query", "header"):
            async with client(server.base, token_location=place, token="hush-hush-hush") as asking:
                await asking.get_file(5)
                await asking.download_report(f"{other.base}/r/1?sig=x", io.BytesIO())
                with pytest.raises(ProtocolError, match="token") as raised:
                    await asking.download_report(f"{other.base}/r/1?token=hush-hush-hush", io.BytesIO())
                assert "hush" not in str(raised.value)
        assert [asked.target for asked in other.asked] == ["/r/1?sig=x"] * 2
        for asked in other.asked:
            assert not {"token", "cookie", "referer", "authorization"} & asked.headers.keys()


@pytest.mark.parametrize("places", [["10.0.0.1"], ["93.184.215.14", "127.0.0.1"], ["::ffff:192.168.0.1"]])
async def test_names_of_private_hosts_are_refused(
    places: list[str], client: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is refused if any of its addresses is private; the checked addresses are those that are connected to."""

    async def look_up(_: SafeResolver, host: str, port: int, family: int) -> list[dict[str, Any]]:
        assert (host, family) == ("evil.example", 0)
        return [{"host": place, "port": port} for place in places]

    monkeypatch.setattr(SafeResolver, "_look_up", look_up)
    async with client("https://93.184.215.14") as asking:
        with pytest.raises(ProtocolError, match="private"):
            await asking.download_report("https://evil.example/r", io.BytesIO())


@every("size", [1_048_575, 1_048_576, 1_048_577, 1_048_700, 2_097_152, 5_000_001])
def test_bodies_larger_than_one_part(size: int) -> None:
    """A body that is decompressed in several parts, and is all zeros or random, arrives complete."""
    for body in (b"\0" * size, random.Random(size).randbytes(size)):
        packed = gzip.compress(body, 1)
        assert decode_body(packed, "gzip", max_bytes=size) == body
        assert max(map(len, BodyDecoder("gzip").decode(packed))) <= 1_048_576
        with pytest.raises(AttemptError, match="more than"):
            decode_body(packed, "gzip", max_bytes=size - 1)


@given(st.binary(min_size=1, max_size=500), st.lists(st.integers(1, 50)), st.integers(1, 600))
def test_the_cuts_between_parts_do_not_matter(body: bytes, cuts: list[int], lost: int) -> None:
    """A stream that arrives in parts of any size gives the same bytes; a damaged one is an error."""
    packed = gzip.compress(body, mtime=0)
    decoder, rest, found = BodyDecoder("gzip"), packed * 2, b""
    for size in [*cuts, 2 * len(packed)]:
        found += b"".join(decoder.decode(rest[:size]))
        rest = rest[size:]
    decoder.finish()
    assert found == body * 2 == decode_body(packed * 2, "X-GZIP", max_bytes=1_000)
    flipped = packed[:-5] + bytes([packed[-5] ^ 1]) + packed[-4:]
    for wrong in (packed[: max(1, len(packed) - lost)], flipped, packed + b"junk", b"plain text"):
        with pytest.raises(AttemptError):
            decode_body(wrong, "gzip", max_bytes=1_000)
