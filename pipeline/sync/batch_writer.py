"""Writes batches in this process for small runs and in a subprocess for large ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.logs import get_logger
from pipeline.sync.writer_process import FlushRequest, WriteRequest, WriteResult, write_batch
from pipeline.worker_process import WorkerProcess

if TYPE_CHECKING:
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.models import Part

_WORKER_CODE: Final = "import sys; from pipeline.sync.writer_process import main; main(sys.argv[1])"
# Every batch needs the same memory again, so the allocator keeps it instead of returning it to the system.
_ALLOCATOR_ENV: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(256 * 1024**2),
    "MALLOC_MMAP_THRESHOLD_": str(64 * 1024**2),
}
_MIN_FILES_FOR_SUBPROCESS: Final = 1_500  # files of one run; for fewer the start costs more than it saves
_log = get_logger()


class BatchWriter:
    """Writes batches; in a subprocess as soon as the run has enough files."""

    def __init__(self, layout: LakeLayout, *, min_files: int = _MIN_FILES_FOR_SUBPROCESS) -> None:
        """`min_files` is the number of files from which a subprocess writes."""
        self._layout = layout
        self._min_files = min_files
        self._files = 0
        self._can_start = True
        self._process: WorkerProcess | None = None

    def prestart(self, files: int) -> None:
        """Start the subprocess now, during the first fetches, if so many `files` need one."""
        if files >= self._min_files:
            self._ensure_process()

    def write(self, request: WriteRequest) -> WriteResult:
        """Write one batch. Raises what `write_batch` raises, also from the subprocess."""
        self._files += len(request.versions)
        self.prestart(self._files)
        if self._process is None:
            return write_batch(self._layout, request)
        result = self._process.exchange(request)
        assert isinstance(result, WriteResult)  # noqa: S101 - the writer process sends nothing else
        return result

    def flush(self) -> tuple[Part, ...]:
        """Write the pending rows of all batches, and return their parts. Only the subprocess keeps rows."""
        parts = () if self._process is None else self._process.exchange(FlushRequest())
        assert isinstance(parts, tuple)  # noqa: S101 - the writer process sends nothing else
        return parts

    def _ensure_process(self) -> WorkerProcess | None:
        """Return the subprocess, started if necessary; None if the system refuses one, then this process writes."""
        if self._process is None and self._can_start:
            try:
                root = str(self._layout.root)
                self._process = WorkerProcess("writer", _WORKER_CODE, root, environment=_ALLOCATOR_ENV)
            except OSError as error:
                self._can_start = False
                _log.warning("writer.not_started", reason=error.strerror, hint="The run writes more slowly.")
        return self._process

    def close(self) -> None:
        """End the subprocess, if there is one. Rows that are still pending are lost."""
        process, self._process, self._files = self._process, None, 0
        if process is not None:
            process.close()
