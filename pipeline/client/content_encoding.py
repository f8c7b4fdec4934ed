"""Decodes bodies from their `Content-Encoding`, complete and within a size limit.

The HTTP library accepts a gzip stream without its trailer, and passes unknown encodings through unchanged. Both
would be parsed as complete answers, so the client decodes the bytes itself.
"""

from __future__ import annotations

import zlib
from typing import Final

from pipeline.client.errors import AttemptError

_GZIP: Final = 16 + zlib.MAX_WBITS


def decode_body(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """Return the decoded body. Raises `AttemptError` if it is cut off, damaged, too large, or encoded otherwise."""
    names = [name for part in encoding.split(",") if (name := part.strip().lower()) not in {"", "identity"}]
    if not names or not body:
        return body
    if len(names) > 1 or names[0] not in {"gzip", "x-gzip", "deflate"}:
        raise AttemptError("encoding", "a Content-Encoding that was not requested")
    if names[0] == "deflate":
        # Some servers send the bare stream: the first byte of a zlib stream contains method 8.
        return _decompress(body, zlib.MAX_WBITS if body[0] & 0x0F == 8 else -zlib.MAX_WBITS, max_bytes)
    return _decompress(body, _GZIP, max_bytes)


def _decompress(body: bytes, window_bits: int, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    bytes_left = max_bytes
    while body:
        stream = zlib.decompressobj(window_bits)
        try:
            part = stream.decompress(body, bytes_left + 1)
        except zlib.error:
            raise AttemptError("cut", "a compressed body that is damaged") from None
        bytes_left -= len(part)
        if bytes_left < 0:
            raise body_too_large_error(max_bytes)
        if not stream.eof:
            raise AttemptError("cut", "a compressed body that is cut off")
        parts.append(part)
        body = stream.unused_data if window_bits == _GZIP else b""  # gzip allows several members in a row
    return parts[0] if len(parts) == 1 else b"".join(parts)


def body_too_large_error(max_bytes: int) -> AttemptError:
    """Return the error of an answer above the limit. It is not retried, because that costs the same again."""
    return AttemptError("size", f"an answer of more than {max_bytes:,} bytes", retryable=False)
