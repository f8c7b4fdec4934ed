"""Bodies out of their `Content-Encoding`, whole and within a size, or a fault.

The HTTP library accepts a gzip stream without its trailer and passes unknown encodings through as they are;
both would be read as whole answers. So the bytes are decoded here.
"""

from __future__ import annotations

import zlib
from typing import Final

from pipeline.service.faults import Fault

_GZIP: Final = 16 + zlib.MAX_WBITS


def decode_body(body: bytes, encoding: str, *, cap: int) -> bytes:
    """The decoded body; a `Fault` when it is cut, damaged, larger than `cap`, or encoded otherwise."""
    names = [name for part in encoding.split(",") if (name := part.strip().lower()) not in {"", "identity"}]
    if not names or not body:
        return body
    if len(names) > 1 or names[0] not in {"gzip", "x-gzip", "deflate"}:
        raise Fault("encoding", "a Content-Encoding that was not asked for")
    if names[0] == "deflate":
        # Some servers send the bare stream: the first byte of a zlib one says method 8.
        return _inflate(body, zlib.MAX_WBITS if body[0] & 0x0F == 8 else -zlib.MAX_WBITS, cap)
    return _inflate(body, _GZIP, cap)


def _inflate(body: bytes, window: int, cap: int) -> bytes:
    parts: list[bytes] = []
    left = cap
    while body:
        stream = zlib.decompressobj(window)
        try:
            part = stream.decompress(body, left + 1)
        except zlib.error:
            raise Fault("cut", "a compressed body that is damaged") from None
        left -= len(part)
        if left < 0:
            raise too_large(cap)
        if not stream.eof:
            raise Fault("cut", "a compressed body that is cut off")
        parts.append(part)
        body = stream.unused_data if window == _GZIP else b""  # gzip allows several members in a row
    return parts[0] if len(parts) == 1 else b"".join(parts)


def too_large(cap: int) -> Fault:
    """The fault of an answer past its cap; asking again would only cost the same again."""
    return Fault("size", f"an answer of more than {cap:,} bytes", again=False)
