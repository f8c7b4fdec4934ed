"""Reads PDFs in a worker process with limits: 3 KB of a service can keep pypdf busy for hours, or fill the memory."""

from __future__ import annotations

from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from pipeline.worker_process import WorkerEndedError, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HAS_PYPDF: Final = find_spec("pypdf") is not None  # an optional extra
_WORKER_CODE: Final = "import sys; from pipeline.reports.page_text import main; main(*map(int, sys.argv[1:]))"
_MAX_BYTES: Final = 256 * 1024**2
_MAX_MEMORY_BYTES: Final = 1024**3
_MAX_PROCESSOR_SECONDS: Final = 120  # for one PDF; a thousand pages of 60 lines took 5 s and 85 MB


class PageFindings(Struct, frozen=True):
    """What the pages show. `on_pages` by file id: None if the pages do not decide.

    `is_read` is False if the PDF cannot be read, at all or within the limits, or if pypdf is not installed.
    """

    is_read: bool = False
    on_pages: Mapping[int, bool | None] = field(default_factory=dict)

    @property
    def count(self) -> int | None:
        """The number of files that the pages show; None if the PDF was not read."""
        return sum(value is True for value in self.on_pages.values()) if self.is_read else None


class PdfReader:
    """Reads PDFs in one worker, which is replaced when a PDF ends it. One thread at a time reads."""

    def __init__(self) -> None:
        self._worker: WorkerProcess | None = None
        self._lock = Lock()
        self._is_closed = False

    def read(self, pdf: Path, references: Mapping[int, str | None]) -> PageFindings:
        """Return which files the PDF shows, of `references` by file id. Raises `OSError` without a process for it."""
        if not _HAS_PYPDF or pdf.stat().st_size > _MAX_BYTES:
            return PageFindings()
        with self._lock:
            if self._worker is None:
                limits = str(_MAX_PROCESSOR_SECONDS), str(_MAX_MEMORY_BYTES)
                self._worker = WorkerProcess("PDF", _WORKER_CODE, *limits)
            if self._is_closed:  # while the worker was started
                self._worker.kill()
            try:
                findings = self._worker.exchange((pdf, references))
            except WorkerEndedError:
                self._worker.close()
                self._worker = None
                if self._is_closed:
                    raise
                return PageFindings()
        assert isinstance(findings, PageFindings)  # noqa: S101 - the worker sends nothing else
        return findings

    def close(self) -> None:
        """End the worker at once. A thread that waits for it gets `WorkerEndedError`."""
        self._is_closed = True
        if (worker := self._worker) is not None:
            worker.kill()
            with self._lock:
                worker.close()
