"""Types of the service's values, with one converter per type.

A converter converts a decoded JSON value to the lake's value, or raises `TypeMismatchError`. `null`, an absent key and,
except for text, an empty string mean "no value".
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from schemas.json_decode import JsonNumber
from schemas.timestamps import parse_instant

if TYPE_CHECKING:
    from collections.abc import Callable

_CANONICAL: Final = re.compile(r"0|-?[1-9]\d{0,18}", re.ASCII)
_INT64: Final = range(-(2**63), 2**63)
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_TO_ESCAPE: Final = re.compile("[\\\\\ud800-\udfff]")


class TypeMismatchError(ValueError):
    """A type mismatch. The error has no copy of the value, which is a customer's data."""


class ValueType(Struct, frozen=True):
    """A value type: its name, its SQL type and its converter."""

    name: str
    sql: str
    convert: Callable[[object], object]

    def convert_or_none(self, value: object) -> Any:
        """Return the converted value, None if the value does not fit."""
        try:
            return self.convert(value)
        except TypeMismatchError:
            return None


def _encode_number(value: object) -> msgspec.Raw:
    if isinstance(value, JsonNumber):
        return msgspec.Raw(value.encode())
    raise NotImplementedError(type(value))


_encode: Final = msgspec.json.Encoder(enc_hook=_encode_number).encode


def encode_json(value: object) -> str:
    """Return compact JSON of a decoded value, with `escape_surrogates` applied."""
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:
        return _encode(_escape_surrogates_deep(value)).decode()


def escape_surrogates(text: str) -> str:
    r"""Return the text with lone surrogates as backslash escapes.

    UTF-8 cannot encode lone surrogates. The escape is reversible: a text with surrogates gets double backslashes.
    Other texts stay unchanged. DuckDB refuses JSON's escape of a lone surrogate, so JSON gets the same escape.
    """
    return _escape(text) if _LONE_SURROGATE.search(text) else text


def _escape(text: str) -> str:
    return _TO_ESCAPE.sub(lambda match: "\\\\" if match[0] == "\\" else f"\\u{ord(match[0]):04x}", text)


def _escape_surrogates_deep(value: object) -> object:
    if isinstance(value, str):
        return escape_surrogates(value)
    if isinstance(value, list):
        return [_escape_surrogates_deep(item) for item in value]
    if isinstance(value, dict):
        # Escape all keys of the object, so that two keys never become equal.
        escape = _escape if any(map(_LONE_SURROGATE.search, value)) else str
        return {escape(key): _escape_surrogates_deep(item) for key, item in value.items()}
    return value


def _convert_integer(value: object) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        raise TypeMismatchError("a boolean where an integer belongs")
    if isinstance(value, str) and _CANONICAL.fullmatch(value):
        value = int(value)
    if isinstance(value, int) and value in _INT64:
        return value
    raise TypeMismatchError("not an exact 64-bit integer")


def _convert_instant(value: object) -> int | None:
    if value is None or value == "":
        return None
    if (instant := parse_instant(value)) is None:
        raise TypeMismatchError("not a timestamp")
    return instant


def _convert_boolean(value: object) -> bool | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return value
    if isinstance(value, int | str) and value in {0, 1, "0", "1"}:
        return value in {1, "1"}
    raise TypeMismatchError("neither 0 nor 1")


def _convert_text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return str(value) if value.isascii() else escape_surrogates(value)
    if isinstance(value, bool | int):
        return encode_json(value)  # keeps every digit
    raise TypeMismatchError("an object or a list where text belongs")


def _convert_number(value: object) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        raise TypeMismatchError("not a number")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeMismatchError("not a number")
    try:
        number = float(value)
    except (OverflowError, ValueError):
        raise TypeMismatchError("too large a number") from None
    if not math.isfinite(number):
        raise TypeMismatchError("not a finite number")
    return number


ID: Final = ValueType("id", "BIGINT", _convert_integer)
COUNT: Final = ValueType("count", "BIGINT", _convert_integer)
INSTANT: Final = ValueType("instant", "TIMESTAMP", _convert_instant)
BOOLEAN: Final = ValueType("flag", "BOOLEAN", _convert_boolean)
TEXT: Final = ValueType("text", "VARCHAR", _convert_text)
NUMBER: Final = ValueType("number", "DOUBLE", _convert_number)
JSON: Final = ValueType("json", "JSON", lambda value: None if value is None else encode_json(value))
