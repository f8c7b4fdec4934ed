"""The judges and the instants: exact, or refused; never rounded, never guessed."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas import timestamps
from schemas.json_decode import JsonNumber
from schemas.timestamps import SECOND, format_instant, from_datetime, parse_instant, to_datetime
from schemas.value_types import (
    BOOLEAN,
    COUNT,
    ID,
    INSTANT,
    JSON,
    NUMBER,
    TEXT,
    TypeMismatchError,
    ValueType,
    encode_json,
    escape_surrogates,
)
from tests.rows import every

_NO_ID: list[Any] = [2**63, 2**64, 10**30, "9223372036854775808", -(2**63) - 1, "007", "+1", "-0", "1.0", " 1"]
_NO_ID += ["1e3", "\u0663", "0x10", JsonNumber("1.0"), True, "NaN", [], {}, [1], 1.0]
_NO_FLAG: list[Any] = ["true", "yes", 2, -1, JsonNumber("1.0"), [], "01"]
_NO_TEXT: list[Any] = [[], {}, ["a"], 1.5]
_NO_NUMBER: list[Any] = ["NaN", "Infinity", "1e999", JsonNumber("1e999"), 10**400, True, "1_0", "0x1", "1,5", []]
_NO_INSTANT: list[Any] = ["soon", "2023-02-30", True, {}, JsonNumber("1.5")]

_FRACTIONS = st.decimals(allow_nan=False, allow_infinity=False).map(lambda number: JsonNumber(f"{number:e}"))
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | _FRACTIONS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_ANY_TEXT = st.text(st.sampled_from("\ud800\udfff\\ud8fa0é"), max_size=8) | st.text()


@every(
    ("kind", "sent", "expected"),
    [
        *((ID, number, number) for number in (2**53 + 1, 2**63 - 1, -(2**63))),
        *((ID, str(number), number) for number in (2**53 + 1, 0)),
        *((kind, "", None) for kind in (ID, BOOLEAN, NUMBER, INSTANT)),
        *((kind, None, None) for kind in (ID, JSON)),
        (COUNT, 17, 17),
        *((BOOLEAN, sent, True) for sent in (1, "1", True)),
        (BOOLEAN, 0, False),
        *(
            (TEXT, text, text)
            for text in ("", "007", "a\x00b", "\ufeffbom", "e\u0301", "\u00e9", "👩\u200d🚀", "\u202egnp")
        ),
        *((TEXT, JsonNumber(digits), digits) for digits in ("0.1234567890123456789", "-0.0")),
        *((TEXT, True, "true"), (TEXT, 10**30, "1" + "0" * 30), (TEXT, "\ud800", "\\ud800")),
        *((NUMBER, "51.5", 51.5), (NUMBER, JsonNumber("-0.0"), -0.0), (NUMBER, 7, 7.0), (NUMBER, "1e-99999", 0.0)),
        (INSTANT, "2023-12-11", 1_702_252_800_000_000),
        (JSON, {"a": [JsonNumber("1.10"), 2**64]}, '{"a":[1.10,18446744073709551616]}'),
        # A lone surrogate at any depth, in key or value, is escaped in the way DuckDB can read.
        (JSON, {"\ud800": ["\udfff", {"k": "\ud800"}]}, '{"\\\\ud800":["\\\\udfff",{"k":"\\\\ud800"}]}'),
        (JSON, int("9" * 4300), "9" * 4300),
    ],
)
def test_what_fits_is_taken_exactly(kind: ValueType, sent: object, expected: object) -> None:
    """A value that fits its kind is taken with every digit and every character it came with."""
    judged = kind.convert(sent)
    assert judged == expected
    assert type(judged) is type(expected)


@every(
    ("kind", "sent"),
    [
        *((ID, sent) for sent in _NO_ID),
        *((BOOLEAN, sent) for sent in _NO_FLAG),
        *((TEXT, sent) for sent in _NO_TEXT),
        *((NUMBER, sent) for sent in _NO_NUMBER),
        *((INSTANT, sent) for sent in _NO_INSTANT),
    ],
)
def test_what_does_not_fit_is_refused(kind: ValueType, sent: object) -> None:
    """A value that does not fit is refused, never rounded or coerced, and the refusal does not show it."""
    with pytest.raises(TypeMismatchError) as refused:
        kind.convert(sent)
    assert not isinstance(sent, str) or len(sent) < 3 or sent not in str(refused.value)


@given(_VALUES)
def test_spelled_json_says_the_same(value: object) -> None:
    """JSON that we spell reads back as the same value, digit for digit."""
    assert json.loads(encode_json(value), parse_float=JsonNumber) == value


@given(_ANY_TEXT)
@example("\\ud800\ud800")
def test_escaped_text_is_fit_for_utf8_and_reversible(text: str) -> None:
    """Text with lone surrogates becomes UTF-8 and can be turned back; all other text stays as it is."""
    escaped = escape_surrogates(text)
    escaped.encode()
    if escaped == text:
        return
    turned = re.sub(r"\\(\\|u(....))", lambda found: chr(int(found[2], 16)) if found[2] else "\\", escaped)
    assert turned == text


@example({"\ud800": 1, "\\ud800": 2})
@given(st.dictionaries(_ANY_TEXT, st.integers(), max_size=6))
def test_no_two_keys_become_one(value: dict[str, int]) -> None:
    """Keys with lone surrogates stay apart from keys that look like their escape."""
    assert sorted(json.loads(encode_json(value)).values()) == sorted(value.values())


_MOMENTS = st.datetimes(timezones=st.just(UTC))


def _at(text: str) -> int:
    """Return what the interpreter reads, for expected values."""
    return from_datetime(datetime.fromisoformat(f"{text}+00:00"))


_SECOND: Final = _at("2023-12-11T15:02:51")
_EXACT: Final = "2023-12-11T15:02:51"


@every(
    ("sent", "expected"),
    [
        *(
            (sent, _SECOND)
            for sent in (f"{_EXACT}+00:00", "2023-12-11 15:02:51", "2023-12-11t15:02:51z", f"{_EXACT} Z")
        ),
        *((sent, _SECOND) for sent in (f" {_EXACT}Z ", f"{_EXACT}-00:00", "2023-12-12T05:02:51+14:00")),
        *((sent, _SECOND) for sent in ("2023-12-11T11:32:51-0330", "2023-12-11T20:02:51+05", 1_702_306_971)),
        *((sent, _SECOND + 500_000) for sent in (f"{_EXACT},5Z", 1_702_306_971_500)),
        (f"{_EXACT}.727000Z", _SECOND + 727_000),
        (f"{_EXACT}.123456789Z", _SECOND + 123_456),
        (f"{_EXACT}.999999999Z", _SECOND + 999_999),
        *(
            (f"2023-12-11{rest}", _at(f"2023-12-11T{full}"))
            for rest, full in (("", "00"), ("T15", "15"), ("T15:02", "15:02"))
        ),
        ("2016-12-31T23:59:60Z", _at("2017-01-01")),
        *((f"2023-12-31T24:00:00{rest}Z", _at("2024-01-01")) for rest in ("", ".000")),
        ("0001-01-01T00:00:00Z", _at("0001-01-01")),
        ("9999-12-31T23:59:59.999999Z", _at("9999-12-31T23:59:59.999999")),
        *((0, 0), (-1, -SECOND)),
    ],
)
def test_every_spelling_of_the_policy_is_read(sent: object, expected: int) -> None:
    """Each spelling that the policy names is read as the moment it names, in any time zone of ours."""
    assert parse_instant(sent) == expected


_NO_MOMENTS: Final[tuple[object, ...]] = (
    *("", " ", "now", "2023-02-30T00:00:00Z", "2023-13-01", "2023-00-01", "0000-01-01T00:00:00Z", "\u0662\u0660-12-11"),
    *("10000-01-01T00:00:00Z", "+2023-12-11T15:02:51Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"),
    *("9999-12-31T24:00:00Z", "2023-12-11T24:00:01Z", "2023-12-11T24:00:00.000001Z", "2023-12-11T25:00:00Z"),
    *("2023-12-11T15:60:00Z", "2023-12-11T15:02:61Z", f"{_EXACT}+24:00", f"{_EXACT}+05:60", f"{_EXACT}+05:"),
    *(f"{_EXACT}.Z", "2023-12-11Z", f"{_EXACT}ZZ", f"{_EXACT}Z\x00", "2023/12/11", "11.12.2023", "20231211T150251Z"),
    *("1702306971", True, None, 1.5, [], {}, 10**30, -(10**30), 1_702_306_971_000_000),
)


@every("sent", _NO_MOMENTS)
def test_what_names_no_moment_is_none(sent: object) -> None:
    """What the policy does not name is no moment: never a guess, never an exception."""
    assert parse_instant(sent) is None


@given(_MOMENTS, st.integers(-14 * 60, 14 * 60), st.text("0123456789", min_size=6, max_size=30))
def test_spelling_and_reading_are_inverse(moment: datetime, minutes: int, digits: str) -> None:
    """A moment is the same in any offset; we spell its second; more digits are cut, never rounded."""
    micros = from_datetime(moment)
    second = micros - micros % SECOND
    assert to_datetime(micros) == moment
    assert parse_instant(format_instant(micros)) == second
    assert parse_instant(f"{format_instant(micros)[:-1]}.{digits}Z") == second + int(digits[:6])
    with suppress(OverflowError):
        assert parse_instant(moment.astimezone(timezone(timedelta(minutes=minutes))).isoformat()) == micros


@given(st.text() | st.from_regex(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:?\d\d)?", fullmatch=True))
def test_no_text_raises(text: str) -> None:
    """Any text is a moment or none, and a moment always lies in the years 1 to 9999."""
    read = parse_instant(text)
    assert read is None or 1 <= to_datetime(read).year <= 9999


_USUAL = r"(\d{4}-\d\d-\d\d|\d{4}-?W\d\d-?\d|\d{8})[T ._-]\d\d[:.]\d\d[:.]\d\d(\.\d{6})?(Z|z|\+00:00|)"


@given(st.from_regex(_USUAL, fullmatch=True) | _MOMENTS.map(lambda moment: moment.isoformat().replace("+00:00", "Z")))
@example("2023-W46-5T02:22:46Z")
@example("2024-02-30T00:00:00Z")
@example("2024-02-29 23:59:60+00:00")
@example("2023-12-11T24:00:00.000000Z")
@example("0000-12-11T00:00:00Z")
def test_the_quick_way_says_what_the_long_one_says(text: str) -> None:
    """The usual spellings are read by the interpreter's parser, which accepts more than we do: here it does not."""
    quick = timestamps._parse_fast(text)
    assert quick is None or quick == timestamps._parse_lenient(text)


def test_the_quick_way_is_taken() -> None:
    """The spellings seen in the field do not need the long way."""
    for text in ("2023-12-11T15:02:56.727000Z", "2023-12-11T15:02:51+00:00", "2023-12-11 15:02:51"):
        assert timestamps._parse_fast(text) == parse_instant(text) is not None


def test_a_naive_datetime_is_utc() -> None:
    """A datetime without a zone is taken as UTC, as the interface has it, whatever the local zone."""
    assert from_datetime(datetime.fromisoformat("2024-03-31T02:30:00")) == _at("2024-03-31T02:30")
    assert format_instant(_at("0033-01-02")) == "0033-01-02T00:00:00Z"
