"""Bodies of answers, read within the size limit and at the minimum throughput or faster."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pipeline.client.content_encoding import body_too_large_error, decode_body
from pipeline.client.errors import AttemptError

if TYPE_CHECKING:
    import aiohttp

    from pipeline.client.calls import RequestStats
    from pipeline.client.downloads import PdfDownload
    from pipeline.client.options import ClientOptions

_MAX_ERROR_BODY_BYTES: Final = 65_536
_THROUGHPUT_GRACE_SECONDS: Final = 5.0  # before the minimum throughput is checked


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads bodies and counts their bytes."""

    options: ClientOptions
    stats: RequestStats

    async def read_body(self, answer: aiohttp.ClientResponse) -> bytes:
        """Return the decoded body, within the size limit and at the minimum throughput or faster."""
        headers, max_bytes = answer.headers, self.options.max_body_bytes
        is_success = answer.status < 300
        if is_success and (answer.content_length or 0) > max_bytes:
            raise body_too_large_error(max_bytes)
        parts: list[bytes] = []
        size, started = 0, time.monotonic()
        while part := await answer.content.readany():
            parts.append(part)
            size += len(part)
            if is_success and size > max_bytes:
                raise body_too_large_error(max_bytes)
            if not is_success and size > _MAX_ERROR_BODY_BYTES:
                break
            self._check_min_throughput(size, started)
        self.stats.bytes += size
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if answer.status == 200 and not body and not _has_length(headers):
            raise AttemptError("cut", "an answer that ended before its body", status=answer.status)
        if not headers.get("Content-Encoding"):
            return body
        try:
            return decode_body(body, ",".join(headers.getall("Content-Encoding")), max_bytes=max_bytes)
        except AttemptError:
            if is_success:
                raise
            return b""  # for an error the status is enough

    async def stream_to(self, answer: aiohttp.ClientResponse, download: PdfDownload) -> bytes:
        """Write the body to `download` and return its first bytes."""
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise AttemptError("encoding", "a Content-Encoding that was not requested")
        size, started, start = 0, time.monotonic(), b""
        while part := await answer.content.readany():
            size += len(part)
            self.stats.bytes += len(part)
            start = start or part[:16]
            if not download.write(part):
                break
            self._check_min_throughput(size, started)
        return start

    def _check_min_throughput(self, size: int, started: float) -> None:
        seconds = time.monotonic() - started
        if seconds > _THROUGHPUT_GRACE_SECONDS and size < seconds * self.options.min_bytes_per_second:
            raise AttemptError("slow", f"fewer than {self.options.min_bytes_per_second} bytes per second")


def _has_length(headers: Any) -> bool:
    return "Content-Length" in headers or "chunked" in headers.get("Transfer-Encoding", "").lower()
