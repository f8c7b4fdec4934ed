"""Which addresses may be asked: redirects within the service, and reports from where the service names."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urljoin, urlsplit, urlunsplit

from pipeline.errors import ContractBroken
from pipeline.service.address import is_loopback

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_PORTS: Final = {"http": 80, "https": 443}


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL. Raises `ContractBroken` when it is none of ours to ask."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip(".").lower(), parts.port
    except ValueError:
        raise ContractBroken("the service named an address that is none") from None
    if parts.scheme not in _PORTS or not host or "@" in parts.netloc:
        raise ContractBroken("the service named an address that is not plain http or https")
    return parts.scheme, host, port or _PORTS[parts.scheme]


def same_origin_target(base: str, current: str, location: str | None) -> str | None:
    """Where a redirect leads, or None when that is not the service itself (scheme, host and port)."""
    if not location or any(not mark.isprintable() or mark == "\\" for mark in location):
        return None
    try:
        target = urljoin(current, location)
        return target if origin(target) == origin(base) else None
    except (ContractBroken, ValueError):
        return None


def leads_to_login(location: str) -> bool:
    """Whether a redirect leads to a page where people sign in: the token is not taken."""
    return any(part in {"login", "signin", "sign-in", "auth"} for part in urlsplit(location).path.split("/"))


def literal_address(host: str) -> Address | None:
    """The host as an IP address, when it is spelled as one."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def may_ask(address: Address, service: Address | None) -> bool:
    """Whether a report may be fetched from `address`. `service`: where the service is, if not public.

    Public addresses only, unless the service itself is on this machine or in this private network.
    """
    mapped = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
    if mapped is not None:
        return may_ask(mapped, service)
    if address.is_global and not address.is_multicast:
        return True
    if service is None or address.is_unspecified or address.is_multicast:
        return False
    if address == service or (address.is_loopback and service.is_loopback):
        return True
    private = address.is_private and not (address.is_loopback or address.is_link_local)
    return private and service.is_private and not service.is_loopback


def report_address(url: str, base: str) -> str:
    """The report's URL as it is to be asked, absolute. Raises `ContractBroken` for what must not be.

    Plain http is for this machine only; the service's own host is asked by the service's own scheme, since
    deployments that speak https only name http all the same.
    """
    if any(not mark.isprintable() or mark.isspace() or mark == "\\" for mark in url):
        raise ContractBroken("the service named a report address with control characters or spaces")
    try:
        target = urljoin(f"{base}/", url)
    except ValueError:
        raise ContractBroken("the service named a report address that is none") from None
    scheme, host, port = origin(target)
    own_scheme, own_host, _ = origin(base)
    if scheme == "http" and own_scheme == "https" and host == own_host and port == 80:
        parts = urlsplit(target)
        target = urlunsplit(parts._replace(scheme="https", netloc=parts.netloc.removesuffix(":80")))
        scheme = "https"
    if scheme == "http" and not is_loopback(host):
        raise ContractBroken("the service named a report address without https")
    return target
