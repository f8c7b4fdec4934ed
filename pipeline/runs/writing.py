"""Writing a batch: flatten it and put its parts on disk, in a process of its own once there is much to do.

Flattening and fetching would otherwise take turns on one interpreter lock, and each turn costs the fetch a wait.
The process knows neither ledger nor service: versions go in, parts and what was noticed come out.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from pipeline.errors import ScanlakeError
from pipeline.flatten.flatten import flatten
from pipeline.lake import parts
from pipeline.lake.files import Layout
from schemas.versions import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.lake.records import Part
    from schemas.versions import Reject, Version

_ENTRY: Final = "import sys; from pipeline.runs.writing import serve; serve(sys.argv[1])"
_LENGTH: Final = struct.Struct("<Q")
# Every batch wants the same memory again: what one gives back the next takes, and not the system in between.
_MEMORY: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_TRIM_THRESHOLD_": str(256 * 1024**2),
    "MALLOC_MMAP_THRESHOLD_": str(64 * 1024**2),
}
_WORTH_A_PROCESS: Final = 1_500  # files of one run; below that starting it costs more than it gives


@dataclass(frozen=True, slots=True)
class Order:
    """A batch to be written: versions sorted by file, the commit's number, definitions the lake holds."""

    versions: tuple[Version, ...]
    run_id: str
    seq: int
    definitions: frozenset[str]


@dataclass(frozen=True, slots=True)
class Written:
    """What came of it: parts on disk, digests of the list items in the order of the versions, and findings."""

    parts: tuple[Part, ...]
    digests: tuple[bytes, ...]
    rejects: tuple[Reject, ...]
    drift: Mapping[tuple[str, str, str], int]
    names: Mapping[tuple[str, str], int]
    definitions: frozenset[str]


def write(layout: Layout, order: Order) -> Written:
    """Flatten and write one batch; raises `StorageError`. A version that cannot be read is a reject."""
    flat = flatten(order.versions, run_id=order.run_id, seq=order.seq, known_definitions=order.definitions)
    unreadable = {reject.file_id for reject in flat.rejects}
    versions = [version for version in order.versions if version.file_id not in unreadable]
    mark = order.run_id.rpartition("-")[2]
    rows = dict(flat.tables)
    if versions:
        rows[parts.RAW_TABLE] = parts.raw_rows(versions, run_id=order.run_id, seq=order.seq)
    written = [
        parts.write_part(layout, name, table, seq=order.seq, mark=mark) for name, table in rows.items() if len(table)
    ]
    return Written(
        parts=tuple(written),
        digests=tuple(digest(version.list_item or b"") for version in versions),
        rejects=flat.rejects,
        drift={(drift.table, drift.key, drift.kind): count for drift, count in flat.drift.items()},
        names=parts.names_in(flat.tables),
        definitions=flat.definitions,
    )


class Writer:
    """Writes batches; in its own process from the moment when that is worth it."""

    def __init__(self, layout: Layout, *, worth: int = _WORTH_A_PROCESS) -> None:
        """`worth` is the number of files from which on a process of its own is used."""
        self._layout = layout
        self._worth = worth
        self._files = 0
        self._process: subprocess.Popen[bytes] | None = None

    def expect(self, files: int) -> None:
        """So many files may come: where they are worth a process, it starts now, while the first are fetched."""
        if files >= self._worth and self._process is None:
            self._process = _start(self._layout)

    def write(self, order: Order) -> Written:
        """Write one batch; raises what `write` raises, wherever it happens."""
        self._files += len(order.versions)
        if self._files < self._worth and self._process is None:
            return write(self._layout, order)
        process = self._process = self._process or _start(self._layout)
        try:
            _send(process.stdin, order)
            answer = _receive(process.stdout)
        except (OSError, EOFError):
            raise ScanlakeError(
                f"the writing process died (exit code {process.poll()})",
                remedy="Run again; nothing is lost. If it happens again, the machine may be short of memory.",
            ) from None
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, Written)  # noqa: S101 - our own process sends nothing else
        return answer

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
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )


def _send(pipe: IO[bytes] | None, value: object) -> None:
    content = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    if pipe is None:
        raise EOFError
    pipe.write(_LENGTH.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def _receive(pipe: IO[bytes] | None) -> Any:
    if pipe is None:
        raise EOFError
    content = _exactly(pipe, *_LENGTH.unpack(_exactly(pipe, _LENGTH.size)))
    return pickle.loads(content)  # noqa: S301 - from our own process, through a pipe that nobody else holds


def _exactly(pipe: IO[bytes], length: int) -> bytes:
    content = pipe.read(length)
    if len(content) < length:  # whoever sent it was killed while sending
        raise EOFError
    return content


def serve(root: str) -> None:
    """Write what comes in until whoever sends it is gone, however it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the sender decides
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may get between the answers
    layout = Layout(Path(root))
    gc.disable()  # documents hold no cycles, and looking for some took a tenth of the time
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            order = _receive(sys.stdin.buffer)
            try:
                answer: object = write(layout, order)
            except Exception as error:  # noqa: BLE001 - raised again where it was asked for
                answer = error
            _send(answers, answer)
            del order, answer
            gc.collect(0)
