"""Reading JSON exactly: the one way from received bytes to values.

Floats become `Decimal`, so no digit is lost; integers of any size stay exact. What strict JSON refuses but
services send all the same (NaN, lone surrogates, a byte order mark) is read by the slower stdlib parser.

A key that stands twice in one object: the last one counts, as in every parser. It is not flagged, because no
parser tells without a second reading of every document; the raw document keeps both.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

import msgspec

_MAX_DIGITS: Final = 4_300  # Python's own limit for int(); past it the digits are kept as text
_decode: Final = msgspec.json.Decoder(float_hook=Decimal).decode


class Unreadable(ValueError):
    """The bytes are not a JSON document. The message never shows them."""


def read_json(document: bytes) -> Any:
    """The document's value: dict, list, str, int, bool, None, or `Decimal` for a number with a fraction.

    Numbers that no `int` or `Decimal` can hold (10^5000, 1e(10^20), NaN) are their text. Raises `Unreadable`
    for anything that is no JSON, is cut, is not UTF-8, or is nested deeper than Python's stack.
    """
    try:
        return _decode(document)
    except (msgspec.MsgspecError, RecursionError, ValueError, ArithmeticError):
        return _read_lenient(document)


def _read_lenient(document: bytes) -> Any:
    try:
        return json.loads(
            document.decode("utf-8-sig"),
            parse_float=_exact,
            parse_int=_whole,
            parse_constant=str,
        )
    except UnicodeDecodeError:
        raise Unreadable("not UTF-8") from None
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except ValueError:
        raise Unreadable("not JSON, or cut off") from None


def _exact(digits: str) -> Decimal | str:
    try:
        number = Decimal(digits)
    except ArithmeticError:  # an exponent of 19 digits
        return digits
    return number if number.is_finite() else digits


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MAX_DIGITS else digits
