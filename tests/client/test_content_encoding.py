"""Compressed bodies are complete, or an error."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.content_encoding import decode_body
from pipeline.client.errors import AttemptError

CAP = 1_000_000


def raw_deflate(body: bytes) -> bytes:
    """Return the bare stream that some servers call deflate."""
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


@given(st.binary(max_size=500))
def test_complete_bodies(body: bytes) -> None:
    """Gzip, several gzip members, both kinds of deflate and uncompressed bodies are read."""
    assert decode_body(body, "", max_bytes=CAP) == body
    assert decode_body(body, "identity", max_bytes=CAP) == body
    assert decode_body(gzip.compress(body), "gzip", max_bytes=CAP) == body
    assert decode_body(gzip.compress(body) * 2, "X-GZIP", max_bytes=CAP) == body * 2
    assert decode_body(zlib.compress(body), "deflate", max_bytes=CAP) == body
    assert decode_body(raw_deflate(body), "deflate", max_bytes=CAP) == body


@given(st.binary(min_size=1, max_size=500), st.integers(1, 600))
def test_truncated_bodies(body: bytes, lost: int) -> None:
    """A body with any missing bytes at its end, even the trailer only, is an error."""
    packed = gzip.compress(body)
    with pytest.raises(AttemptError):
        decode_body(packed[: max(1, len(packed) - lost)], "gzip", max_bytes=CAP)


@pytest.mark.parametrize("encoding", ["br", "br2", "gzip, gzip", ", ".join(["gzip"] * 50), "zstd"])
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
