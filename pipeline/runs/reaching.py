"""Whether the service can be reached, step by step, so that what fails has its own name."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pipeline.errors import Exit, ScanlakeError
from pipeline.runs.clients import make_client
from pipeline.runs.finding import Finding, fault, ok, told, warning
from pipeline.runs.session import local_us
from pipeline.wording import many
from schemas.instants import SECOND
from schemas.requests import FileQuery

if TYPE_CHECKING:
    from pipeline.settings import Settings

_CONNECT_SECONDS: Final = 10.0
_ASK_SECONDS: Final = 30.0
_SKEW: Final = (5.0, 60.0)  # seconds: worth a word, worth a warning
_EXPIRES_SOON: Final = 14 * 86_400
_CONTROL: Final = "Check base_url, and whether a firewall or proxy lies between."
_LONGEST_REPLY: Final = 16_384
_ISSUER: Final = "If it is your own authority, name its certificates in SSL_CERT_FILE; else have it replaced."
_CERTIFICATES: Final = {
    9: ("is not valid yet", "Check this machine's clock; else the service's certificate has to be replaced."),
    10: ("has expired", "The service's owner has to renew it; check this machine's clock, too."),
    18: ("is self-signed", _ISSUER),
    19: ("comes from an authority of its own (self-signed)", _ISSUER),
    20: ("comes from an authority that is not known here", _ISSUER),
    21: ("comes without its authority's certificates", _ISSUER),
    23: ("was revoked", "The service's owner has to replace it."),
    62: ("is for another host", "Check the host in base_url; the name has to be one the certificate is for."),
    64: ("is for another address", "Use the host's name in base_url, not its number."),
}
_OLD: Final = frozenset(
    {
        *("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE", "VERSION_TOO_LOW"),
        *("DH_KEY_TOO_SMALL", "EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "LEGACY_SIGALG_DISALLOWED"),
    }
)
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})


def reach(base_url: str, proxy: str | None = None) -> list[Finding]:
    """The way to the service's door: its name, a connection, its certificate. Ends at the first fault."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if proxy is not None and parts.scheme == "https":
        door = urlsplit(proxy)
        findings, line = _line_to(door.hostname or "", door.port or 80, "proxy")
        refusal = _tunnelled(line, host, port) if line is not None else None
        if refusal is not None:
            findings.append(fault("proxy", refusal, "Ask who runs the proxy, or mend `proxy`.", Exit.FAILED))
    else:
        findings, line = _line_to(host, port, "base_url")
    if line is not None:
        with line:
            if parts.scheme == "https" and not any(finding.state == "fault" for finding in findings):
                findings.append(_secured(line, host))
    return findings


def _line_to(host: str, port: int, setting: str) -> tuple[list[Finding], socket.socket | None]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        remedy = f"Check {setting} for a typing error, and this machine's DNS."
        return [fault("address", f"the name {host} cannot be resolved", remedy, Exit.FAILED)], None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    findings = [ok("address", f"{host} is {', '.join(addresses[:3])}")]
    line, reason = _connected(addresses, port)
    if line is None:
        control = f"Check {setting}, and whether a firewall or proxy lies between."
        findings.append(fault("connect", f"no connection to {host}, port {port}: {reason}", control, Exit.FAILED))
    else:
        findings.append(ok("connect", f"port {port} answers"))
    return findings, line


def _tunnelled(line: socket.socket, host: str, port: int) -> str | None:
    """Ask a proxy for the way to a host: None when it is open, else why not."""
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        line.sendall(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode("ascii"))
        reply = b""
        while b"\r\n\r\n" not in reply and len(reply) < _LONGEST_REPLY:
            part = line.recv(1_024)
            if not part:
                break
            reply += part
    except (OSError, UnicodeError):
        reply = b""
    status = reply.split(None, 2)[1:2]
    if status == [b"200"]:
        return None
    told_ = status[0].decode("ascii", "replace") if status and status[0].isdigit() else "nothing that is HTTP"
    return f"the proxy does not open the way to {host}: it answers {told_}"


def _connected(addresses: list[str], port: int) -> tuple[socket.socket | None, str]:
    reason = "no address"
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=_CONNECT_SECONDS), ""
        except TimeoutError:
            reason = f"no answer in {_CONNECT_SECONDS:g} s"
        except OSError as error:
            reason = (error.strerror or "refused").lower()
    return None, reason


def _secured(line: socket.socket, host: str) -> Finding:
    try:
        with ssl.create_default_context().wrap_socket(line, server_hostname=host) as secured:
            version, certificate = secured.version() or "TLS", secured.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        problem, remedy = _CERTIFICATES.get(error.verify_code, (f"is refused: {error.verify_message}", _ISSUER))
        return fault("tls", f"the service's certificate {problem}", remedy, Exit.FAILED)
    except ssl.SSLError as error:
        return _refused(error.reason or "")
    except OSError:
        return fault("tls", "the connection was lost while TLS was agreed upon", _CONTROL, Exit.FAILED)
    ends = certificate.get("notAfter")
    left = ssl.cert_time_to_seconds(str(ends)) - time.time() if ends else _EXPIRES_SOON
    days = f"{version}, certificate valid for {left / 86_400:,.0f} more days"
    if left < _EXPIRES_SOON:
        return warning("tls", days, "The service's owner should renew it in time.")
    return ok("tls", days)


def _refused(reason: str) -> Finding:
    if reason in _OLD or "PROTOCOL_VERSION" in reason or "TOO_SMALL" in reason:
        message = "the service speaks only an old TLS, which is not safe (TLS 1.2 is the least)"
        return fault("tls", message, "The service's owner has to bring its TLS up to date.", Exit.FAILED)
    if reason in _NO_TLS:
        return fault("tls", "that port does not speak TLS", "Check the port in base_url.", Exit.FAILED)
    spelled = reason.replace("_", " ").lower() or "no reason given"
    return fault("tls", f"TLS could not be agreed upon: {spelled}", _CONTROL, Exit.FAILED)


async def ask(settings: Settings, token: str) -> list[Finding]:
    """One cheap list call: it proves the token, and shows the service's clock."""
    quick = settings.model_copy(update={"attempts": 2, "request_seconds": min(settings.request_seconds, _ASK_SECONDS)})
    async with make_client(quick, token) as client:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                page = await client.list(FileQuery(limit=1))
        except TimeoutError:
            remedy = "Try again later: it may be overloaded, or ask to wait."
            return [fault("token", f"no answer to a list call in {_ASK_SECONDS:g} s", remedy, Exit.FAILED)]
        except ScanlakeError as error:
            return [told("token", error)]
        taken = time.monotonic() - began
        counted = "" if page.total is None else f"; the service has {many(page.total, 'file')}"
        findings = [ok("token", f"taken: a list call was answered in {taken * 1000:,.0f} ms{counted}")]
        findings.append(_skew(client.clock.now()))
    return findings


def _skew(now: int | None) -> Finding:
    if now is None:
        remedy = "Nothing to do; the horizon then stays ten minutes behind this machine's clock."
        return warning("clock", "the service does not tell its time (no Date)", remedy)
    skew = (local_us() - now) / SECOND
    if abs(skew) < _SKEW[0]:
        return ok("clock", "agrees with the service's")
    side = "ahead of" if skew > 0 else "behind"
    message = f"this machine's clock is {abs(skew):,.0f} s {side} the service's"
    if abs(skew) < _SKEW[1]:
        return ok("clock", message)
    return warning("clock", message, "Set it by NTP. Syncs go by the service's clock; ages shown here do not.")
