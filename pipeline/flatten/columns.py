"""Conversion of columns: by Arrow where possible, else value by value.

Arrow's conversions accept a subset of what the converters of `schemas.value_types` accept; a test compares both.
A column that Arrow accepts therefore needs no second check. Python converts a column that Arrow refuses.
"""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from schemas import value_types
from schemas.timestamps import parse_instant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schemas.tables import Column

_CONVERSION_ERRORS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
_NAIVE: Final = pa.timestamp("us")
_UTC: Final = pa.timestamp("us", "UTC")
_FIRST: Final = parse_instant("0001-01-01")
_LAST: Final = parse_instant("9999-12-31T23:59:59.999999Z")
_CANONICAL: Final = "^(0|-?[1-9][0-9]{0,18})$"
_BLANK: Final = pa.scalar("")
_NULL: Final = pa.scalar(None, pa.string())

_INTEGERS: Final = frozenset({int, NoneType})
_BOOLEANS: Final = frozenset({bool, NoneType})
_ZERO_OR_ONE: Final = frozenset({0, 1, None})

_ESCAPED: Final = "lone surrogates, which UTF-8 cannot encode; the column has the escaped text"

Mismatch = tuple[int, str]
"""A row with a type mismatch, and the reason."""


def build_column(column: Column, values: Sequence[object]) -> tuple[pa.Array, list[Mismatch]]:
    """Return the column's array and its mismatches.

    The array is NULL in these rows, except for text with lone surrogates: the array has the escaped text.
    """
    try:
        return _PLAIN[column.kind](values), []
    except _CONVERSION_ERRORS:
        return _convert_one_by_one(column, values)


def _convert_one_by_one(column: Column, values: Sequence[object]) -> tuple[pa.Array, list[Mismatch]]:
    convert = column.kind.convert
    converted: list[object] = []
    mismatches: list[Mismatch] = []
    for row, value in enumerate(values):
        try:
            converted.append(convert(value))
        except value_types.TypeMismatchError as error:
            converted.append(None)
            mismatches.append((row, str(error)))
        else:
            if column.kind is value_types.TEXT and isinstance(value, str) and converted[-1] != value:
                # UTF-8 cannot encode the text: the column has the escaped form, `extra` the text as sent.
                mismatches.append((row, _ESCAPED))
    return pa.array(converted, column.arrow), mismatches


def _to_integers(values: Sequence[object]) -> pa.Array:
    # Arrow converts the Decimal 1.0 to the integer 1; the column accepts only values sent as integers.
    if _INTEGERS.issuperset(map(type, values)):
        return pa.array(values, pa.int64())
    texts = _to_texts_or_null(values)
    if not pc.all(pc.match_substring_regex(texts, _CANONICAL), min_count=0).as_py():
        raise ValueError
    return texts.cast(pa.int64())


def _to_instants(values: Sequence[object]) -> pa.Array:
    texts = _to_texts_or_null(values)
    try:
        array = texts.cast(_UTC).cast(_NAIVE)
    except pa.ArrowInvalid:
        array = texts.cast(_NAIVE)  # no value has an offset: the interface specifies UTC
    bounds = pc.min_max(array.cast(pa.int64())).as_py()
    if bounds["min"] is not None and not _FIRST <= bounds["min"] <= bounds["max"] <= _LAST:
        raise ValueError
    return array


def _to_booleans(values: Sequence[object]) -> pa.Array:
    if _BOOLEANS.issuperset(map(type, values)):
        return pa.array(values, pa.bool_())
    if _INTEGERS.issuperset(map(type, values)) and _ZERO_OR_ONE.issuperset(values):
        return pa.array(values, pa.int8()).cast(pa.bool_())
    raise TypeError


def _to_texts(values: Sequence[object]) -> pa.Array:
    if _INTEGERS.issuperset(map(type, values)):
        return pa.array(values, pa.int64()).cast(pa.string())  # the service sends some text ids as numbers
    return pa.array(values, pa.string())


def _to_texts_or_null(values: Sequence[object]) -> pa.Array:
    texts = pa.array(values, pa.string())
    return pc.if_else(pc.equal(texts, _BLANK), _NULL, texts) if "" in values else texts


def _to_numbers(values: Sequence[object]) -> pa.Array:
    array = _to_texts_or_null(values).cast(pa.float64())
    if not pc.all(pc.is_finite(array), min_count=0).as_py():
        raise ValueError
    return array


def _to_json(values: Sequence[object]) -> pa.Array:
    return pa.array([None if value is None else value_types.encode_json(value) for value in values], pa.string())


_PLAIN: Final[dict[value_types.ValueType, Callable[[Sequence[object]], pa.Array]]] = {
    value_types.ID: _to_integers,
    value_types.COUNT: _to_integers,
    value_types.INSTANT: _to_instants,
    value_types.BOOLEAN: _to_booleans,
    value_types.TEXT: _to_texts,
    value_types.NUMBER: _to_numbers,
    value_types.JSON: _to_json,
}
