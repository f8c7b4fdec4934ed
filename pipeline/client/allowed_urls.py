"""URLs that the service names: redirects, report URLs, and the guard against private addresses (SSRF)."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin, urlsplit

from pipeline.errors import ProtocolError
from pipeline.settings.urls import Address, is_loopback, join_host_port, normalize_host, parse_address

if TYPE_CHECKING:
    from collections.abc import Iterator

Origin = tuple[str, str, int]
"""Scheme, host and port."""

_ABSOLUTE: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^/?#]+)(.*)")
_KEPT_ORIGINS: Final = 256  # thousands of links have the same
_PORTS: Final = {"http": 80, "https": 443}
_LOCALHOST: Final[frozenset[Address]] = frozenset({ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1")})


def _parse_networks(text: str) -> tuple[Any, ...]:
    return tuple(map(ipaddress.ip_network, text.split()))


# IANA's registries of special addresses, and not Python's: each of its versions knows others.
_GLOBAL_V6: Final = _parse_networks("2000::/3 64:ff9b::/96")
_NOT_PUBLIC: Final = _parse_networks(
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
    "192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 "
    "168.63.129.16/32 "  # Azure's platform service
    "2001::/23 2001:db8::/32 3fff::/20"
)
# A private service may name reports anywhere in its own network, whose size is unknown: at most one of these.
_PRIVATE: Final = _parse_networks("10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16 fc00::/7")
_METADATA: Final = _parse_networks("100.100.100.200/32 fd00:ec2::/32")  # of clouds, with credentials
_SITE_BITS: Final = 48  # a private IPv6 network has this prefix (RFC 4193)
_ISATAP: Final = (b"\0\0\x5e\xfe", b"\2\0\x5e\xfe")


def is_allowed_address(address: Address, service: frozenset[Address] = frozenset()) -> bool:
    """Return whether a report may be requested from `address`; `service` are the service's own addresses.

    This is the SSRF guard, and the only place that decides about an address: the service's own ones, public ones, and
    private ones in the network of a private service. A service on this machine opens no other loopback address.
    """
    address = getattr(address, "ipv4_mapped", None) or address
    if address in service or _is_public(address):
        return True
    return not _is_in(address, _METADATA) and any(_share_network(address, own) for own in service)


def _is_in(address: Address, networks: tuple[Any, ...]) -> bool:
    return any(address in network for network in networks)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and not _is_in(address, _GLOBAL_V6):
        return False
    return not _is_in(address, _NOT_PUBLIC) and all(map(_is_public, _find_embedded(address)))


def _find_embedded(address: Address) -> Iterator[ipaddress.IPv4Address]:
    """Yield the IPv4 addresses to which a gateway forwards: of NAT64, 6to4 and ISATAP."""
    packed = address.packed
    if address in _GLOBAL_V6[1] or packed[8:12] in _ISATAP:
        yield ipaddress.IPv4Address(packed[12:])
    if packed.startswith(b"\x20\x02") and address.version == 6:
        yield ipaddress.IPv4Address(packed[2:6])


def _share_network(address: Address, own: Address) -> bool:
    if address.version == 6 and not address.packed.startswith(own.packed[: _SITE_BITS // 8]):
        return False
    return any(address in network and own in network for network in _PRIVATE)


def origin(url: str) -> Origin:
    """Return scheme, host and port of a URL. Raises `ProtocolError` if it is not plain http or https."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ProtocolError("The service named an invalid URL.") from None
    if parts.scheme not in _PORTS or not host or "@" in parts.netloc:
        raise ProtocolError("The service named a URL that is not plain http or https.")
    try:
        return parts.scheme, normalize_host(host).rstrip("."), port or _PORTS[parts.scheme]
    except ValueError as problem:
        raise ProtocolError(f"The service named a URL that {problem}.") from None


