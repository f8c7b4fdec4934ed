"""Addresses of report URLs, in every spelling: which are requested, and that nothing is connected to for the others."""

from __future__ import annotations

import asyncio
import io
import ipaddress
import socket
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.allowed_urls import (
    PrivateAddressError,
    SafeResolver,
    is_allowed_address,
    origin,
    resolve_named_url,
)
from pipeline.client.downloader import DownloadedReport
from pipeline.errors import ProtocolError
from pipeline.settings.urls import normalize_base_url, normalize_host, parse_address
from tests.client.scripted_server import answer, scripted
from tests.rows import every

if TYPE_CHECKING:
    from tests.client.conftest import Make

SERVICES: Final = {  # letter of the tables below: the addresses of a service
    "p": "93.184.215.14",
    "h": "127.0.0.1",
    "l": "10.1.2.3",
    "c": "100.64.3.4",
    "s": "fd12:3456:789a::1",
    "k": "169.254.7.7",
}
# The services whose reports may be there, in SERVICES' letters; "-" for none.
LITERALS: Final = """
93.184.215.14 phlcsk      1.1.1.1 phlcsk            223.255.255.254 phlcsk    168.63.129.15 phlcsk
100.63.255.255 phlcsk     100.128.0.1 phlcsk        172.15.255.255 phlcsk     172.32.0.1 phlcsk
9.255.255.255 phlcsk      11.0.0.0 phlcsk           192.167.255.255 phlcsk    192.169.0.1 phlcsk
198.17.255.255 phlcsk     198.20.0.1 phlcsk         126.255.255.255 phlcsk    128.0.0.1 phlcsk
0.0.0.0 -                 0.0.0.1 -                 0.255.255.255 -           127.0.0.1 h
127.0.0.2 -               127.0.0.0 -               127.1.2.3 -               127.255.255.255 -
10.0.0.0 l                10.0.0.1 l                10.255.255.255 l          172.16.0.1 -
172.31.255.255 -          192.168.0.1 -             192.168.255.255 -         100.64.0.1 c
100.127.255.255 c         100.100.100.200 -         169.254.169.254 -         169.254.7.7 k
169.254.170.2 -           192.0.0.1 -               192.0.0.192 -             192.0.0.170 -
192.0.2.1 -               198.51.100.7 -            203.0.113.9 -             198.18.0.1 -
198.19.255.255 -          192.88.99.1 -             168.63.129.16 -           224.0.0.1 -
239.255.255.250 -         240.0.0.1 -               255.255.255.254 -         255.255.255.255 -
2606:4700::1111 phlcsk    2a00:1450:4001::200e phlcsk                         2001:4860:4860::8888 phlcsk
:: -                      ::1 -                     ::2 -                     ::7f00:1 -
::a00:1 -                 ::127.0.0.1 -             ::10.0.0.1 -              ::1.1.1.1 -
::ffff:127.0.0.1 h        ::ffff:7f00:1 h           ::ffff:127.0.0.2 -        ::ffff:10.0.0.1 l
::ffff:169.254.169.254 -  ::ffff:0.0.0.0 -          ::ffff:100.64.0.1 c       ::ffff:1.1.1.1 phlcsk
::ffff:0:127.0.0.1 -      ::ffff:0:1.1.1.1 -        ::fffe:1.1.1.1 -          100::1 -
64:ff9b::a00:1 -          64:ff9b::10.0.0.1 -       64:ff9b::a9fe:a9fe -      64:ff9b::127.0.0.1 -
64:ff9b::100.64.0.1 -     64:ff9b::0.0.0.0 -        64:ff9b::1.1.1.1 phlcsk   64:ff9b::93.184.215.14 phlcsk
64:ff9b::1:1.1.1.1 -      64:ff9b:1::1.1.1.1 -      64:ff9b:1::a00:1 -        64:ff9b:1:a00:1:: -
2002:a00:1::1 -           2002:7f00:1:: -           2002:a9fe:a9fe::1 -       2002:c0a8:101::1 -
2002:101:101::1 phlcsk    2001:0:a00:1::1 -         2001:0:4136:e378:8000:63bf:3fff:fdd2 -
2001:1::1 -               2001:2::1 -               2001:10::1 -              2001:20::1 -
2001:db8::1 -             3fff::1 -                 5f00::1 -                 2606:4700::5efe:a00:1 -
2606:4700::200:5efe:7f00:1 -                        2606:4700::5efe:101:101 phlcsk
2606:4700::200:5efe:169.254.169.254 -               fe80::5efe:101:101 -
fe80::1 -                 febf::1 -                 fec0::1 -                 fc00::1 -
fd00::1 -                 fd00:ec2::254 -           fd12:3456:789a::1 s       fd12:3456:789a:1::2 s
fd12:3456:789b::1 -       ff02::1 -                 ff0e::1 -                 4000::1 -
"""
VERDICTS: Final = dict(zip(*[iter(LITERALS.split())] * 2, strict=True))
# Hosts that some resolver, parser or browser takes for an address or for another host: refused for every service.
ODD_HOSTS: Final = """
0x7f000001 0X7F000001 0x7f.1 0x7f.0.1 0x7f.0x0.0x0.0x1 0x7f.0.0.0x1 127.1 127.0.1 0177.1 0177.0.0.1 0177.0x0.0.1
0177.0.0.01 017700000001 00000177.0.0.1 2130706433 02130706433 4294967295 4294967296 0 00 0x 0x0 1 127 1.1 010.0.0.1
127.0.0.1. 127.0.0.01 127.0.0.001 127.0.0.0x1 256.1.1.1 1.2.3.4.5 1.2.3.256 10.0.0.1. 0xa.1 012.1 167772161
0xa9fea9fe 0251.0376.0251.0376 2852039166 169.16689662 169.254.43518 0xA9.0xFE.0xA9.0xFE 3232235777 0xc0a80101
192.168.257
0x1010101 16843009 1.65793 01.01.01.01 foo.1 foo.0x7f foo.127.0.0.1 127.0.0.1.5 x.00 service.1.
\uff11\uff12\uff17.0.0.1 127.0.0.\uff11 \uff11\uff12\uff17\uff0e\uff10\uff0e\uff10\uff0e\uff11
127\u30020\u30020\u30021 127\uff610\uff610\uff611 \u2460\u2461\u2466.0.0.1 \U0001d7cf\U0001d7d0\U0001d7d5.0.0.1
\u2179.0x1 \uff10x7f000001 \uff12\uff11\uff13\uff10\uff17\uff10\uff16\uff14\uff13\uff13
%31%32%37.0.0.1 127%2e0.0.1 127.0.0.1%00 localhost%00.example %6c%6f%63alhost 127.0.0.1%20 a%2Fb x%40y
.127.0.0.1 127..1 127.0.0.1.. ..  . a..b -a.example a-.-b!.example a_.b$.example x,y x;y (x) {x} ~x *.example
[::1 [v1.127] [127.0.0.1] [localhost] []
[fe80::1%25eth0] [fe80::1%eth0] [::1%250] [::1%25lo] [2606:4700::1111%251] [::ffff:127.0.0.1%251] [fe80::1%]
"""
REFUSED_URLS: Final = [f"https://{host}/r" for host in ODD_HOSTS.split()] + [
    f"https://{f'[{host}]' if ':' in host else host}/r" for host, verdict in VERDICTS.items() if "h" not in verdict
]
CONNECTS: Final[list[Any]] = []


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if event in {"socket.connect", "socket.getaddrinfo"}:
        CONNECTS.append(arguments[1] if event == "socket.connect" else arguments[0])


