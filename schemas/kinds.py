"""The kinds of value the service sends, and one judge for each.

A judge takes a decoded JSON value and gives ours, or raises `Misfit`. It is the only place where a value is
accepted or refused: pydantic models (`wire`) and the vectorised columns (`pipeline.flatten`) both ask it.
`null`, an absent key and, for every kind but text, an empty string mean "no value".
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pydantic_core import core_schema

from schemas.instants import parse_instant

if TYPE_CHECKING:
    from collections.abc import Callable

_CANONICAL: Final = re.compile(r"0|-?[1-9]\d{0,18}", re.ASCII)
_INT64: Final = range(-(2**63), 2**63)
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_TO_ESCAPE: Final = re.compile("[\\\\\ud800-\udfff]")
_encode = msgspec.json.Encoder(decimal_format="number").encode


class Misfit(ValueError):
    """The value does not fit its kind. It carries no copy of the value: values are other people's data."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: its name, what it becomes in a table, its type in SQL, and its judge."""

    name: str
    meaning: str
    sql: str
    judge: Callable[[object], object]

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        """Let pydantic ask the same judge as the columns do."""
        return core_schema.no_info_plain_validator_function(self.judge)


def spell_json(value: object) -> str:
    """Compact JSON of a decoded value, safe for Arrow and DuckDB: see `escape_surrogates`."""
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:
        return _encode(_spell_surrogates(value)).decode()


def escape_surrogates(text: str) -> str:
    r"""The text, with lone surrogates, which UTF-8 cannot say, written as backslash escapes.

    Reversible: in a text that has any, backslashes are doubled. Other texts stay as they are. DuckDB refuses
    JSON's own escape of a lone surrogate, so the same form stands in JSON.
    """
    return _escape(text) if _LONE_SURROGATE.search(text) else text


def _escape(text: str) -> str:
    return _TO_ESCAPE.sub(lambda found: "\\\\" if found[0] == "\\" else f"\\u{ord(found[0]):04x}", text)


def _spell_surrogates(value: object) -> object:
    if isinstance(value, str):
        return escape_surrogates(value)
    if isinstance(value, list):
        return [_spell_surrogates(item) for item in value]
    if isinstance(value, dict):
        # All keys of the object, so that no two of them become one.
        spell = _escape if any(map(_LONE_SURROGATE.search, value)) else str
        return {spell(key): _spell_surrogates(item) for key, item in value.items()}
    return value


def _judge_integer(value: object) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        raise Misfit("a boolean where an integer belongs")
    if isinstance(value, str) and _CANONICAL.fullmatch(value):
        value = int(value)
    if isinstance(value, int) and value in _INT64:
        return value
    raise Misfit("not an exact 64-bit integer")


def _judge_instant(value: object) -> int | None:
    if value is None or value == "":
        return None
    instant = parse_instant(value)
    if instant is None:
        raise Misfit("not a moment in time")
    return instant


def _judge_flag(value: object) -> bool | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return value
    if isinstance(value, int | str) and value in {0, 1, "0", "1"}:
        return value in {1, "1"}
    raise Misfit("neither 0 nor 1")


def _judge_text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value if value.isascii() else escape_surrogates(value)
    if isinstance(value, bool | int | Decimal):
        return spell_json(value)  # every digit that came
    raise Misfit("an object or a list where text belongs")


def _judge_number(value: object) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        raise Misfit("not a number")
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise Misfit("not a number")
    try:
        number = float(value)
    except (OverflowError, ValueError):
        raise Misfit("too large a number") from None
    if not math.isfinite(number):
        raise Misfit("not a finite number")
    return number


def _judge_json(value: object) -> str | None:
    return None if value is None else spell_json(value)


ID: Final = Kind("id", "exact 64-bit integer", "BIGINT", _judge_integer)
COUNT: Final = Kind("count", "integer", "BIGINT", _judge_integer)
INSTANT: Final = Kind("instant", "UTC, microseconds", "TIMESTAMP", _judge_instant)
FLAG: Final = Kind("flag", "true or false", "BOOLEAN", _judge_flag)
TEXT: Final = Kind("text", "text", "VARCHAR", _judge_text)
NUMBER: Final = Kind("number", "number", "DOUBLE", _judge_number)
JSON: Final = Kind("json", "JSON", "JSON", _judge_json)
