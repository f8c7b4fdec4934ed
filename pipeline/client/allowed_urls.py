"""URLs that the service names: redirects, report URLs, and the guard against private addresses (SSRF)."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any, Final
from urllib.parse import urljoin, urlsplit, urlunsplit

from pipeline.errors import ProtocolError
from pipeline.urls import is_loopback

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_PORTS: Final = {"http": 80, "https": 443}


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL. Raises `ProtocolError` if it is not plain http or https."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip(".").lower(), parts.port
    except ValueError:
        raise ProtocolError("The service named an invalid URL.") from None
    if parts.scheme not in _PORTS or not host or "@" in parts.netloc:
        raise ProtocolError("The service named a URL that is not plain http or https.")
    return parts.scheme, host, port or _PORTS[parts.scheme]


def resolve_redirect(base: str, current: str, location: str | None) -> str | None:
    """Return the target of a redirect, None if it leaves the service (scheme, host and port of `base`)."""
    if not location or any(not char.isprintable() or char == "\\" for char in location):
        return None
    try:
        target = urljoin(current, location)
        return target if origin(target) == origin(base) else None
    except (ProtocolError, ValueError):
        return None


def is_login_redirect(location: str) -> bool:
    """Return whether a redirect leads to a sign-in page: the service does not accept the token."""
    return any(part in {"login", "signin", "sign-in", "auth"} for part in urlsplit(location).path.split("/"))


def parse_ip(host: str) -> Address | None:
    """Return the host as an IP address, None if it is a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def is_allowed_address(address: Address, service: Address | None) -> bool:
    """Return whether a report may be fetched from `address`; `service` is the service's own address, if known.

    This is the SSRF guard: only public addresses, unless the service itself is on this machine or in this private
    network.
    """
    mapped = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
    if mapped is not None:
        return is_allowed_address(mapped, service)
    if address.is_global and not address.is_multicast:
        return True
    if service is None or address.is_unspecified or address.is_multicast:
        return False
    if address == service or (address.is_loopback and service.is_loopback):
        return True
    private = address.is_private and not (address.is_loopback or address.is_link_local)
    return private and service.is_private and not service.is_loopback


def resolve_report_url(url: str, base: str) -> str:
    """Return the report's URL, absolute. Raises `ProtocolError` if it must not be requested.

    Plain http is for this machine only. The service's own host is requested with the service's own scheme, because
    deployments that support only https return http URLs.
    """
    if any(not char.isprintable() or char.isspace() or char == "\\" for char in url):
        raise ProtocolError("The service named a report URL with control characters or spaces.")
    try:
        target = urljoin(f"{base}/", url)
    except ValueError:
        raise ProtocolError("The service named an invalid report URL.") from None
    scheme, host, port = origin(target)
    own_scheme, own_host, _ = origin(base)
    if scheme == "http" and own_scheme == "https" and host == own_host and port == 80:
        parts = urlsplit(target)
        target = urlunsplit(parts._replace(scheme="https", netloc=parts.netloc.removesuffix(":80")))
        scheme = "https"
    if scheme == "http" and not is_loopback(host):
        raise ProtocolError("The service named a report URL without https.")
    return target


class PrivateAddressError(OSError):
    """A host has an address that must not be requested."""


class SafeResolver:
    """A resolver for the HTTP library that returns only allowed addresses.

    The library connects to the returned addresses, so a name cannot resolve differently between check and use.
    """

    def __init__(self, service_host: str, *, proxy: str | None = None) -> None:
        self._service_host = service_host
        self._proxy_host = None if proxy is None else urlsplit(proxy).hostname
        self.service: Address | None = parse_ip(service_host)
        if self.service is None and is_loopback(service_host):
            self.service = parse_ip("127.0.0.1")

    async def resolve_service_host(self) -> None:
        """Resolve the service's address, if its host is a name and no proxy resolves it."""
        if self.service is None and self._proxy_host is None:
            addresses = await self._look_up(self._service_host, 0, socket.AF_UNSPEC)
            self.service = parse_ip(addresses[0]["host"])

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[dict[str, Any]]:
        """Return the host's addresses in aiohttp's form. Raises `PrivateAddressError` if one is not allowed."""
        addresses = await self._look_up(host, port, family)
        if host != self._proxy_host:
            self._check_addresses(addresses)
        return addresses

    async def check_not_private(self, host: str) -> None:
        """Raise `PrivateAddressError` for a name that resolves here and must not be requested, even by a proxy."""
        if host == self._service_host:
            return
        try:
            addresses = await self._look_up(host, 0, socket.AF_UNSPEC)
        except OSError:  # behind a proxy hardly any name can be resolved
            return
        self._check_addresses(addresses)

    def _check_addresses(self, addresses: list[dict[str, Any]]) -> None:
        for entry in addresses:
            address = parse_ip(entry["host"])
            if address is None or not is_allowed_address(address, self.service):
                raise PrivateAddressError

    async def close(self) -> None:
        """Do nothing; aiohttp calls it."""

    async def _look_up(self, host: str, port: int, family: socket.AddressFamily) -> list[dict[str, Any]]:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        common = {"hostname": host, "port": port, "flags": socket.AI_NUMERICHOST}
        return [
            {**common, "host": address[0], "family": address_family, "proto": protocol}
            for address_family, _, protocol, _, address in infos
        ]