@cache
def _start_recording() -> None:
    sys.addaudithook(_record)  # for the rest of the process


@pytest.fixture
def connects() -> list[Any]:
    """Return the addresses connected to and the names resolved from now on, as the interpreter audits them."""
    _start_recording()
    CONNECTS.clear()
    return CONNECTS


@every("host", VERDICTS)
def test_an_address_is_allowed_for_some_services(host: str) -> None:
    """Public addresses are allowed for every service, private ones in its own network, its own address for itself."""
    for letter, own in SERVICES.items():
        service = frozenset({ipaddress.ip_address(own)})
        assert is_allowed_address(ipaddress.ip_address(host), service) == (letter in VERDICTS[host]), letter
    assert is_allowed_address(ipaddress.ip_address(host)) == ("p" in VERDICTS[host])


@every("host", sorted(set(ODD_HOSTS.split())))
def test_odd_hosts_are_refused_by_name(host: str) -> None:
    """A host in an odd spelling is no report URL, no redirect target and no base URL."""
    with pytest.raises(ProtocolError):
        resolve_named_url(f"https://{host}/r", "https://127.0.0.1", "a report URL")
    with pytest.raises(ProtocolError):
        resolve_named_url(f"//{host}/r", "http://127.0.0.1:8000", "a report URL")
    with pytest.raises(ProtocolError):
        origin(f"https://{host}/")
    for base in (f"https://{host}", f"http://{host}:8000"):
        with pytest.raises(ValueError, match=r"^(must|is|has|does) "):
            normalize_base_url(base)


