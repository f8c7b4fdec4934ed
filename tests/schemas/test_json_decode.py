"""Reading JSON exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.json_decode import InvalidJsonError, JsonNumber, decode_json
from tests.rows import every


@every(
    ("document", "expected"),
    [
        (b"9007199254740993", 2**53 + 1),
        (b"9223372036854775808", 2**63),
        (b"18446744073709551616", 2**64),
        (b"1" + b"0" * 30, 10**30),
        (b"9" * 4300, int("9" * 4300)),
        (b"0.1234567890123456789", JsonNumber("0.1234567890123456789")),
        (b"1.10", JsonNumber("1.10")),
        (b"1e999", JsonNumber("1e999")),
        (b'"007"', "007"),
        (b"[true,false,null]", [True, False, None]),
        (b' {"a" : [ ] } \n', {"a": []}),
        ('"\u00e9 e\u0301 👩\u200d🚀 \u202e \ufeff"'.encode(), "\u00e9 e\u0301 👩\u200d🚀 \u202e \ufeff"),
        (b'"a\\u0000b"', "a\x00b"),
        (b'"\\ud83d\\ude00"', "😀"),
    ],
)
def test_values_are_read_exactly(document: bytes, expected: object) -> None:
    """Every digit and every character of a document arrives."""
    value = decode_json(document)
    assert value == expected
    assert type(value) is type(expected)


def test_the_sign_of_zero_is_kept() -> None:
    """Minus zero with a fraction stays minus zero."""
    assert str(decode_json(b"-0.0")) == "-0.0"


@every(
    ("document", "expected"),
    [
        (b"[NaN,1]", ["NaN", 1]),
        (b"[Infinity,-Infinity]", ["Infinity", "-Infinity"]),
        (b'\xef\xbb\xbf{"a":1.50}', {"a": JsonNumber("1.50")}),
        (b'"\\ud800"', "\ud800"),
        (b'{"\\udfff":1}', {"\udfff": 1}),
        (b"[" + b"7" * 5000 + b"]", ["7" * 5000]),
        (b"-" + b"7" * 5000, "-" + "7" * 5000),
        (b"1e99999999999999999999", "1e99999999999999999999"),
        (b"[NaN,1e99999999999999999999]", ["NaN", "1e99999999999999999999"]),
    ],
)
def test_what_strict_json_refuses_is_read_all_the_same(document: bytes, expected: object) -> None:
    """NaN, lone surrogates, a byte order mark and endless numbers are read; what no number can hold is its text."""
    assert decode_json(document) == expected


@every(
    "document",
    [b"", b" ", b"{", b'{"a":1', b'{"a":1}}', b"[1,]", b"<html>", b"{'a':1}", b'"\xff"', b"\x00", b'"a', b"01", b"1 2"],
)
def test_what_is_no_document_is_unreadable(document: bytes) -> None:
    """Cut, broken or foreign bytes are refused, and the refusal does not show them."""
    with pytest.raises(InvalidJsonError) as refused:
        decode_json(document)
    assert "html" not in str(refused.value)


@every("opening", [b"[", b'{"a":'])
def test_a_depth_bomb_is_unreadable(opening: bytes) -> None:
    """A document nested 200,000 deep is refused, whole or cut; Python's stack survives."""
    depth = 200_000
    closing = {b"[": b"]", b'{"a":': b"}"}[opening] * depth
    with pytest.raises(InvalidJsonError):
        decode_json(opening * depth + b"1" + closing)
    with pytest.raises(InvalidJsonError):
        decode_json(opening * depth)


def test_the_last_of_two_equal_keys_counts() -> None:
    """A key that stands twice has its last value, by both parsers; the raw document keeps both."""
    assert decode_json(b'{"a":1,"b":0,"a":2}') == {"a": 2, "b": 0}
    assert decode_json(b'{"a":NaN,"b":0,"a":2}') == {"a": 2, "b": 0}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    )
)
def test_any_document_is_read_as_it_was_written(value: Any) -> None:
    """What another writer wrote is read back, lone surrogates included."""
    assert decode_json(json.dumps(value).encode()) == value


@given(st.binary() | st.text('[]{}",:0123456789.eE+-truefalsn\\ud8', max_size=40).map(str.encode))
def test_no_bytes_raise_anything_else(document: bytes) -> None:
    """Any bytes are a value or `Unreadable`."""
    try:
        decode_json(document)
    except InvalidJsonError:
        return
