"""Compressed bodies are complete, or an error."""

from __future__ import annotations

import gzip
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.content_encoding import BodyDecoder, decode_body
from pipeline.client.errors import AttemptError
from tests.rows import every


@every("size", [1_048_575, 1_048_576, 1_048_577, 1_048_700, 2_097_152, 5_000_001])
def test_bodies_larger_than_one_part(size: int) -> None:
    """A body that is decompressed in several parts, and is all zeros or random, arrives complete."""
    for body in (b"\0" * size, random.Random(size).randbytes(size)):
        packed = gzip.compress(body, 1)
        assert decode_body(packed, "gzip", max_bytes=size) == body
        assert max(map(len, BodyDecoder("gzip").decode(packed))) <= 1_048_576
        with pytest.raises(AttemptError, match="more than"):
            decode_body(packed, "gzip", max_bytes=size - 1)


@given(st.binary(min_size=1, max_size=500), st.lists(st.integers(1, 50)), st.integers(1, 600))
def test_the_cuts_between_parts_do_not_matter(body: bytes, cuts: list[int], lost: int) -> None:
    """A stream that arrives in parts of any size gives the same bytes; with any missing at its end it is an error."""
    packed = gzip.compress(body, mtime=0)
    decoder, rest, found = BodyDecoder("gzip"), packed * 2, b""
    for size in [*cuts, 2 * len(packed)]:
        found += b"".join(decoder.decode(rest[:size]))
        rest = rest[size:]
    decoder.finish()
    assert found == body * 2 == decode_body(packed * 2, "X-GZIP", max_bytes=1_000)
    with pytest.raises(AttemptError):
        decode_body(packed[: max(1, len(packed) - lost)], "gzip", max_bytes=1_000)


def test_damage() -> None:
    """A flipped bit, or text after the end, is an error."""
    packed = bytearray(gzip.compress(b"x" * 1000))
    packed[-5] ^= 1
    for body in (bytes(packed), gzip.compress(b"x") + b"junk", b"plain text"):
        with pytest.raises(AttemptError):
            decode_body(body, "gzip", max_bytes=1_000)
