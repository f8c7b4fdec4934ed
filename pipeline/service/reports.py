"""A report as it comes in: ready or not, and whole or not. Pure; the bytes go to a file of the caller's."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.errors import ContractBroken
from pipeline.service.faults import Fault

if TYPE_CHECKING:
    from typing import BinaryIO

    from pipeline.service.protocol import Reply

_MAGIC: Final = b"%PDF"
_END: Final = b"%%EOF"
_TAIL: Final = 2_048  # bytes at the end in which the end mark stands; some writers add blanks or a signature


@dataclass(frozen=True, slots=True)
class ReportFile:
    """A report that was downloaded whole: its size in bytes and its SHA-256, in hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class NotReady:
    """The report is not there yet. `witness` says how the service put it."""

    witness: str


class ReportSink:
    """Takes the bytes of one download, try by try, into a seekable file."""

    def __init__(self, into: BinaryIO, *, cap: int) -> None:
        self._into = into
        self._cap = cap
        self._start = into.tell()
        self.begin()

    def begin(self) -> None:
        """Start a try: what an earlier one wrote is taken back."""
        self._into.seek(self._start)
        self._into.truncate()
        self._hash = hashlib.sha256()
        self._size = 0
        self._head = self._tail = b""

    def take(self, part: bytes) -> bool:
        """Keep a part of a 200's body; False when it is no PDF and the rest is not worth having."""
        if len(self._head) < len(_MAGIC):
            self._head += part[: len(_MAGIC) - len(self._head)]
            if not _MAGIC.startswith(self._head):
                return False
        self._size += len(part)
        if self._size > self._cap:
            raise Fault("size", f"a report of more than {self._cap:,} bytes", again=False)
        self._hash.update(part)
        self._tail = (self._tail + part)[-_TAIL:]
        self._into.write(part)
        return True

    def judge(self, reply: Reply) -> ReportFile | NotReady:
        """What became of it. Raises `Fault` for a PDF that is not whole."""
        status = reply.status
        if status in {202, 204, 401, 403, 404, 409, 410, 425}:
            return NotReady(f"HTTP {status}")
        if status >= 500 or status == 408:
            raise Fault(f"status-{status}", f"HTTP {status}", status=status)
        if status != 200:
            raise ContractBroken(f"GET report: HTTP {status}")
        if self._head != _MAGIC:
            self.begin()
            return NotReady("no PDF" if reply.body else "empty body")
        if _END not in self._tail:
            raise Fault("cut", "a PDF without its end", status=status)
        self._into.flush()
        return ReportFile(self._size, self._hash.hexdigest())
