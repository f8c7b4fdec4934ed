"""Downloading reports: from wherever the service says, without anything of ours."""

from __future__ import annotations

import gzip
import hashlib
import io
import ipaddress
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import ContractBroken
from pipeline.service.faults import RequestFailed
from pipeline.service.hosts import may_ask, report_address
from pipeline.service.reports import NotReady, ReportFile
from pipeline.service.resolving import GuardedResolver
from tests.service.conftest import CANARY
from tests.service.scripted import Close, Wait, answer, scripted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.service.client import Client

    Make = Callable[..., Client]

PDF = b"%PDF-1.7\n" + b"x" * 5_000 + b"\n%%EOF\n"


async def test_a_ready_report_is_taken_whole(client: Make) -> None:
    """The bytes land in the file as they are, with their size and hash; other bytes before them stay."""
    into = io.BytesIO(b"kept")
    into.seek(4)
    steps = [answer(PDF)[:-3_000], Wait(0.05), answer(PDF)[-3_000:]]
    async with scripted([steps]) as server, client(server.base) as asking:
        found = await asking.fetch_report(f"{server.base}/r/1", into)
    assert found == ReportFile(len(PDF), hashlib.sha256(PDF).hexdigest())
    assert into.getvalue() == b"kept" + PDF


@pytest.mark.parametrize(
    ("steps", "witness"),
    [
        (answer(status=404), "HTTP 404"),
        (answer(status=403), "HTTP 403"),
        (answer(status=202), "HTTP 202"),
        (answer(b""), "empty body"),
        (answer(b"<html>soon"), "no PDF"),
        (answer(b"%P"), "no PDF"),
    ],
)
async def test_not_ready(steps: bytes, witness: str, client: Make) -> None:
    """Every way of not being there yet is told, and nothing is written."""
    into = io.BytesIO()
    async with scripted(steps) as server, client(server.base) as asking:
        assert await asking.fetch_report(f"{server.base}/r/1", into) == NotReady(witness)
        assert len(server.asked) == 1
    assert into.getvalue() == b""


@pytest.mark.parametrize(
    "steps",
    [
        [answer(PDF)[:-2_000], Close()],
        [answer(PDF[:-2_000], length=False), Close()],
        answer(PDF[:-2_000]),
        answer(gzip.compress(PDF), headers=[("Content-Encoding", "gzip")]),
        answer(status=500),
    ],
    ids=["cut", "cut without a length", "without its end", "packed", "500"],
)
async def test_a_broken_download_is_repeated(steps: Any, client: Make) -> None:
    """A PDF that is not whole is fetched again, over what was written; for ever, it fails."""
    into = io.BytesIO()
    async with scripted([steps, answer(PDF)]) as server, client(server.base) as asking:
        assert isinstance(await asking.fetch_report(f"{server.base}/r/1", into), ReportFile)
    assert into.getvalue() == PDF
    async with scripted([steps]) as server, client(server.base) as asking:
        with pytest.raises(RequestFailed, match="GET report"):
            await asking.fetch_report(f"{server.base}/r/1", into)


async def test_nothing_of_ours_goes_there(client: Make) -> None:
    """Another host sees no token, no cookie and no referrer, whichever way the token travels."""
    async with scripted(answer({"id": 5})) as server, scripted(answer(PDF), host="127.0.0.2") as other:
        for place in ("query", "header"):
            async with client(server.base, token_in=place) as asking:
                await asking.get(5)
                await asking.fetch_report(f"{other.base}/r/1?sig=x", io.BytesIO())
        for asked in other.asked:
            assert asked.target == "/r/1?sig=x"
            assert not {"token", "cookie", "referer", "authorization"} & asked.headers.keys()


async def test_our_token_in_a_foreign_url_is_refused(client: Make) -> None:
    """A report address elsewhere that carries the token is not asked."""
    async with scripted(answer(PDF), host="127.0.0.2") as other, scripted(answer(PDF)) as server:
        async with client(server.base, token="hush-hush-hush") as asking:
            with pytest.raises(ContractBroken, match="token") as raised:
                await asking.fetch_report(f"{other.base}/r/1?token=hush-hush-hush", io.BytesIO())
            assert "hush" not in str(raised.value)
        assert other.connections == 0


