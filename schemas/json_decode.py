"""Exact JSON decoder for received documents, and a splitter for those that it refuses.

Numbers with a fraction keep their digits, and integers of any size stay exact. Services also send what strict JSON
forbids: NaN, lone surrogates, a byte order mark. The slower stdlib parser reads these documents.

If an object has a key twice, the last value counts, as in every parser. The decoder does not report the
duplicate, because detection needs a second pass over every document. The raw document keeps both.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

_MAX_DIGITS: Final = 4_300  # Python's limit for int(); longer numbers stay text


class JsonNumber(str):
    """A number with a fraction or an exponent: its digits, as sent."""

    __slots__ = ()


_decode: Final = msgspec.json.Decoder(float_hook=JsonNumber).decode


class InvalidJsonError(ValueError):
    """An error for bytes that are not a JSON document. The message never shows them."""


def decode_json(document: bytes) -> Any:
    """Return the document's value.

    The value is a dict, list, str, int, bool, None, or `JsonNumber`. Numbers outside `int` (10^5000) and NaN are text.
    Raises `InvalidJsonError` if the document is not JSON, is cut off, is not UTF-8, or is nested deeper than Python's
    stack.
    """
    try:
        return _decode(document)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return _read_lenient(document)


def decode_object(document: bytes) -> dict[str, Any]:
    """Return the members of a JSON object; none if the document is anything else."""
    try:
        value = decode_json(document)
    except InvalidJsonError:
        return {}
    return value if isinstance(value, dict) else {}


def _read_lenient(document: bytes) -> Any:
    try:
        return json.loads(
            document.decode("utf-8-sig"), parse_float=JsonNumber, parse_int=_parse_integer, parse_constant=str
        )
    except UnicodeDecodeError:
        raise InvalidJsonError("not UTF-8") from None
    except RecursionError:
        raise InvalidJsonError("nested too deeply") from None
    except ValueError:
        raise InvalidJsonError("not JSON, or cut off") from None


def _parse_integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MAX_DIGITS else digits


_BOM: Final = b"\xef\xbb\xbf"
_TOKEN: Final = re.compile(
    rb'[ \t\r\n]*(?:("(?:[^"\\]++|\\.)*+")'
    rb"|(-?[0-9][0-9.eE+-]*+|true|false|null|NaN|-?Infinity)"
    rb"|([\[{])|([\]}])|([,:]))",
    re.DOTALL,
)
_OPENING_GROUP: Final = 3
_CLOSING_GROUP: Final = 4
_BLANK: Final = b" \t\r\n"
_PAIR: Final = {b"]": b"[", b"}": b"{"}


def split_members(document: bytes) -> list[tuple[str, bytes]]:
    """Return the members of a JSON object in order, each value as its exact bytes; the keys of a list are indexes.

    The decoder refuses whole documents for one NaN, one lone surrogate, a byte order mark or a value nested deeper than
    its stack. One such file must not cost its whole page. This path is rare, so depth matters more than speed:
    `json.JSONDecoder.raw_decode` takes 44 us instead of 417 us for 8 kB with a NaN, but fails for 100,000 nested lists.
    Raises `InvalidJsonError` if the document is not an object or list, is cut off, or is followed by anything.
    """
    body = document.removeprefix(_BOM).strip(_BLANK)
    if body[:1] not in {b"{", b"["}:
        raise InvalidJsonError("neither an object nor a list")
    members: list[tuple[str, bytes]] = []
    at, is_object = 1, body[:1] == b"{"
    closing = b"}" if is_object else b"]"
    if body[1:].lstrip(_BLANK) == closing:
        return members
    while True:
        key = str(len(members))
        if is_object:
            key, at = _read_key(body, at)
        start, at = _skip_value(body, at)
        members.append((key, body[start:at]))
        token, at = _next_token(body, at)
        if token == closing:
            break
        if token != b",":
            raise InvalidJsonError("no comma between members")
    if body[at:].strip(_BLANK):
        raise InvalidJsonError("text after the document")
    return members


def _next_token(body: bytes, at: int) -> tuple[bytes, int]:
    token = _TOKEN.match(body, at)
    if token is None:
        raise InvalidJsonError("not JSON, or cut off")
    return token[token.lastindex or 0], token.end()


def _read_key(body: bytes, at: int) -> tuple[str, int]:
    token, at = _next_token(body, at)
    colon, at = _next_token(body, at)
    if token[:1] != b'"' or colon != b":":
        raise InvalidJsonError("a member without a key")
    try:
        return str(json.loads(token, strict=False)), at
    except ValueError:
        return token[1:-1].decode("utf-8", "replace"), at


def _skip_value(body: bytes, at: int) -> tuple[int, int]:
    """Return where the next value starts and ends. Inside it only brackets are matched, with an explicit stack."""
    token, end = _next_token(body, at)
    start = end - len(token)
    if token in {b",", b":", b"]", b"}"}:
        raise InvalidJsonError("a value is missing")
    stack = [token] if token in {b"[", b"{"} else []
    while stack:
        match = _TOKEN.match(body, end)
        if match is None:
            raise InvalidJsonError("not JSON, or cut off")
        end = match.end()
        if match.lastindex == _OPENING_GROUP:
            stack.append(match[_OPENING_GROUP])
        elif match.lastindex == _CLOSING_GROUP and stack.pop() != _PAIR[match[_CLOSING_GROUP]]:
            raise InvalidJsonError("brackets do not match")
    return start, end
