"""Conversion of columns by the converters of `schemas.value_types`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from schemas.value_types import TEXT, TypeMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schemas.tables import Column

_ESCAPED: Final = "lone surrogates, which UTF-8 cannot encode; the column has the escaped text"

Mismatch = tuple[int, str]
"""A row with a type mismatch, and the reason."""


def build_column(column: Column, values: Sequence[object]) -> tuple[pa.Array, list[Mismatch]]:
    """Return the column's array and its mismatches.

    The array is NULL in these rows, except for text with lone surrogates: the array has the escaped text.
    """
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