async def test_redirects_to_other_hosts_are_not_followed(client: Make) -> None:
    """A report address that sends on to another host breaks the contract."""
    async with scripted(answer(PDF), host="127.0.0.2") as other:
        moved = answer(status=302, headers=[("Location", f"{other.base}/r")])
        async with scripted(moved) as server, client(server.base) as asking:
            with pytest.raises(ContractBroken, match="another host"):
                await asking.fetch_report(f"{server.base}/r/1", io.BytesIO())
        assert other.connections == 0


async def test_a_large_report_is_capped(client: Make) -> None:
    """A report past its cap fails without being asked for again."""
    async with scripted(answer(PDF)) as server, client(server.base) as asking:
        with pytest.raises(RequestFailed, match="more than 1,000 bytes"):
            await asking.fetch_report(f"{server.base}/r/1", io.BytesIO(), max_bytes=1_000)
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.1/r",
        "https://169.254.169.254/latest/meta-data",
        "https://[fe80::1]/r",
        "https://[::ffff:10.0.0.1]/r",
        "https://0.0.0.0/r",
        "https://192.168.1.1/r",
        "https://[::1]/r",
        "https://100.64.0.1/r",
        "https://localhost/r",
    ],
)
async def test_private_hosts_are_refused_before_connecting(url: str, client: Make) -> None:
    """A public service cannot make us ask this machine or its network, however the address is spelled."""
    async with client("https://93.184.215.14") as asking:
        with pytest.raises(ContractBroken, match="private"):
            await asking.fetch_report(url, io.BytesIO())


@pytest.mark.parametrize("places", [["10.0.0.1"], ["93.184.215.14", "127.0.0.1"], ["::ffff:192.168.0.1"]])
async def test_names_of_private_hosts_are_refused(
    places: list[str], client: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is refused when any of its addresses is private; the addresses judged are those connected to."""

    async def look_up(_: GuardedResolver, host: str, port: int, family: int) -> list[dict[str, Any]]:
        assert (host, family) == ("evil.example", 0)
        return [{"host": place, "port": port} for place in places]

    monkeypatch.setattr(GuardedResolver, "_look_up", look_up)
    async with client("https://93.184.215.14") as asking:
        with pytest.raises(ContractBroken, match="private"):
            await asking.fetch_report("https://evil.example/r", io.BytesIO())


def test_a_service_on_this_machine_does_not_open_the_network() -> None:
    """With the service on loopback other loopback addresses may be asked; link-local and private may not."""
    ip = ipaddress.ip_address
    here, lan = ip("127.0.0.1"), ip("10.1.2.3")
    assert may_ask(ip("127.0.0.2"), here)
    assert not may_ask(ip("10.0.0.1"), here)
    assert not may_ask(ip("169.254.169.254"), here)
    assert may_ask(ip("10.9.9.9"), lan)
    assert not may_ask(ip("127.0.0.1"), lan)
    assert not may_ask(ip("169.254.169.254"), lan)
    assert may_ask(ip("93.184.215.14"), None)
    assert not may_ask(ip("224.0.0.1"), None)


@pytest.mark.parametrize(
    "url",
    [
        "http://files.example/r",
        "file:///etc/passwd",
        "ftp://x/y",
        "https://a@b/c",
        "https://x/\n",
        "https://[",
        "http:",
    ],
)
def test_addresses_that_are_never_asked(url: str) -> None:
    """Plain http, other schemes, users and control characters are refused."""
    with pytest.raises(ContractBroken):
        report_address(url, "https://service.example")


def test_addresses_are_completed() -> None:
    """A relative address is the service's; plain http on the service's own host becomes https."""
    base = "https://service.example/tenant"
    assert report_address("/r/1", base) == "https://service.example/r/1"
    assert report_address("http://service.example/r?x=:80", base) == "https://service.example/r?x=:80"
    assert report_address("http://service.example:80/r", base) == "https://service.example/r"
    assert report_address("https://cdn.example/r", base) == "https://cdn.example/r"


def test_the_canary_is_what_the_fixture_uses() -> None:
    """The token of these tests has what makes tokens leak: a slash, a plus and padding."""
    assert set("/+=") <= set(CANARY)
