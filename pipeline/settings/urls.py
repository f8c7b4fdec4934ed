"""Validation of service URLs. Pure: the settings and the client use the same rules."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from urllib.parse import SplitResult

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
API_PREFIX: Final = "/api/v2"
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9])?\.?", re.ASCII)
_NUMBER: Final = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)\.?", re.IGNORECASE)
_KEPT_HOSTS: Final = 256  # a crawl asks for the same few hosts again and again


@lru_cache(_KEPT_HOSTS)
def normalize_host(host: str) -> str:
    """Return a URL's host: a name in ASCII and lower case, or an IP address in its usual form.

    Raises ValueError with a predicate ("has ..."). Resolvers also accept `127.1`, `0x7f000001`, `2130706433` and
    full-width digits as addresses. No top-level domain is a number, so a host that ends in one must be an IP address.
    """
    if "%" in host:
        raise ValueError("has an escaped host or a zone id")
    try:
        if ":" in host:
            return str(ipaddress.IPv6Address(host))
        name = _encode_name(host)
        if _NUMBER.fullmatch(name.rstrip(".").rpartition(".")[2]):
            return str(ipaddress.IPv4Address(host))
    except ipaddress.AddressValueError:
        raise ValueError("has an IP address in an unusual form") from None
    return name


def _encode_name(host: str) -> str:
    encoded = host
    if not host.isascii():
        try:
            encoded = host.encode("idna").decode()
        except UnicodeError:
            encoded = ""
    if not _HOST.fullmatch(encoded) or ".." in encoded:
        raise ValueError("does not have a valid host name")
    return encoded.lower()


@lru_cache(_KEPT_HOSTS)
def parse_address(host: str) -> Address | None:
    """Return a host of `normalize_host` as an IP address, None for a name. An IPv4-mapped address becomes IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@lru_cache(_KEPT_HOSTS)
def is_loopback(host: str) -> bool:
    """Return whether the host is this machine, by name or by address."""
    address = parse_address(host)
    return host.rstrip(".").lower() == "localhost" if address is None else address.is_loopback


def join_host_port(host: str, port: int | None) -> str:
    """Return host and port as in a URL."""
    return (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")


def validate_url(url: str) -> SplitResult:
    """Return the parts of an https URL, or of an http URL on this machine.

    Raises ValueError with a predicate ("must be ..."). The message never shows the URL: it may contain a secret.
    """
    if not url.isprintable() or any(char in url for char in " \\\"'<>"):
        raise ValueError("must not have white space, quotes, backslashes or control characters")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("is not a URL") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise ValueError("must look like https://service.example")
    if "@" in parts.netloc:
        raise ValueError("must not have a user or password; the token has its own setting")
    if "?" in url or "#" in url:
        raise ValueError("must not have a query or a fragment; the token has its own setting")
    if not is_loopback(normalize_host(host)) and parts.scheme == "http":
        raise ValueError("must be https; http is for this machine (127.0.0.1) only")
    return parts


def normalize_base_url(url: str) -> str:
    """Return the base URL without `/api/v2` and without a trailing slash.

    Raises ValueError as `validate_url` does.
    """
    parts = validate_url(url)
    path = parts.path.rstrip("/")
    while path.endswith(API_PREFIX):
        path = path.removesuffix(API_PREFIX).rstrip("/")
    if any(part in {".", ".."} for part in path.split("/")) or "//" in path:
        raise ValueError("must not have `.`, `..` or `//` in its path")
    netloc = join_host_port(normalize_host(parts.hostname or ""), parts.port)
    return f"{parts.scheme}://{netloc}{quote(path, safe='/%-._~!$&()*+,;=:@')}"


def validate_proxy_url(url: str) -> str:
    """Return the URL of an HTTP proxy without a trailing slash. Raises `ValueError`."""
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme == "http" and parts.hostname and parts.port is not None
    except ValueError:
        is_plain = False
    if not is_plain or "@" in url or parts.path not in {"", "/"} or re.search(r"[\s?#\x00-\x1f\x7f]", url):
        raise ValueError("must look like http://proxy.example:3128, without user or password")
    return url.rstrip("/")
