"""Validation of service URLs. Pure: the settings and the client use the same rules."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from urllib.parse import SplitResult

API_PREFIX: Final = "/api/v2"
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9])?\.?", re.ASCII)


def is_loopback(host: str) -> bool:
    """Return whether the host is this machine, by name or by address."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def validate_url(url: str) -> SplitResult:
    """Return the parts of an https URL, or of an http URL on this machine.

    Raises ValueError with a predicate ("must be ..."). The message never shows the URL: it may contain a secret.
    """
    if any(not char.isprintable() or char.isspace() or char in "\\\"'<>" for char in url):
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
    if parts.scheme == "http" and not is_loopback(host):
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
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{_encode_host(parts.hostname or '')}{port}{quote(path, safe='/%-._~!$&()*+,;=:@')}"


def _encode_host(host: str) -> str:
    if ":" in host:
        return f"[{host}]"
    if _HOST.fullmatch(host) and ".." not in host:
        return host
    try:
        encoded = host.encode("idna").decode()
    except UnicodeError:
        encoded = ""
    if not _HOST.fullmatch(encoded):
        raise ValueError("does not have a valid host name")
    return encoded
