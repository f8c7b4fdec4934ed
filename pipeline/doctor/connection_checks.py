"""Checks of the connection to the service: address, port, TLS, token and clock."""

from __future__ import annotations

import socket
import ssl
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pipeline.client.probe import probe_service
from pipeline.client.tls_errors import NETWORK_HINT, describe_tls_error
from pipeline.doctor.finding import Finding, from_error, ok, problem, warning
from pipeline.errors import ExitCode, ScanlakeError
from pipeline.formatting import pluralize

if TYPE_CHECKING:
    from pipeline.settings import Settings

_CONNECT_SECONDS: Final = 10.0
_CLOCK_SKEW_LIMITS_SECONDS: Final = (5.0, 60.0)  # above the first: a note; above the second: a warning
_EXPIRES_SOON_SECONDS: Final = 14 * 86_400
_MAX_REPLY_BYTES: Final = 16_384


def check_connection(base_url: str, proxy: str | None = None) -> list[Finding]:
    """Return findings for address, port and certificate of the service. Stop at the first error."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if proxy is not None and parts.scheme == "https":
        proxy_parts = urlsplit(proxy)
        findings, line = _connect(proxy_parts.hostname or "", proxy_parts.port or 80, "proxy")
        refusal = _open_tunnel(line, host, port) if line is not None else None
        if refusal is not None:
            findings.append(problem("proxy", refusal, "Correct `proxy`, or ask its administrator.", ExitCode.FAILED))
    else:
        findings, line = _connect(host, port, "base_url")
    if line is not None:
        with line:
            if parts.scheme == "https" and not any(finding.state == "error" for finding in findings):
                findings.append(_check_tls(line, host))
    return findings


def _connect(host: str, port: int, setting: str) -> tuple[list[Finding], socket.socket | None]:
    try:
        records = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        hint = f"Check {setting} for a typing error, and check this machine's DNS."
        return [problem("address", f"{host} cannot be resolved", hint, ExitCode.FAILED)], None
    addresses = list(dict.fromkeys(str(record[4][0]) for record in records))
    findings = [ok("address", f"{host} is {', '.join(addresses[:3])}")]
    line, reason = _try_addresses(addresses, port)
    if line is None:
        hint = f"Check {setting}, the firewall and the proxy."
        findings.append(problem("connect", f"no connection to {host}, port {port}: {reason}", hint, ExitCode.FAILED))
    else:
        findings.append(ok("connect", f"port {port} answers"))
    return findings, line


def _open_tunnel(line: socket.socket, host: str, port: int) -> str | None:
    """Open a tunnel to a host through a proxy. Return None for success, else the reason."""
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        line.sendall(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode("ascii"))
        reply = b""
        while b"\r\n\r\n" not in reply and len(reply) < _MAX_REPLY_BYTES:
            part = line.recv(1_024)
            if not part:
                break
            reply += part
    except (OSError, UnicodeError):
        reply = b""
    status = reply.split(None, 2)[1:2]
    if status == [b"200"]:
        return None
    answer = status[0].decode("ascii", "replace") if status and status[0].isdigit() else "without HTTP"
    return f"the proxy refuses the tunnel to {host}: its answer is {answer}"


def _try_addresses(addresses: list[str], port: int) -> tuple[socket.socket | None, str]:
    reason = "no address"
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=_CONNECT_SECONDS), ""
        except TimeoutError:
            reason = f"no answer in {_CONNECT_SECONDS:g} s"
        except OSError as error:
            reason = (error.strerror or "refused").lower()
    return None, reason


def _check_tls(line: socket.socket, host: str) -> Finding:
    try:
        with ssl.create_default_context().wrap_socket(line, server_hostname=host) as secured:
            version, certificate = secured.version() or "TLS", secured.getpeercert() or {}
    except ssl.SSLError as error:
        return problem("tls", *describe_tls_error(error), ExitCode.FAILED)
    except OSError:
        return problem("tls", "the connection was lost during the TLS handshake", NETWORK_HINT, ExitCode.FAILED)
    expires = certificate.get("notAfter")
    remaining = ssl.cert_time_to_seconds(str(expires)) - time.time() if expires else _EXPIRES_SOON_SECONDS
    message = f"{version}, certificate valid for {remaining / 86_400:,.0f} more days"
    if remaining < _EXPIRES_SOON_SECONDS:
        return warning("tls", message, "Ask the service's owner to renew the certificate.")
    return ok("tls", message)


async def check_token(settings: Settings, token: str) -> list[Finding]:
    """Return findings for the token and the clock, from one list call with one file."""
    try:
        probe = await probe_service(settings, token)
    except ScanlakeError as error:
        return [from_error("token", error)]
    total = "" if probe.files is None else f"; the service has {pluralize(probe.files, 'file')}"
    message = f"accepted: the service answered a list call in {probe.seconds * 1000:,.0f} ms{total}"
    return [ok("token", message), _check_clock(probe.clock_seconds_ahead)]


def _check_clock(service_ahead: float | None) -> Finding:
    if service_ahead is None:
        hint = "Nothing to do: the watermark stays ten minutes behind this machine's clock."
        return warning("clock", "the service sends no Date header", hint)
    skew = -service_ahead
    if abs(skew) < _CLOCK_SKEW_LIMITS_SECONDS[0]:
        return ok("clock", "equals the service's clock")
    direction = "ahead of" if skew > 0 else "behind"
    message = f"this machine's clock is {abs(skew):,.0f} s {direction} the service's"
    if abs(skew) < _CLOCK_SKEW_LIMITS_SECONDS[1]:
        return ok("clock", message)
    return warning("clock", message, "Synchronize this machine's clock by NTP: scanlake computes ages with it.")
