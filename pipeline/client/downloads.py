"""Downloads of reports: whether a report is ready, and whether its PDF is complete. Pure, but for the given file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.client.errors import AttemptError
from pipeline.errors import ProtocolError

if TYPE_CHECKING:
    from typing import BinaryIO

    from pipeline.client.protocol import Response

_START: Final = b"%PDF"
_END: Final = b"%%EOF"
_TAIL_BYTES: Final = 2_048  # the end mark is within these; some writers append blanks or a signature


class DownloadedReport(Struct, frozen=True):
    """A complete report: its size in bytes and its SHA-256 in hexadecimal."""

    bytes: int
    sha256: str


class ReportNotReady(Struct, frozen=True):
    """The report does not exist yet. `reason` is the service's answer in short."""

    reason: str


class PdfDownload:
    """Writes the bytes of one download into a seekable file, attempt by attempt."""

    def __init__(self, file: BinaryIO, *, max_bytes: int) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._start = file.tell()
        self.reset()

    def reset(self) -> None:
        """Start an attempt: remove what an earlier one wrote."""
        self._file.seek(self._start)
        self._file.truncate()
        self._hash = hashlib.sha256()
        self._size = 0
        self._head = self._tail = b""

    def write(self, part: bytes) -> bool:
        """Write a part of the body of a 200. Return False if it is not a PDF: the rest is not needed."""
        if len(self._head) < len(_START):
            self._head += part[: len(_START) - len(self._head)]
            if not _START.startswith(self._head):
                return False
        self._size += len(part)
        self.check_size(self._size)
        self._hash.update(part)
        self._tail = (self._tail + part)[-_TAIL_BYTES:]
        self._file.write(part)
        return True

    def check_size(self, size: int) -> None:
        """Raise `AttemptError` for a body above the limit; `size` is its size, compressed or not."""
        if size > self._max_bytes:
            raise AttemptError("size", f"a report of more than {self._max_bytes:,} bytes", retryable=False)

    def result(self, response: Response) -> DownloadedReport | ReportNotReady:
        """Return the result of the download. Raises `AttemptError` for an incomplete PDF."""
        status = response.status
        if status in {202, 204, 403, 404, 409, 410, 425}:
            return ReportNotReady(f"HTTP {status}")
        if status >= 500 or status == 408:
            raise AttemptError(f"status-{status}", f"HTTP {status}", status=status)
        if status != 200:
            raise ProtocolError(f"GET report: HTTP {status}.")
        if self._head != _START:
            self.reset()
            return ReportNotReady("no PDF" if response.body else "empty body")
        if _END not in self._tail:
            raise AttemptError("cut", "a PDF without its end", status=status)
        self._file.flush()
        return DownloadedReport(self._size, self._hash.hexdigest())
