"""Whole columns are what the judges make of each value."""

from __future__ import annotations

from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.flatten import rows
from schemas import value_types
from schemas.json_decode import JsonNumber
from schemas.tables import Column
from schemas.value_types import TypeMismatchError, ValueType
from tests.rows import every

KINDS = tuple(value for value in vars(value_types).values() if isinstance(value, ValueType))
_DIGITS = st.from_regex(r"[+-]?0?[0-9]{0,20}\.?[0-9]{0,20}([eE][+-]?[0-9]{0,6})?", fullmatch=True)
_TIMES = st.from_regex(
    r"[0-9]{4}-(0[0-9]|1[0-3])-[0-3][0-9]([Tt ]([01][0-9]|2[0-4])(:[0-6][0-9](:[0-6][0-9]([.,][0-9]{0,9})?)?)?"
    r" ?([Zz]|[+-][0-2][0-9]:?([0-6][0-9])?)?)?",
    fullmatch=True,
)
_WORDS = st.sampled_from(
    ["", " ", "nan", "NaN", "inf", "-Infinity", "true", "1", "0", "007", "0x1F", "1_0", "٣", "\ud800"]
)
_NUMBERS = st.integers() | st.sampled_from([0, 1, 2**53 + 1, 2**63, -(2**63), 2**64, 10**30, 1_700_000_000_000])
_FRACTIONS = st.decimals(allow_nan=False, allow_infinity=False).map(lambda number: JsonNumber(f"{number:e}"))
_PLAIN = st.none() | st.booleans() | _NUMBERS | _FRACTIONS
_ONE = _PLAIN | _DIGITS | _TIMES | _WORDS | st.text(max_size=5) | st.just([1]) | st.just({"a": JsonNumber("1.0")})
_COLUMNS = st.sampled_from([_NUMBERS, _DIGITS, _TIMES, _WORDS, st.booleans(), _ONE]).flatmap(
    lambda one: st.lists(one | st.none(), min_size=1, max_size=4)
)


def _column(kind: ValueType) -> Column:
    return Column("c", kind, 1, "A column.", "c")


def _judged(kind: ValueType, value: Any) -> Any:
    try:
        return kind.convert(value)
    except TypeMismatchError:
        return TypeMismatchError


@pytest.fixture(autouse=True, params=[False, True], ids=["small", "large"])
def _casts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Arrow cast as in the process of a large run, or not, as in a small one."""
    monkeypatch.setattr(rows, "_CASTS", "pyarrow.compute" if request.param else "no library")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(KINDS), _COLUMNS)
def test_a_column_is_what_its_judge_says(kind: ValueType, values: list[Any]) -> None:
    """A column holds exactly what its judge makes of each value, and names the rows that it refuses."""
    array, misfits = rows.build_column(_column(kind), values)
    judged = [_judged(kind, value) for value in values]
    assert array.type == _column(kind).arrow
    found = array.cast(pa.int64()) if kind is value_types.INSTANT else array
    assert found.to_pylist() == [None if value is TypeMismatchError else value for value in judged]
    lone = [
        kind is value_types.TEXT and isinstance(value, str) and text != value
        for value, text in zip(values, judged, strict=True)
    ]
    assert [row for row, _ in misfits] == [
        row for row, value in enumerate(judged) if value is TypeMismatchError or lone[row]
    ]


@every("odd", ["true", 2, -1, JsonNumber("1.0"), [1], {}])
def test_a_flag_is_zero_or_one(odd: Any) -> None:
    """Zero, one, their texts and booleans are flags, side by side; a text such as `true` is none."""
    plain = [True, 0, "1", "", None, 1, False, "0"]
    flags = [True, False, True, None, None, True, False, False]
    assert rows.build_column(_column(value_types.BOOLEAN), plain)[0].to_pylist() == flags
    array, misfits = rows.build_column(_column(value_types.BOOLEAN), [*plain, odd])
    assert (array.to_pylist(), misfits) == ([*flags, None], [(len(plain), "neither 0 nor 1")])


@every("edge", ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_moments_beyond_the_years_are_misfits(edge: str) -> None:
    """Moments before the year 1 and after 9999 are no instants, and their neighbours stay."""
    array, misfits = rows.build_column(_column(value_types.INSTANT), ["2023-12-11T15:02:51Z", edge])
    assert array.cast(pa.int64()).to_pylist() == [1_702_306_971_000_000, None]
    assert misfits == [(1, "not a timestamp")]


@every(("kind", "values"), product(KINDS, ([None], [None] * 600, [""], [])))
def test_a_column_without_values_keeps_its_type(kind: ValueType, values: list[Any]) -> None:
    """A column that is all null, blank or empty has its declared type, never Arrow's null type."""
    array, misfits = rows.build_column(_column(kind), values)
    assert array.type == _column(kind).arrow
    assert not misfits
    assert array.null_count == (0 if values == [""] and kind in {value_types.TEXT, value_types.JSON} else len(values))
