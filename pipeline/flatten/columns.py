"""Whole columns at once: Arrow converts what is plain, the judges of `schemas.kinds` decide on the rest.

Arrow's own conversions accept less than the judges do, never more (a test holds them against each other),
so a column that Arrow takes needs no second look, and one that it refuses is judged value by value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from schemas import kinds
from schemas.instants import parse_instant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schemas.tables import Column

_REFUSED: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
_UTC: Final = pa.timestamp("us", "UTC")
_FIRST: Final = parse_instant("0001-01-01")
_LAST: Final = parse_instant("9999-12-31T23:59:59.999999Z")
_FLAGS: Final = frozenset({0, 1, None})

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
            if isinstance(value, str) and not value.isascii() and fitting[-1] != value:
                misfits.append(row)  # text that UTF-8 cannot say: the escaped form stands, the original in extra
    return pa.array(fitting, column.arrow), misfits


def _integers(values: Sequence[object]) -> pa.Array:
    # Arrow would take the Decimal 1.0 for the integer 1; only what was sent as an integer may pass here.
    if not all(type(value) is int or value is None for value in values):
        raise TypeError
    return pa.array(values, pa.int64())


def _instants(values: Sequence[object]) -> pa.Array:
    taken = pa.array(values, pa.string()).cast(_UTC)
    bounds = pc.min_max(taken.cast(pa.int64())).as_py()
    if bounds["min"] is not None and not _FIRST <= bounds["min"] <= bounds["max"] <= _LAST:
        raise ValueError
    return taken.cast(pa.timestamp("us"))


def _flags(values: Sequence[object]) -> pa.Array:
    if not all(type(value) in {int, bool, type(None)} for value in values) or not _FLAGS.issuperset(values):
        raise TypeError
    return pa.array([None if value is None else value == 1 for value in values], pa.bool_())


def _texts(values: Sequence[object]) -> pa.Array:
    return pa.array(values, pa.string())


def _numbers(values: Sequence[object]) -> pa.Array:
    taken = pa.array([None if value == "" else value for value in values], pa.string()).cast(pa.float64())
    if not pc.all(pc.is_finite(taken)).as_py() and taken.null_count < len(taken):
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
