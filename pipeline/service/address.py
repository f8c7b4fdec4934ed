"""Where the service is and what opens it: base address and token, judged before the first request."""

from __future__ import annotations

import base64
import ipaddress
import re
from typing import Final
from urllib.parse import quote, urlsplit

from pipeline.errors import SettingsError

API: Final = "/api/v2"
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9])?\.?", re.ASCII)
_TOKEN: Final = re.compile(r"[!#-&(-~]+", re.ASCII)  # visible ASCII without quotes
_MASK: Final = "***"


def is_loopback(host: str) -> bool:
    """Whether the host is this machine, by name or by address."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def read_base_url(text: str) -> str:
    """The base address without `/api/v2` and without a trailing slash. Raises `SettingsError`."""
    remedy = "Set base_url to something like https://files.example.com"
    text = text.strip()
    if any(not mark.isprintable() or mark.isspace() or mark in "\\\"'<>" for mark in text):
        raise SettingsError("base_url holds spaces, quotes or control characters", remedy=remedy)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise SettingsError("base_url is not an address", remedy=remedy) from None
    if parts.scheme not in {"http", "https"} or not host:
        raise SettingsError("base_url needs https:// and a host", remedy=remedy)
    if "@" in parts.netloc:
        raise SettingsError("base_url must not hold a user or a password", remedy=remedy)
    if "?" in text or "#" in text:
        raise SettingsError("base_url must not hold a query or a fragment", remedy=remedy)
    if parts.scheme == "http" and not is_loopback(host):
        raise SettingsError("base_url: plain http is only for this machine itself", remedy="Use https://")
    return f"{parts.scheme}://{_spell_host(host)}{f':{port}' if port else ''}{_read_path(parts.path)}"


def _spell_host(host: str) -> str:
    if ":" in host:
        return f"[{host}]"
    if _HOST.fullmatch(host) and ".." not in host:
        return host
    try:
        spelled = host.encode("idna").decode()
    except UnicodeError:
        spelled = ""
    if not _HOST.fullmatch(spelled):
        raise SettingsError("base_url: that is no host name", remedy="Check base_url for a typing error.")
    return spelled


def _read_path(path: str) -> str:
    path = path.rstrip("/")
    while path.endswith(API):
        path = path.removesuffix(API).rstrip("/")
    if any(part in {".", ".."} for part in path.split("/")) or "//" in path:
        raise SettingsError("base_url: its path must be plain", remedy="Take `.`, `..` and `//` out of it.")
    return quote(path, safe="/%-._~!$&()*+,;=:@")


def read_token(token: str) -> str:
    """The token as it is to be sent. Raises `SettingsError`, which never shows the value."""
    remedy = "Set SCANLAKE_TOKEN, or token_file, to the bare token."
    if not token:
        raise SettingsError("the token is empty", remedy=remedy)
    if token.strip().lower().startswith("bearer ") or token.strip().lower() == "bearer":
        raise SettingsError("the token starts with `Bearer `", remedy=remedy)
    if token != token.strip() or any(mark.isspace() for mark in token):
        raise SettingsError("the token holds a space or a line break", remedy=remedy)
    if not _TOKEN.fullmatch(token):
        raise SettingsError("the token holds quotes, control or non-ASCII characters", remedy=remedy)
    return token


class Mask:
    """Hides one token in text and bytes, in every spelling a service could echo it in."""

    def __init__(self, token: str) -> None:
        quoted = quote(token, safe="")
        plain = base64.b64encode(token.encode()).decode()
        spellings = {
            token,
            quoted,
            quote(token),
            re.sub("%..", lambda found: found[0].lower(), quoted),
            token.replace("/", "\\/"),
            token.replace("=", "\\u003d"),
            token.replace("/", "\\/").replace("=", "\\u003d"),
            plain,
            plain.rstrip("="),
            base64.urlsafe_b64encode(token.encode()).decode(),
        }
        # The longest first: a spelling may hold a shorter one, and its rest would stay.
        self._texts = sorted(spellings, key=len, reverse=True)
        self._bytes = [text.encode() for text in self._texts]
        # Every spelling holds one of these, so that most bodies are searched twice and not ten times.
        runs = (max(re.findall("[A-Za-z0-9]+", text) or [text], key=len) for text in (token, plain))
        self._cores = [run.encode() for run in runs]
        # In people's data a short token could be an ordinary word; there only long ones are hidden.
        self._distinct = len(token) >= 8

    def text(self, text: str) -> str:
        """The text without the token."""
        for spelling in self._texts:
            text = text.replace(spelling, _MASK)
        return text

    def body(self, body: bytes, *, error: bool) -> bytes:
        """The body without the token; `error`: it is shown to people rather than kept as data."""
        if not (error or self._distinct):
            return body
        for core in self._cores:  # every body comes by here: a generator would cost as much again
            if core in body:
                break
        else:
            return body
        for spelling in self._bytes:
            if spelling in body:
                body = body.replace(spelling, _MASK.encode())
        return body

    def __repr__(self) -> str:
        return "Mask(***)"
