"""Whole columns at once: Arrow converts what is plain, the judges of `schemas.kinds` decide on the rest.

Arrow's own conversions accept less than the judges do, never more (a test holds them against each other),
so a column that Arrow takes needs no second look, and one that it refuses is judged value by value.
"""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from schemas import kinds
from schemas.instants import parse_instant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schemas.tables import Column

_REFUSED: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
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

Misfits = list[int]


def build(column: Column, values: Sequence[object]) -> tuple[pa.Array, Misfits]:
    """The column's array, and the rows whose value did not fit (NULL in the array)."""
    try:
        return _PLAIN[column.kind](values), []
    except _REFUSED:
        return _judged(column, values)


def _judged(column: Column, values: Sequence[object]) -> tuple[pa.Array, Misfits]:
    judge = column.kind.judge
    fitting: list[object] = []
    misfits: Misfits = []
    for row, value in enumerate(values):
        try:
            fitting.append(judge(value))
        except kinds.Misfit:
            fitting.append(None)
            misfits.append(row)
        else:
            if column.kind is kinds.TEXT and isinstance(value, str) and fitting[-1] != value:
                misfits.append(row)  # text that UTF-8 cannot say: its escaped form stands, and extra tells of it
    return pa.array(fitting, column.arrow), misfits


def _integers(values: Sequence[object]) -> pa.Array:
    # Arrow would take the Decimal 1.0 for the integer 1; only what was sent as an integer may pass here.
    if _INTEGERS.issuperset(map(type, values)):
        return pa.array(values, pa.int64())
    texts = _texts_or_null(values)
    if not pc.all(pc.match_substring_regex(texts, _CANONICAL), min_count=0).as_py():
        raise ValueError
    return texts.cast(pa.int64())


def _instants(values: Sequence[object]) -> pa.Array:
    texts = _texts_or_null(values)
    try:
        taken = texts.cast(_UTC).cast(_NAIVE)
    except pa.ArrowInvalid:
        taken = texts.cast(_NAIVE)  # none with an offset: UTC, as the interface says
    bounds = pc.min_max(taken.cast(pa.int64())).as_py()
    if bounds["min"] is not None and not _FIRST <= bounds["min"] <= bounds["max"] <= _LAST:
        raise ValueError
    return taken


def _flags(values: Sequence[object]) -> pa.Array:
    if _BOOLEANS.issuperset(map(type, values)):
        return pa.array(values, pa.bool_())
    if _INTEGERS.issuperset(map(type, values)) and _ZERO_OR_ONE.issuperset(values):
        return pa.array(values, pa.int8()).cast(pa.bool_())
    raise TypeError


def _texts(values: Sequence[object]) -> pa.Array:
    if _INTEGERS.issuperset(map(type, values)):
        return pa.array(values, pa.int64()).cast(pa.string())  # ids that may be text, sent as numbers
    return pa.array(values, pa.string())


def _texts_or_null(values: Sequence[object]) -> pa.Array:
    texts = pa.array(values, pa.string())
    return pc.if_else(pc.equal(texts, _BLANK), _NULL, texts) if "" in values else texts


def _numbers(values: Sequence[object]) -> pa.Array:
    taken = _texts_or_null(values).cast(pa.float64())
    if not pc.all(pc.is_finite(taken), min_count=0).as_py():
        raise ValueError
    return taken


def _json(values: Sequence[object]) -> pa.Array:
    return pa.array([None if value is None else kinds.spell_json(value) for value in values], pa.string())


_PLAIN: Final[dict[kinds.Kind, Callable[[Sequence[object]], pa.Array]]] = {
    kinds.ID: _integers,
    kinds.COUNT: _integers,
    kinds.INSTANT: _instants,
    kinds.FLAG: _flags,
    kinds.TEXT: _texts,
    kinds.NUMBER: _numbers,
    kinds.JSON: _json,
}
