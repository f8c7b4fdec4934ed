"""Tokens: what makes one unusable, the forms in which one can appear in text, and those in the environment."""

from __future__ import annotations

import base64
import json
import os
import re
from functools import partial
from typing import Final
from urllib.parse import quote, quote_plus

MIN_SECRET_CHARS: Final = 4  # a shorter fragment is too common to be replaced in text

_URL_SAFE: Final = str.maketrans("+/", "-_")
_TOKEN_PREFIX: Final = "SCANLAKE_TOKEN"  # noqa: S105 - the variable's name, not a token
_NOT_TOKEN_VARIABLES: Final = frozenset({"SCANLAKE_TOKEN_FILE", "SCANLAKE_TOKEN_LOCATION"})


class Secret:
    """A text that no repr and no message shows."""

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text


def tokens_in_environment() -> list[str]:
    """Return the tokens in the environment, of all sources. No command-line argument may contain one."""
    return [
        value
        for name, value in os.environ.items()
        if name.startswith(_TOKEN_PREFIX) and name not in _NOT_TOKEN_VARIABLES
    ]


def environment_without_tokens(*allowed: str) -> dict[str, str]:
    """Return the environment of a process that needs no token, or none but those of the variables `allowed`."""
    tokens = set(tokens_in_environment()) - {""}
    return {name: value for name, value in os.environ.items() if name in allowed or value not in tokens}


def find_token_problem(token: str) -> str | None:
    """Return what makes a token unusable, as a predicate without the token; None if nothing does."""
    if not token:
        return "is empty"
    if token.strip().lower() == "bearer" or token.strip().lower().startswith("bearer "):
        return "starts with `Bearer`"
    if any(char.isspace() for char in token):
        return "holds white space"
    if any(char in "\"'`" for char in token):
        return "holds a quotation mark"
    if not (token.isascii() and token.isprintable()):
        return "holds characters that a token cannot have"
    return None


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
