"""Who has batches written: this process while there is little to do, one of its own once there is much.

Flattening and fetching would otherwise take turns on one interpreter lock, and each turn costs the fetch a wait.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import structlog

from pipeline.errors import Elsewhere, ScanlakeError
from pipeline.runs.writing import BUFFER, Failed, Order, Written, receive, send, write

if TYPE_CHECKING:
    from pipeline.lake.files import Layout

_ENTRY: Final = "import sys; from pipeline.runs.writing import serve; serve(sys.argv[1])"
# Every batch wants the same memory again: what one gives back the next takes, and not the system in between.
_MEMORY: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(256 * 1024**2),
    "MALLOC_MMAP_THRESHOLD_": str(64 * 1024**2),
}
_WORTH_A_PROCESS: Final = 1_500  # files of one run; below that starting it costs more than it gives
_log = structlog.get_logger()


class Writer:
    """Writes batches; in its own process from the moment when that is worth it."""

    def __init__(self, layout: Layout, *, worth: int = _WORTH_A_PROCESS) -> None:
        """`worth` is the number of files from which on a process of its own is used."""
        self._layout = layout
        self._worth = worth
        self._files = 0
        self._may_start = True
        self._process: subprocess.Popen[bytes] | None = None

    def expect(self, files: int) -> None:
        """So many files may come: where they are worth a process, it starts now, while the first are fetched."""
        if files >= self._worth:
            self._begin()

    def write(self, order: Order) -> Written:
        """Write one batch; raises what `write` raises, wherever it happens."""
        self._files += len(order.versions)
        process = self._process if self._files < self._worth else self._begin()
        if process is None:
            return write(self._layout, order)
        try:
            send(process.stdin, order)
            answer = receive(process.stdout)
        except (OSError, EOFError):
            process.kill()  # if it is not dead, what it sends is not ours
            raise ScanlakeError(
                f"the writing process died (exit code {process.wait()})",
                remedy="Run again; nothing is lost. If it happens again, the machine may be short of memory.",
            ) from None
        except BaseException:
            process.kill()  # half a batch may be in its pipe, with which the next one would be mixed
            raise
        if isinstance(answer, Failed):
            raise answer.error from Elsewhere(answer.frames)
        assert isinstance(answer, Written)  # noqa: S101 - our own process sends nothing else
        return answer

    def _begin(self) -> subprocess.Popen[bytes] | None:
        """The process, started if need be; None where the machine has none to spare: then this one does it."""
        if self._process is None and self._may_start:
            try:
                self._process = _start(self._layout)
            except OSError as error:
                self._may_start = False
                _log.warning("writer.not_started", reason=error.strerror, hint="this process writes, and takes longer")
        return self._process

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            process.wait()


def _start(layout: Layout) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _ENTRY, str(layout.root)]
    environment = {**os.environ, **_MEMORY}
    return subprocess.Popen(  # noqa: S603 - our own module
        command, bufsize=BUFFER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
