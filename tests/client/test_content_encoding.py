"""Compressed bodies are complete, or an error."""

from __future__ import annotations

import gzip
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.content_encoding import BodyDecoder, decode_body
from pipeline.client.errors import AttemptError

CAP = 1_000_000


@given(st.binary(max_size=500))
def test_complete_bodies(body: bytes) -> None:
    """Gzip, several gzip members and uncompressed bodies are read."""
    assert decode_body(body, "", max_bytes=CAP) == body
    assert decode_body(body, "identity", max_bytes=CAP) == body
    assert decode_body(gzip.compress(body, mtime=0), "gzip", max_bytes=CAP) == body
    assert decode_body(gzip.compress(body, mtime=0) * 2, "X-GZIP", max_bytes=CAP) == body * 2


@pytest.mark.parametrize("size", [1_048_575, 1_048_576, 1_048_577, 1_048_700, 2_097_152, 5_000_001])
def test_bodies_larger_than_one_part(size: int) -> None:
    """A body that is decompressed in several parts, and is all zeros or random, arrives complete."""
    for body in (b"\0" * size, random.Random(size).randbytes(size)):
        packed = gzip.compress(body, 1)
        assert decode_body(packed, "gzip", max_bytes=size) == body
        assert max(map(len, BodyDecoder("gzip").decode(packed))) <= 1_048_576
        with pytest.raises(AttemptError, match="more than"):
            decode_body(packed, "gzip", max_bytes=size - 1)


@given(st.binary(min_size=1, max_size=500), st.lists(st.integers(1, 50)))
def test_the_cuts_between_parts_do_not_matter(body: bytes, cuts: list[int]) -> None:
    """A stream that arrives in parts of any size gives the same bytes, and its end is noticed."""
    packed = gzip.compress(body, mtime=0) * 2
    decoder, rest, found = BodyDecoder("gzip"), packed, b""
    for size in [*cuts, len(packed)]:
        found += b"".join(decoder.decode(rest[:size]))
        rest = rest[size:]
    decoder.finish()
    assert found == body * 2


@given(st.binary(min_size=1, max_size=500), st.integers(1, 600))
def test_truncated_bodies(body: bytes, lost: int) -> None:
    """A body with any missing bytes at its end, even the trailer only, is an error."""
    packed = gzip.compress(body, mtime=0)
    with pytest.raises(AttemptError):
        decode_body(packed[: max(1, len(packed) - lost)], "gzip", max_bytes=CAP)


@pytest.mark.parametrize("encoding", ["br", "br2", "deflate", "gzip, gzip", ", ".join(["gzip"] * 50), "zstd"])
def test_other_encodings(encoding: str) -> None:
    """Encodings that were not requested are an error, nested ones too."""
    with pytest.raises(AttemptError, match="Content-Encoding"):
        decode_body(gzip.compress(b"{}"), encoding, max_bytes=CAP)


def test_damage() -> None:
    """A flipped bit, or text after the end, is an error."""
    packed = bytearray(gzip.compress(b"x" * 1000))
    packed[-5] ^= 1
    for body in (bytes(packed), gzip.compress(b"x") + b"junk", b"plain text"):
        with pytest.raises(AttemptError):
            decode_body(body, "gzip", max_bytes=CAP)


def test_a_bomb_is_capped() -> None:
    """A small body that decompresses above the limit fails at the limit, without a retry."""
    with pytest.raises(AttemptError) as raised:
        decode_body(gzip.compress(b"\0" * 50_000_000), "gzip", max_bytes=CAP)
    assert (raised.value.kind, raised.value.retryable) == ("size", False)
