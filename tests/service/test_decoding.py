"""Compressed bodies: whole, or a fault."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.service.decoding import decode_body
from pipeline.service.faults import Fault

CAP = 1_000_000


def raw_deflate(body: bytes) -> bytes:
    """The bare stream that some servers call deflate."""
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


@given(st.binary(max_size=500))
def test_whole_bodies(body: bytes) -> None:
    """Gzip, several gzip members, and both kinds of deflate are read; so is what is not compressed."""
    assert decode_body(body, "", cap=CAP) == body
    assert decode_body(body, "identity", cap=CAP) == body
    assert decode_body(gzip.compress(body), "gzip", cap=CAP) == body
    assert decode_body(gzip.compress(body) * 2, "X-GZIP", cap=CAP) == body * 2
    assert decode_body(zlib.compress(body), "deflate", cap=CAP) == body
    assert decode_body(raw_deflate(body), "deflate", cap=CAP) == body


@given(st.binary(min_size=1, max_size=500), st.integers(1, 600))
def test_cut_bodies(body: bytes, lost: int) -> None:
    """However many bytes are missing at the end, the trailer alone included, it is a fault."""
    packed = gzip.compress(body)
    with pytest.raises(Fault):
        decode_body(packed[: max(1, len(packed) - lost)], "gzip", cap=CAP)


@pytest.mark.parametrize("encoding", ["br", "br2", "gzip, gzip", ", ".join(["gzip"] * 50), "zstd"])
def test_other_encodings(encoding: str) -> None:
    """What was not asked for is refused, nested encodings too."""
    with pytest.raises(Fault, match="Content-Encoding"):
        decode_body(gzip.compress(b"{}"), encoding, cap=CAP)


def test_damage() -> None:
    """A flipped bit, or text after the end, is a fault."""
    packed = bytearray(gzip.compress(b"x" * 1000))
    packed[-5] ^= 1
    for body in (bytes(packed), gzip.compress(b"x") + b"junk", b"plain text"):
        with pytest.raises(Fault):
            decode_body(body, "gzip", cap=CAP)


def test_a_bomb_is_capped() -> None:
    """A small body that grows past the cap is given up at the cap, for good."""
    with pytest.raises(Fault) as raised:
        decode_body(gzip.compress(b"\0" * 50_000_000), "gzip", cap=CAP)
    assert (raised.value.kind, raised.value.again) == ("size", False)
