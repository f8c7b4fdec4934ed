"""Opens PDFs in a worker process with limits: 3 KB of a service can keep pypdf busy for hours, or fill the memory."""

from __future__ import annotations

from enum import StrEnum
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeAlias

from pipeline.processes.worker import WorkerEndedError, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_WORKER_CODE: Final = "import sys; from pipeline.reports.page_text import main; main(*map(int, sys.argv[1:]))"
_MAX_MEMORY_BYTES: Final = 1024**3
_MAX_PROCESSOR_SECONDS: Final = 120  # of one PDF: a thousand pages of 60 lines take 5 s and 85 MB, 600 MB of images 1 s


UNREAD_HINT: Final = "Look at its pages: scanlake could not tell whether they show the files."


class Unread(StrEnum):
    """Why the pages of a PDF were not read: it is no PDF, or reading it is beyond the limits or the library."""

    BROKEN = "cannot be opened"
    SKIPPED = "not looked at"


PageFindings: TypeAlias = dict[int, bool | None]
"""Whether the pages of a PDF show each file, by id: None if they do not decide."""
Reading: TypeAlias = PageFindings | Unread


def count_found(pages: Reading) -> int | None:
    """Return the number of files that the pages show; None if the PDF was not read."""
    return None if isinstance(pages, Unread) else sum(value is True for value in pages.values())


class PdfReader:
    """Reads PDFs in one worker, which is replaced when a PDF ends it. One thread at a time reads."""

    def __init__(self) -> None:
        self._worker: WorkerProcess | None = None
        self._lock = Lock()
        self._is_closed = False

    def read(self, pdf: Path, references: Mapping[int, str | None]) -> Reading:
        """Return which files the PDF shows, of `references` by file id, or why its pages were not read.

        Raises `OSError` without a process for it.
        """
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
                return Unread.SKIPPED
        assert isinstance(findings, dict | Unread)  # noqa: S101 - the worker sends nothing else
        return findings

    def close(self) -> None:
        """End the worker at once. A thread that waits for it gets `WorkerEndedError`."""
        self._is_closed = True
        if (worker := self._worker) is not None:
            worker.kill()
            with self._lock:
                worker.close()
