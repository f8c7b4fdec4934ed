"""Reading JSON exactly."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.json_decode import InvalidJsonError, JsonNumber, decode_json
from tests.rows import every


@every(
    ("document", "expected"),
    [
        *((str(number).encode(), number) for number in (2**53 + 1, 2**63, 2**64, 10**30, int("9" * 4300))),
        *((digits.encode(), JsonNumber(digits)) for digits in ("0.1234567890123456789", "1.10", "1e999", "-0.0")),
        (b'"007"', "007"),
        (b"[true,false,null]", [True, False, None]),
        (b' {"a" : [ ] } \n', {"a": []}),
        ('"\u00e9 e\u0301 👩\u200d🚀 \u202e \ufeff"'.encode(), "\u00e9 e\u0301 👩\u200d🚀 \u202e \ufeff"),
        (b'"a\\u0000b"', "a\x00b"),
        (b'"\\ud83d\\ude00"', "😀"),
        (b'{"a":1,"b":0,"a":2}', {"a": 2, "b": 0}),  # the last of two equal keys counts, by both parsers
        (b'{"a":NaN,"b":0,"a":2}', {"a": 2, "b": 0}),
    ],
)
def test_values_are_read_exactly(document: bytes, expected: object) -> None:
    """Every digit and every character of a document arrives."""
    value = decode_json(document)
    assert value == expected
    assert type(value) is type(expected)


@every(
    ("document", "expected"),
    [
        *((b"[NaN,1]", ["NaN", 1]), (b"[Infinity,-Infinity]", ["Infinity", "-Infinity"])),
        (b'\xef\xbb\xbf{"a":1.50}', {"a": JsonNumber("1.50")}),
        *((b'"\\ud800"', "\ud800"), (b'{"\\udfff":1}', {"\udfff": 1})),
        *((digits.encode(), digits) for digits in ("7" * 5000, "-" + "7" * 5000, "1e99999999999999999999")),
        (b"[NaN,1e99999999999999999999]", ["NaN", "1e99999999999999999999"]),
    ],
)
def test_what_strict_json_refuses_is_read_all_the_same(document: bytes, expected: object) -> None:
    """NaN, lone surrogates, a byte order mark and endless numbers are read; what no number can hold is its text."""
    assert decode_json(document) == expected


_BROKEN: Final = (
    b"",
    b" ",
    b"{",
    b'{"a":1',
    b'{"a":1}}',
    b"[1,]",
    b"<html>",
    b"{'a':1}",
    b'"\xff"',
    b"\x00",
    b'"a',
    b"01",
)
_DEEP: Final = (b"[" * 200_000 + b"]" * 200_000, b'{"a":' * 200_000 + b"1" + b"}" * 200_000, b'{"a":' * 200_000)


@every("document", [*_BROKEN, *_DEEP, b"1 2"])
def test_what_is_no_document_is_unreadable(document: bytes) -> None:
    """Cut, broken, foreign or endlessly nested bytes are refused, and the refusal does not show them."""
    with pytest.raises(InvalidJsonError) as refused:
        decode_json(document)
    assert "html" not in str(refused.value)


_TEXTS: Final = st.text(st.characters())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | _TEXTS,
        lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
    )
)
def test_any_document_is_read_as_it_was_written(value: Any) -> None:
    """What another writer wrote is read back, lone surrogates included."""
    assert decode_json(json.dumps(value).encode()) == value


@given(st.binary() | st.text('[]{}",:0123456789.eE+-truefalsn\\ud8', max_size=40).map(str.encode))
def test_no_bytes_raise_anything_else(document: bytes) -> None:
    """Any bytes are a value or `Unreadable`."""
    with suppress(InvalidJsonError):
        decode_json(document)
