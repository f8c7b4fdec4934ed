"""Redaction: no secret leaves the process, in whatever form, and no query of a URL."""

from __future__ import annotations

import base64
import json
import re
from functools import partial
from typing import Final
from urllib.parse import quote, quote_plus

from pipeline.output.formatting import escape_controls

REDACTED: Final = "[secret]"
_URL_QUERY: Final = re.compile(r"""((?:https?://|/)[^\s'"<>?]*)\?[^\s'"<>]+""")
_URL_USER: Final = re.compile(r"(https?://)[^\s/@'\"]+@")
_encoded_secrets: Final[set[str]] = set()
_secret_pattern: re.Pattern[str] | None = None
MIN_SECRET_CHARS: Final = 4  # a shorter fragment is too common to be replaced in text
_URL_SAFE: Final = str.maketrans("+/", "-_")


def register_secrets(*secrets: str) -> None:
    """Keep these out of all later output, plain, URL-encoded and in base64."""
    global _secret_pattern  # noqa: PLW0603 - the secrets of the process
    for secret in secrets:
        if len(secret) >= MIN_SECRET_CHARS:
            _encoded_secrets.update(encoded_forms(secret))
    longest_first = sorted(_encoded_secrets, key=len, reverse=True)
    _secret_pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def redact(text: str) -> str:
    """Return the text without registered secrets and without the query of any URL."""
    if _secret_pattern is not None:
        text = _secret_pattern.sub(REDACTED, text)
    return _URL_USER.sub(r"\1", _URL_QUERY.sub(r"\1?...", text))


def to_one_line(text: str) -> str:
    """Return the text redacted and as `escape_controls` returns it."""
    return escape_controls(redact(text))


def encoded_forms(secret: str) -> set[str]:
    """Return the forms in which a secret can appear: plain, URL-encoded, JSON-escaped, and base64."""
    # A token that is base64 can come without its end, or as URLs have it.
    dressed = {text for text in (secret.rstrip("="), secret.translate(_URL_SAFE)) if len(text) >= MIN_SECRET_CHARS}
    spellings = {secret, *dressed}
    forms = {encode(text) for text in spellings for encode in (str, partial(quote, safe=""), quote, quote_plus)}
    forms |= {re.sub("%..", lambda escape: escape[0].lower(), form) for form in forms}
    for escaped in {text for form in spellings for text in (form, json.dumps(form)[1:-1])}:
        slashes = escaped.replace("/", "\\/")
        forms |= {escaped, slashes, escaped.replace("=", "\\u003d"), slashes.replace("=", "\\u003d")}
    base64_text = base64.b64encode(secret.encode()).decode()
    encoded = {base64_text, base64_text.rstrip("=")}
    encoded |= {fragment for fragment in base64_fragments(secret) if len(fragment) >= MIN_SECRET_CHARS}
    return forms | encoded | {text.translate(_URL_SAFE) for text in encoded}


def base64_fragments(secret: str) -> list[str]:
    """Return the base64 text of a secret at each of its three alignments in a longer text.

    A fragment has only the characters that do not depend on the neighbouring bytes.
    """
    raw = secret.encode()
    texts = [base64.b64encode(b"\0" * shift + raw).decode() for shift in range(3)]
    return [text[-(-shift * 8 // 6) : (shift + len(raw)) * 8 // 6] for shift, text in enumerate(texts)]
