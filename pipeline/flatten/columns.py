"""Conversion of columns by the converters of `schemas.value_types`, or by Arrow where its result is the same."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from schemas.timestamps import is_in_range
from schemas.value_types import BOOLEAN, COUNT, ID, INSTANT, NUMBER, TEXT, TypeMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.tables import Column
    from schemas.value_types import ValueType

_ESCAPED: Final = "lone surrogates, which UTF-8 cannot encode; the column has the escaped text"
_CASTS: Final = "pyarrow.compute"
"""The library of Arrow's casts. To load it takes as long as to convert 70,000 values, so a small run does not."""
_UTC: Final = pa.timestamp("us", "UTC")

Mismatch = tuple[int, str]
"""A row with a type mismatch, and the reason."""


def load_casts() -> None:
    """Load the library of Arrow's casts, in a process that converts many values."""
    pa.nulls(0, pa.string()).cast(pa.binary())


def build_column(column: Column, values: Sequence[object]) -> tuple[pa.Array, list[Mismatch]]:
    """Return the column's array and its mismatches.

    The array is NULL in these rows, except for text with lone surrogates: the array has the escaped text.
    """
    try:
        if (array := _convert_all(column.kind, column.arrow, values)) is not None:
            return array, []
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
        pass  # some value is not as plain as its type
    return _convert_each(column, values)


def _convert_all(kind: ValueType, arrow: pa.DataType, values: Sequence[object]) -> pa.Array | None:
    """Return the array of plain values, None for others. Arrow converts these as the converter does, six times faster.

    Raises Arrow's error, or that of the interpreter, if one of the values is not plain.
    """
    types = set(map(type, values)) - {type(None)}
    if not types:
        return pa.nulls(len(values), arrow)
    if (kind is TEXT and types == {str}) or (kind in {ID, COUNT} and types == {int}):
        return pa.array(values, arrow)
    if kind is TEXT and types == {int}:
        return pa.array([None if value is None else str(value) for value in values], arrow)
    if kind is BOOLEAN and (types == {bool} or (types == {int} and {0, 1, None}.issuperset(values))):
        return pa.array([None if value is None else bool(value) for value in values], arrow)
    if types == {str} and kind in {INSTANT, NUMBER} and _CASTS in sys.modules:
        texts = pa.array([value or None for value in values], pa.string())
        return _cast_instants(texts) if kind is INSTANT else _cast_numbers(texts)
    return None


def _cast_instants(texts: pa.Array) -> pa.Array | None:
    """Return the instants of texts that all have a zone; None if one has no year that the lake's instants have."""
    instants = texts.cast(_UTC).cast(pa.int64())
    return instants.cast(pa.timestamp("us")) if all(map(is_in_range, instants.drop_null().to_pylist())) else None


def _cast_numbers(texts: pa.Array) -> pa.Array | None:
    numbers = texts.cast(pa.float64())
    return numbers if all(map(float("inf").__gt__, map(abs, numbers.drop_null().to_pylist()))) else None


def _convert_each(column: Column, values: Sequence[object]) -> tuple[pa.Array, list[Mismatch]]:
    """Return the column's array and its mismatches, value by value."""
    convert = column.kind.convert
    mismatches: list[Mismatch] = []
    try:
        converted = list(map(convert, values))
    except TypeMismatchError:
        converted = []
        for row, value in enumerate(values):
            try:
                converted.append(convert(value))
            except TypeMismatchError as error:
                converted.append(None)
                mismatches.append((row, str(error)))
    if column.kind is TEXT:
        # UTF-8 cannot encode the text: the column has the escaped form, `extra` the text as sent.
        pairs = enumerate(zip(values, converted, strict=True))
        mismatches += [(row, _ESCAPED) for row, (sent, text) in pairs if sent != text and isinstance(sent, str)]
        mismatches.sort()
    return pa.array(converted, column.arrow), mismatches
