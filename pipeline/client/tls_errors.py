"""What a failed TLS handshake means, and what to do: from OpenSSL's codes, without host or URL."""

from __future__ import annotations

import ssl
from typing import Final

NETWORK_HINT: Final = "Check base_url, the firewall and the proxy."
NO_TLS_HINT: Final = "Use the port for https. Only on this machine base_url may begin with http://."
_CA_HINT: Final = "Set SSL_CERT_FILE to the certificates of your own authority, or have the certificate replaced."
_CERTIFICATES: Final = {
    9: ("is not valid yet", "Check this machine's clock, or ask the service's owner to replace the certificate."),
    10: ("has expired", "Check this machine's clock, or ask the service's owner to renew the certificate."),
    18: ("is self-signed", _CA_HINT),
    19: ("has a self-signed certificate in its chain", _CA_HINT),
    20: ("has an issuer that is unknown on this machine", _CA_HINT),
    21: ("has an incomplete chain", _CA_HINT),
    23: ("was revoked", "Ask the service's owner to replace the certificate."),
    62: ("is for another host", "Set base_url to a host name in the certificate."),
    64: ("is for another address", "Set base_url to the host name instead of the IP address."),
}
_OLD_TLS_REASONS: Final = frozenset(
    {
        *("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE", "VERSION_TOO_LOW"),
        *("DH_KEY_TOO_SMALL", "EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "LEGACY_SIGALG_DISALLOWED"),
    }
)
_NOT_TLS_REASONS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
)


def describe_tls_error(error: ssl.SSLError) -> tuple[str, str]:
    """Return the problem and the hint for an error of the handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        detail, hint = _CERTIFICATES.get(error.verify_code, (f"is invalid: {error.verify_message}", _CA_HINT))
        return f"the service's certificate {detail}", hint
    reason = error.reason or ""
    if reason in _OLD_TLS_REASONS or "PROTOCOL_VERSION" in reason or "TOO_SMALL" in reason:
        message = "the service supports only an old TLS version (scanlake needs TLS 1.2 or later)"
        return message, "Ask the service's owner to enable TLS 1.2 or later."
    if reason in _NOT_TLS_REASONS:
        return "the port of base_url does not speak TLS", NO_TLS_HINT
    detail = reason.replace("_", " ").lower() or "no reason given"
    return f"the TLS handshake failed: {detail}", NETWORK_HINT
