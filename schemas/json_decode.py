"""Exact JSON decoder for received documents.

Numbers with a fraction keep their digits, and integers of any size stay exact. Services also send what strict JSON
forbids: NaN, lone surrogates, a byte order mark. The slower stdlib parser reads these documents.

If an object has a key twice, the last value counts, as in every parser. The decoder does not report the
duplicate, because detection needs a second pass over every document. The raw document keeps both.
"""

from __future__ import annotations

import json
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