async def test_nothing_is_connected_to_for_a_refused_host(client: Make, connects: list[Any]) -> None:
    """For every form that is refused no name is resolved and no connection is attempted; the own host is requested."""
    async with scripted(answer(b"%PDF-1.7\n%%EOF\n")) as server, client(server.base) as asking:
        for url in REFUSED_URLS:
            for form in (url, url.removeprefix("https:")):
                with pytest.raises(ProtocolError, match="The service named"):
                    await asking.download_report(form, io.BytesIO())
                assert connects == [], form
        assert isinstance(await asking.download_report("/r/1", io.BytesIO()), DownloadedReport)
        assert connects == [("127.0.0.1", server.port)]
        assert [asked.path for asked in server.asked] == ["/r/1"]


@every(
    "location",
    [
        *("http://127.0.0.2:{port}/api/v2/files", "//127.0.0.2:{port}/x", "https://{host}/api/v2/files/5"),
        *("http://{host}@127.0.0.2:{port}/", "http://127.0.0.1:1/", "file:///etc/passwd", "http://[", "", "\\"),
        *("http://[::ffff:127.0.0.2]:{port}/", "http://169.254.169.254/latest/meta-data"),
        *("//127.1:{port}/r", "//2130706433:{port}/r", "//[::ffff:7f00:1]:{port}/r"),
    ],
)
def test_redirects_elsewhere_are_not_followed(location: str, client: Make, connects: list[Any]) -> None:
    """A redirect of a list or a report to another host, or to the own one in another spelling, is an error."""

    async def main() -> None:
        async with scripted(lambda _: moved) as server, client(server.base) as asking:
            target = location.format(port=server.port, host=f"127.0.0.1:{server.port}")
            moved = answer(status=302, headers=[("Location", target)])
            for call in (asking.get_file(5), asking.download_report("/r", io.BytesIO())):
                with pytest.raises(ProtocolError, match=r"redirected|The service named"):
                    await call
            assert len(server.asked) == 2
            assert {place for place in connects if place[0] != "127.0.0.1"} == set()

    asyncio.run(main())


@every(
    ("url", "requested"),
    [
        ("HTTPS://CDN.Example.:443/a?b", "https://cdn.example/a?b"),
        ("https://BÜCHER.example:8443/ü", "https://xn--bcher-kva.example:8443/ü"),
        ("https://[2606:4700:0::1111]/r", "https://[2606:4700::1111]/r"),
        ("//1.1.1.1//r", "https://1.1.1.1//r"),
        ("/r/1", "https://service.example/r/1"),
        ("http://service.example/r?x=:80", "https://service.example/r?x=:80"),
        ("http://service.example:80/r", "https://service.example/r"),
        *((url, None) for url in ("http://files.example/r", "file:///etc/passwd", "ftp://x/y", "http:")),
        *((url, None) for url in ("https://a@b/c", "https://x/\n", "https://x/ y", "https://x\\@y/")),
    ],
)
def test_what_is_checked_is_what_is_requested(url: str, requested: str | None) -> None:
    """A URL is rewritten in its usual form, for every parser, and with the service's scheme; odd ones are refused."""
    if requested is not None:
        assert resolve_named_url(url, "https://service.example/tenant", "a report URL")[0] == requested
        return
    with pytest.raises(ProtocolError):
        resolve_named_url(url, "https://service.example/tenant", "a report URL")


