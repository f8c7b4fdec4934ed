"""Decodes bodies from their `Content-Encoding`, complete and within a size limit.

The HTTP library accepts a gzip stream without its trailer, and passes unknown encodings through unchanged. Both
would be parsed as complete answers, so the client decodes the bytes itself.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from pipeline.client.error_bodies import summarize_in_one_line
from pipeline.client.errors import AttemptError

if TYPE_CHECKING:
    from collections.abc import Iterator

_GZIP: Final = 16 + zlib.MAX_WBITS
_MAX_PART_BYTES: Final = 1_048_576


class BodyDecoder:
    """Decodes one body, part by part. Raises `AttemptError` for a body that is damaged, or encoded otherwise."""

    def __init__(self, encoding: str) -> None:
        names = [name for part in encoding.split(",") if (name := part.strip().lower()) not in {"", "identity"}]
        if len(names) > 1 or (names and names[0] not in {"gzip", "x-gzip"}):
            name = summarize_in_one_line(", ".join(names))
            raise AttemptError("encoding", f"a Content-Encoding that was not requested ({name})")
        self._is_compressed = bool(names)
        self._stream: zlib._Decompress | None = None  # of the current gzip member

    def decode(self, part: bytes) -> Iterator[bytes]:
        """Yield the decoded bytes of a part, at most 1 MiB at a time."""
        if not self._is_compressed:
            yield part
            return
        is_full = False  # then more of the output may be left in the decompressor
        while part or is_full:
            self._stream = self._stream or zlib.decompressobj(_GZIP)
            try:
                output = self._stream.decompress(part, _MAX_PART_BYTES)
            except zlib.error:
                raise AttemptError("cut", "a compressed body that is damaged") from None
            yield output
            part, is_full = self._stream.unconsumed_tail, len(output) == _MAX_PART_BYTES
            if self._stream.eof:  # gzip allows several members in a row
                part, is_full, self._stream = self._stream.unused_data, False, None

    def finish(self) -> None:
        """Raise `AttemptError` if the body ended before its stream."""
        if self._stream is not None and not self._stream.eof:
            raise AttemptError("cut", "a compressed body that is cut off")


def decode_body(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """Return the decoded body. Raises `AttemptError` if it is cut off, damaged, too large, or encoded otherwise."""
    decoder, parts, size = BodyDecoder(encoding), [], 0
    for part in decoder.decode(body):
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise body_too_large_error(max_bytes)
    decoder.finish()
    return parts[0] if len(parts) == 1 else b"".join(parts)


def body_too_large_error(max_bytes: int) -> AttemptError:
    """Return the error of an answer above the limit. It is not retried, because that costs the same again."""
    return AttemptError("size", f"an answer of more than {max_bytes:,} bytes", retryable=False)
