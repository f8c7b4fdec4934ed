"""Cutting a JSON document into its members without decoding it: exact bytes, any depth, lenient about values.

The fast decoder refuses whole documents for one NaN, one lone surrogate, a byte order mark or a value nested
deeper than its stack. One such file must not cost its whole page, so these documents are cut here, by a
scanner that keeps its own stack and looks at structure only.
"""

from __future__ import annotations

import json
import re
from typing import Final

_BOM: Final = b"\xef\xbb\xbf"
_TOKEN: Final = re.compile(
    rb'[ \t\r\n]*(?:("(?:[^"\\]++|\\.)*+")'
    rb"|(-?[0-9][0-9.eE+-]*+|true|false|null|NaN|-?Infinity)"
    rb"|([\[{])|([\]}])|([,:]))",
    re.DOTALL,
)
_BLANK: Final = b" \t\r\n"
_PAIR: Final = {b"]": b"[", b"}": b"{"}


class Uncut(ValueError):
    """The bytes are not a whole JSON document. The message never shows them."""


def members(document: bytes) -> list[tuple[str, bytes]]:
    """The members of a JSON object, in order, each value as its exact bytes; a list's keys are its indexes.

    Raises `Uncut` when the document is no object or list, is cut off, or has anything after its end.
    """
    body = document.removeprefix(_BOM).strip(_BLANK)
    if body[:1] not in {b"{", b"["}:
        raise Uncut("neither an object nor a list")
    found: list[tuple[str, bytes]] = []
    at, keyed = 1, body[:1] == b"{"
    closing = b"}" if keyed else b"]"
    if body[1:].lstrip(_BLANK) == closing:
        return found
    while True:
        key = str(len(found))
        if keyed:
            key, at = _key(body, at)
        start, at = _value(body, at)
        found.append((key, body[start:at]))
        token, at = _next(body, at)
        if token == closing:
            break
        if token != b",":
            raise Uncut("no comma between members")
    if body[at:].strip(_BLANK):
        raise Uncut("something follows the document")
    return found


def _next(body: bytes, at: int) -> tuple[bytes, int]:
    token = _TOKEN.match(body, at)
    if token is None:
        raise Uncut("not JSON, or cut off")
    return token[token.lastindex or 0], token.end()


def _key(body: bytes, at: int) -> tuple[str, int]:
    token, at = _next(body, at)
    colon, at = _next(body, at)
    if token[:1] != b'"' or colon != b":":
        raise Uncut("a member without a key")
    try:
        return str(json.loads(token, strict=False)), at
    except ValueError:
        return token[1:-1].decode("utf-8", "replace"), at


def _value(body: bytes, at: int) -> tuple[int, int]:
    """Where the next value starts and ends. Inside it only brackets are matched, with a stack of our own."""
    token, end = _next(body, at)
    start = end - len(token)
    if token in {b",", b":", b"]", b"}"}:
        raise Uncut("a value is missing")
    stack = [token] if token in {b"[", b"{"} else []
    while stack:
        found = _TOKEN.match(body, end)
        if found is None:
            raise Uncut("not JSON, or cut off")
        end = found.end()
        if found.lastindex == 3:
            stack.append(found[3])
        elif found.lastindex == 4 and stack.pop() != _PAIR[found[4]]:
            raise Uncut("brackets do not match")
    return start, end
