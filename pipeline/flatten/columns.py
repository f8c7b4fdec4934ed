"""Conversion of columns by the converters of `schemas.value_types`, or by Arrow where its result is the same."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

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
_FLAGS: Final[dict[object, bool | None]] = {None: None, "": None, False: False, True: True, "0": False, "1": True}
"""The plain flags; 0 and 1 are equal to `False` and `True`."""
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
    except (pa.ArrowException, KeyError, OverflowError, TypeError, UnicodeEncodeError):
        pass  # some value is not as plain as its type
    return _convert_each(column, values)


def _convert_all(kind: ValueType, arrow: pa.DataType, values: Sequence[object]) -> pa.Array | None:
    """Return the array of plain values, None for others. Arrow converts these as the converter does, six times faster.

    Raises an error of Arrow or of the interpreter if one of the values is not plain: Arrow takes no text for an
    integer, no integer for a text, and no boolean for either.
    """
    compute = sys.modules.get(_CASTS)
    if kind is BOOLEAN:
        return pa.array(map(_FLAGS.__getitem__, values), arrow, size=len(values))
    if kind is ID or kind is COUNT or (kind is TEXT and compute is None):
        return pa.array(values, arrow)
    if kind is TEXT:
        try:
            return pa.array(values, arrow)
        except pa.ArrowTypeError:
            return pa.array(values, pa.int64()).cast(arrow)
    if (kind is INSTANT or kind is NUMBER) and compute is not None:
        texts = pa.array([None if value == "" else value for value in values] if "" in values else values, pa.string())
        return _cast_instants(texts, compute) if kind is INSTANT else _cast_numbers(texts, compute)
    return None


def _cast_instants(texts: pa.Array, compute: Any) -> pa.Array | None:
    """Return the instants of texts that all have a zone; None if one has no year that the lake's instants have."""
    instants = texts.cast(_UTC).view(pa.int64())
    bounds = compute.min_max(instants).as_py().values()
    return instants.view(pa.timestamp("us")) if all(bound is None or is_in_range(bound) for bound in bounds) else None


def _cast_numbers(texts: pa.Array, compute: Any) -> pa.Array | None:
    numbers = texts.cast(pa.float64())
    return numbers if numbers.null_count == len(numbers) or compute.all(compute.is_finite(numbers)).as_py() else None


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
