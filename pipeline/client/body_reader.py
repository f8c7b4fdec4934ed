"""Bodies of answers, read within the size limit and at the minimum throughput or faster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from pipeline.client.charset import check_utf8
from pipeline.client.content_encoding import BodyDecoder, body_too_large_error, decode_body
from pipeline.client.errors import AttemptError
from pipeline.errors import ProtocolError

if TYPE_CHECKING:
    import aiohttp
    from multidict import CIMultiDictProxy

    from pipeline.client.calls import RequestStats
    from pipeline.client.options import ClientOptions

_MAX_ERROR_BODY_BYTES: Final = 65_536
_THROUGHPUT_GRACE_SECONDS: Final = 5.0  # before the minimum throughput is checked


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
            raise body_too_large_error(max_bytes)
        parts: list[bytes] = []
        size, started = 0, time.monotonic()
        # A short body has usually come with its head: then two coroutines less take 2 us less of processor.
        while part := content.read_nowait() if content.is_eof() else await content.readany():
            parts.append(part)
            size += len(part)
            if is_success and size > max_bytes:
                raise body_too_large_error(max_bytes)
            if not is_success and size > _MAX_ERROR_BODY_BYTES:
                break
            self._check_min_throughput(size, started)
        self.stats.bytes += size
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if status == 200 and not body and not _has_length(headers):
            raise AttemptError("cut", "an answer that ended before its body", status=status)
        try:
            if headers.get("Content-Encoding"):
                body = decode_body(body, ",".join(headers.getall("Content-Encoding")), max_bytes=max_bytes)
            check_utf8(body, headers.getall("Content-Type", ()))
        except AttemptError:
            if is_success:
                raise
            return b""  # for an error the status is enough
        return body

    async def stream_to(self, answer: aiohttp.ClientResponse, download: Download, label: str) -> bytes:
        """Write the body, decompressed, to `download` and return its first bytes.

        Raises `ProtocolError` for another compression: polling again does not change it.
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
            self._check_min_throughput(size, started)
        decoder.finish()
        return start

    def _check_min_throughput(self, size: int, started: float) -> None:
        seconds = time.monotonic() - started
        if seconds > _THROUGHPUT_GRACE_SECONDS and size < seconds * self.options.min_bytes_per_second:
            raise AttemptError("slow", f"fewer than {self.options.min_bytes_per_second} bytes per second")


def _has_length(headers: Any) -> bool:
    return "Content-Length" in headers or "chunked" in headers.get("Transfer-Encoding", "").lower()
