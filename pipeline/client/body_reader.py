"""Bodies of answers: read within the size limit, at the minimum throughput or faster, decompressed, and in UTF-8.

The HTTP library accepts a gzip stream without its trailer, and passes unknown encodings through unchanged. Both
would be parsed as complete answers, so the client decodes the bytes itself.
"""

from __future__ import annotations

import re
import time
import zlib
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from pipeline.client.error_bodies import summarize_in_one_line
from pipeline.client.errors import AttemptError
from pipeline.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import aiohttp
    from multidict import CIMultiDictProxy

    from pipeline.client.calls import ClientOptions, RequestStats

_MAX_ERROR_BODY_BYTES: Final = 65_536
_GZIP: Final = 16 + zlib.MAX_WBITS
_MAX_PART_BYTES: Final = 1_048_576
_MIN_BYTES_PER_SECOND: Final = 256
_THROUGHPUT_GRACE_SECONDS: Final = 5.0  # before the minimum throughput is checked
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*[\"']?([^\"';,\s]+)", re.IGNORECASE)
_UTF8: Final = frozenset({"utf-8", "utf8"})
_DEFAULT_CHARSETS: Final = frozenset({"us-ascii", "iso-8859-1"})  # of servers, whatever the bytes are


class Download(Protocol):
    """What receives the body of a download, attempt by attempt."""

    def reset(self) -> None:
        """Start an attempt: remove what an earlier one wrote."""

    def write(self, part: bytes) -> bool:
        """Write a part of the body of a 200. Return False if the rest is not needed."""

    def check_size(self, size: int) -> None:
        """Raise for a body above the limit."""


class BodyReader(Struct, frozen=True):
    """Reads bodies and counts their bytes."""

    options: ClientOptions
    stats: RequestStats

    async def read_body(self, status: int, headers: CIMultiDictProxy[str], content: aiohttp.StreamReader) -> bytes:
        """Return the body, decompressed, within the size limit and at the minimum throughput or faster."""
        max_bytes = self.options.max_body_bytes
        is_success = status < 300
        if is_success and int(headers.get("Content-Length", 0)) > max_bytes:
            raise _body_too_large_error(max_bytes)
        parts: list[bytes] = []
        size, started = 0, time.monotonic()
        # A short body has usually come with its head: then two coroutines less take 2 us less of processor.
        while part := content.read_nowait() if content.is_eof() else await content.readany():
            parts.append(part)
            size += len(part)
            if is_success and size > max_bytes:
                raise _body_too_large_error(max_bytes)
            if not is_success and size > _MAX_ERROR_BODY_BYTES:
                break
            _check_min_throughput(size, started)
        self.stats.bytes += size
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        has_end = "Content-Length" in headers or "chunked" in headers.get("Transfer-Encoding", "").lower()
        if status == 200 and not body and not has_end:
            raise AttemptError("cut", "an answer that ended before its body", status=status)
        try:
            if headers.get("Content-Encoding"):
                body = decode_body(body, ",".join(headers.getall("Content-Encoding")), max_bytes=max_bytes)
            _check_utf8(body, headers.getall("Content-Type", ()))
        except AttemptError:
            if is_success:
                raise
            return b""  # for an error the status is enough
        return body

    async def stream_to(self, answer: aiohttp.ClientResponse, download: Download, label: str) -> bytes:
        """Write the body, decompressed, to `download` and return its first bytes.

        An object that is stored compressed comes with gzip, which was not requested. Raises `ProtocolError` for
        another compression: polling again does not change it.
        """
        try:
            decoder = BodyDecoder(",".join(answer.headers.getall("Content-Encoding", ())))
        except AttemptError as error:
            raise ProtocolError(f"{label}: {error.detail}.") from None
        size, started, start = 0, time.monotonic(), b""
        while part := await answer.content.readany():
            size += len(part)
            self.stats.bytes += len(part)
            download.check_size(size)
            for decoded in decoder.decode(part):
                start = start or decoded[:16]
                if not download.write(decoded):
                    return start
            _check_min_throughput(size, started)
        decoder.finish()
        return start


def _check_min_throughput(size: int, started: float) -> None:
    """Raise for a body that arrives byte by byte: each byte would renew the time limit of a read."""
    seconds = time.monotonic() - started
    if seconds > _THROUGHPUT_GRACE_SECONDS and size < seconds * _MIN_BYTES_PER_SECOND:
        raise AttemptError("slow", f"fewer than {_MIN_BYTES_PER_SECOND} bytes per second")


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
            raise _body_too_large_error(max_bytes)
    decoder.finish()
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _body_too_large_error(max_bytes: int) -> AttemptError:
    """Return the error of an answer above the limit. It is not retried, because that costs the same again."""
    return AttemptError("size", f"an answer of more than {max_bytes:,} bytes", retryable=False)


def _check_utf8(body: bytes, content_types: Iterable[str]) -> None:
    """Raise `AttemptError` if the headers name another charset than that of JSON, UTF-8 (RFC 8259).

    The parser checks a body that is called UTF-8.
    """
    labels = {label.lower() for label in _CHARSET.findall("\n".join(content_types))} - _UTF8
    if not labels or body.lstrip()[:1] == b"<":  # an HTML page
        return
    try:
        body.decode()
        labels -= _DEFAULT_CHARSETS
    except UnicodeDecodeError:
        pass
    if labels:
        named = summarize_in_one_line(", ".join(sorted(labels)))
        raise AttemptError("charset", f"JSON in the charset {named}, not in UTF-8", is_protocol_error=True)
