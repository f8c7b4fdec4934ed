"""Writes batches in this process for small runs and in a subprocess for large ones.

In one process flattening and fetching compete for the interpreter lock, and every switch delays the fetch.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import structlog

from pipeline.errors import RemoteTraceback, ScanlakeError
from pipeline.sync.writer_process import (
    PIPE_BUFFER_BYTES,
    FlushRequest,
    WriteFailure,
    WriteRequest,
    WriteResult,
    receive,
    send,
    write_batch,
)

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
_log = structlog.get_logger()


class BatchWriter:
    """Writes batches; in a subprocess as soon as the run has enough files."""

    def __init__(self, layout: LakeLayout, *, min_files: int = _MIN_FILES_FOR_SUBPROCESS) -> None:
        """`min_files` is the number of files from which a subprocess writes."""
        self._layout = layout
        self._min_files = min_files
        self._files = 0
        self._can_start = True
        self._process: subprocess.Popen[bytes] | None = None

    def prestart(self, files: int) -> None:
        """Start the subprocess now, during the first fetches, if so many `files` need one."""
        if files >= self._min_files:
            self._ensure_process()

    def write(self, request: WriteRequest) -> WriteResult:
        """Write one batch. Raises what `write_batch` raises, also from the subprocess."""
        self._files += len(request.versions)
        process = self._process if self._files < self._min_files else self._ensure_process()
        if process is None:
            return write_batch(self._layout, request)
        result = _exchange(process, request)
        assert isinstance(result, WriteResult)  # noqa: S101 - the writer process sends nothing else
        return result

    def flush(self) -> tuple[Part, ...]:
        """Write the pending rows of all batches, and return their parts. Only the subprocess keeps rows."""
        parts = () if self._process is None else _exchange(self._process, FlushRequest())
        assert isinstance(parts, tuple)  # noqa: S101 - the writer process sends nothing else
        return parts

    def _ensure_process(self) -> subprocess.Popen[bytes] | None:
        """Return the subprocess, started if necessary; None if the system refuses one, then this process writes."""
        if self._process is None and self._can_start:
            try:
                self._process = _start(self._layout)
            except OSError as error:
                self._can_start = False
                _log.warning("writer.not_started", reason=error.strerror, hint="The run writes more slowly.")
        return self._process

    def close(self) -> None:
        """End the subprocess, if there is one. Rows that are still pending are lost."""
        process, self._process, self._files = self._process, None, 0
        if process is not None:
            with contextlib.suppress(OSError), process:
                pass  # its exit closes the pipes and waits for its end


def _exchange(process: subprocess.Popen[bytes], request: WriteRequest | FlushRequest) -> object:
    """Send a request to the subprocess and return its answer. Raises the error with which it answers."""
    try:
        send(process.stdin, request)
        result = receive(process.stdout)
    except (OSError, EOFError):
        process.kill()  # if it still runs, its next result belongs to another request
        raise ScanlakeError(
            f"The writer process ended unexpectedly (exit code {process.wait()}).",
            hint="Run the command again; nothing is lost. If it fails again, check the machine's free memory.",
        ) from None
    except BaseException:
        process.kill()  # its pipe may contain half a batch, and the next one would follow it
        raise
    if isinstance(result, WriteFailure):
        raise result.error from RemoteTraceback(result.frames)
    return result


def _start(layout: LakeLayout) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _WORKER_CODE, str(layout.root)]
    environment = {**os.environ, **_ALLOCATOR_ENV}
    return subprocess.Popen(  # noqa: S603 - a module of this package
        command, bufsize=PIPE_BUFFER_BYTES, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
