"""Removes the client's token from text and bodies."""

from __future__ import annotations

import re
from typing import Final

from pipeline.output.logs import log
from pipeline.output.redaction import base64_fragments, encoded_forms

_REDACTED: Final = "***"
_MIN_DISTINCT_CHARS: Final = 8  # a shorter token could be an ordinary word of the data
_JSON_ESCAPE: Final = re.compile(rb"\\(?:u00([2-7][0-9A-Fa-f])|.)", re.DOTALL)
_ASCII_ESCAPE: Final = re.compile(rb"\\u00[2-7]")


class TokenRedactor:
    """Replaces one token in text and bytes, in every form in which a service could return it."""

    def __init__(self, token: str) -> None:
        # The longest first: a form may contain a shorter one, and its rest would remain.
        forms = "|".join(map(_to_pattern, sorted(encoded_forms(token), key=len, reverse=True)))
        self._text_forms, self._byte_forms = re.compile(forms), re.compile(forms.encode())
        # Every form contains one of these keys, so most bodies are searched four times, not for every form.
        bases = [token, *base64_fragments(token)]
        self._search_keys = [max(re.findall("[A-Za-z0-9]+", base), key=len, default="").encode() for base in bases]
        self._is_distinct = len(token) >= _MIN_DISTINCT_CHARS
        self._has_warned = False

    def redact_text(self, text: str) -> str:
        """Return the text without the token."""
        return self._text_forms.sub(_REDACTED, text)

    def redact_body(self, body: bytes, *, error: bool) -> bytes:
        """Return the body without the token; `error`: it is shown in a message rather than stored as data."""
        if not (error or self._is_distinct):
            return body
        searched = _unescape(body) if b"\\" in body and _ASCII_ESCAPE.search(body) else body
        for key in self._search_keys:  # a loop: on this path a generator would double the cost
            if key in searched:
                break
        else:
            return body
        redacted, count = self._byte_forms.subn(_REDACTED.encode(), _unescape(body))
        if not count:
            return body
        if not (error or self._has_warned):
            self._has_warned = True
            hint = f"scanlake stores {_REDACTED} instead. Ask for a new token: others may have read this one."
            log.warning("token.redacted", reason="the service sends the token in its answers", hint=hint)
        return redacted

    def __repr__(self) -> str:
        return f"TokenRedactor({_REDACTED})"


def _to_pattern(form: str) -> str:
    r"""Return the pattern of a form: JSON within a string of JSON escapes a backslash again, so \/ can be \\/."""
    return re.escape(form).replace("/", r"\\*/").replace(r"\\u003d", r"\\+u003d")


def _unescape(document: bytes) -> bytes:
    r"""Return equal JSON with the characters of a token as they are: each can also be written as \u0041, or as \/."""
    return _JSON_ESCAPE.sub(_unescape_one, document)


def _unescape_one(escape: re.Match[bytes]) -> bytes:
    if escape[1] is None:
        return b"/" if escape[0] == rb"\/" else escape[0]
    character = bytes.fromhex(escape[1].decode())
    return b"\\" + character if character in {b'"', b"\\"} else character