def resolve_named_url(url: str, base: str, subject: str) -> tuple[str, Origin]:
    """Return a URL that the service at `base` names, absolute, and its origin. Raises `ProtocolError` about `subject`.

    Plain http is for this machine only. The service's own host is requested with the service's own scheme, because
    deployments that support only https return http URLs.
    """
    if not url.isprintable() or " " in url or "\\" in url:
        raise ProtocolError(f"The service named {subject} with control characters or spaces.")
    if (parts := _ABSOLUTE.fullmatch(url)) is None:
        try:
            joined = urljoin(f"{base}/", url)
        except ValueError:
            raise ProtocolError(f"The service named {subject} that is invalid.") from None
        if (parts := _ABSOLUTE.fullmatch(joined)) is None:
            raise ProtocolError("The service named a URL that is not plain http or https.")
    scheme, host, port = target = _check_origin(parts[1], base, subject)
    return f"{scheme}://{join_host_port(host, None if port == _PORTS[scheme] else port)}{parts[2]}", target


@lru_cache(_KEPT_ORIGINS)
def _check_origin(start: str, base: str, subject: str) -> Origin:
    """Return the origin to request for a URL that begins with `start`: scheme, host and port."""
    scheme, host, port = origin(start)
    own_scheme, own_host, _ = origin(base)
    if scheme == "http" and own_scheme == "https" and host == own_host and port == 80:
        scheme, port = "https", 443
    if scheme == "http" and not is_loopback(host):
        raise ProtocolError(f"The service named {subject} without https.")
    return scheme, host, port


class PrivateAddressError(OSError):
    """A host has an address that must not be requested."""


class SafeResolver:
    """A resolver for the HTTP library that returns only allowed addresses.

    The library connects to the returned addresses, so a name cannot resolve differently between check and use.
    """

    def __init__(self, service_host: str, *, proxy: str | None = None) -> None:
        self._service_host = service_host
        self._proxy_host = None if proxy is None else urlsplit(proxy).hostname
        address = parse_address(service_host)
        self.service: frozenset[Address] = frozenset(() if address is None else (address,))
        if address is None and is_loopback(service_host):
            self.service = _LOCALHOST

    async def resolve_service_host(self) -> None:
        """Resolve the service's addresses, if its host is a name and no proxy resolves it."""
        if not self.service and self._proxy_host is None:
            addresses = await self._look_up(self._service_host, 0, socket.AF_UNSPEC)
            self.service = frozenset(filter(None, (parse_address(entry["host"]) for entry in addresses)))

    def check_host(self, host: str) -> None:
        """Raise `PrivateAddressError` for an address, or this machine's name, that must not be requested."""
        address = parse_address(host)
        addresses = frozenset({address}) if address else _LOCALHOST if is_loopback(host) else frozenset()
        if addresses and not any(is_allowed_address(one, self.service) for one in addresses):
            raise PrivateAddressError

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[dict[str, Any]]:
        """Return the host's addresses in aiohttp's form. Raises `PrivateAddressError` if one is not allowed."""
        addresses = await self._look_up(host, port, family)
        if host == self._proxy_host:
            return addresses
        allowed = [entry for entry in addresses if self._is_allowed(entry["host"])]
        # This machine's name has two addresses, and the service may have one of them.
        if not allowed or (len(allowed) < len(addresses) and not is_loopback(host)):
            raise PrivateAddressError
        return allowed

    async def check_not_private(self, host: str) -> None:
        """Raise `PrivateAddressError` for a name that resolves here and must not be requested, even by a proxy."""
        if host == self._service_host:
            return
        try:
            addresses = await self._look_up(host, 0, socket.AF_UNSPEC)
        except OSError:  # behind a proxy hardly any name can be resolved
            return
        if not all(self._is_allowed(entry["host"]) for entry in addresses):
            raise PrivateAddressError

    def _is_allowed(self, host: str) -> bool:
        address = parse_address(host)
        return address is not None and is_allowed_address(address, self.service)

    async def close(self) -> None:
        """Do nothing; aiohttp calls it."""

    async def _look_up(self, host: str, port: int, family: socket.AddressFamily) -> list[dict[str, Any]]:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        common = {"hostname": host, "port": port, "flags": socket.AI_NUMERICHOST}
        return [
            {**common, "host": address[0], "family": address_family, "proto": protocol}
            for address_family, _, protocol, _, address in infos
        ]