def spelled(largest: int) -> st.SearchStrategy[str]:
    """Numbers in the three bases of `inet_aton`."""
    return st.builds(str.format, st.sampled_from(["{:d}", "0x{:x}", "0X{:X}", "0{:o}"]), st.integers(0, largest))


@given(st.lists(spelled(300) | spelled(2**33), min_size=1, max_size=5).map(".".join))
def test_what_the_c_library_takes_for_an_address_is_refused_or_that_address(host: str) -> None:
    """Whatever `inet_aton` accepts is either refused, or is the address in its usual form."""
    try:
        meant = socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        meant = None
    try:
        normal = normalize_host(host)
    except ValueError:
        assert meant != host
        return
    assert normal == meant == host


@given(st.ip_addresses())
def test_what_is_allowed_is_global(address: Any) -> None:
    """For a service whose address is unknown no address is allowed that the standard library knows as special."""
    if is_allowed_address(address):
        mapped = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None) or address
        assert mapped.is_global
        assert not (mapped.is_multicast or mapped.is_reserved) or mapped in ipaddress.ip_network("64:ff9b::/96")


_DIGITS: Final = st.characters(categories=["N"], include_characters=".\u3002\uff0e\uff61xX")


@given(st.text(_DIGITS, min_size=1, max_size=20))
def test_digits_of_every_script_are_no_address(host: str) -> None:
    """A host of digits in any script is refused, or is a plain IPv4 address, or a name that ends in no number."""
    try:
        normal = normalize_host(host)
    except ValueError:
        return
    if parse_address(normal) is not None:
        assert normal == host
    else:
        assert not normal.rstrip(".").rpartition(".")[2].isdigit()
    assert urlsplit(f"https://{normal}/").hostname == normal


async def test_this_machines_name_means_only_the_services_address() -> None:
    """A service on 127.0.0.1 may name localhost, which is resolved to 127.0.0.1 alone; a public one may not."""
    resolver = SafeResolver("127.0.0.1")
    resolver.check_host("localhost")
    assert {entry["host"] for entry in await resolver.resolve("localhost", 1)} == {"127.0.0.1"}
    with pytest.raises(PrivateAddressError):
        SafeResolver("93.184.215.14", proxy="http://localhost:3128").check_host("localhost")
    with pytest.raises(PrivateAddressError):
        await SafeResolver("93.184.215.14").resolve("localhost", 1)


async def test_a_name_means_the_addresses_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A private service's name opens its network, and the proxy's itself; no other private name may be requested."""
    names = {"two.example": ("93.184.215.14", "10.1.2.4")}

    async def look_up(_: object, host: str, *__: object) -> list[dict[str, Any]]:
        return [{"host": address} for address in names.get(host, ("10.1.2.3",))]

    monkeypatch.setattr(SafeResolver, "_look_up", look_up)
    own, public = SafeResolver("files.internal"), SafeResolver("93.184.215.14", proxy="http://proxy.internal:3128")
    for resolver in (own, public):
        await resolver.resolve_service_host()
    own.check_host("10.9.9.9")
    assert await own.resolve("reports.internal") == await public.resolve("proxy.internal") == [{"host": "10.1.2.3"}]
    for host in ("169.254.169.254", "127.0.0.1"):
        with pytest.raises(PrivateAddressError):
            own.check_host(host)
    for host in ("inside.internal", "two.example"):
        for check in (public.resolve, public.check_not_private):
            with pytest.raises(PrivateAddressError):
                await check(host)
