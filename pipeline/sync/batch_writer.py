"""Flattens batches and writes their parts: in this process for small runs, in a subprocess for large ones.

The module calls neither ledger nor service: it receives versions and returns parts, rejects and drift.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.flatten.flatten import flatten
from pipeline.flatten.rows import load_casts
from pipeline.lake.storage import parts
from pipeline.lake.storage.layout import LakeLayout
from pipeline.lake.storage.parts import RowBuffer
from pipeline.output.logs import log
from pipeline.processes.worker import WorkerProcess, serve
from schemas.file_versions import version_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.lake.storage.layout import Part
    from schemas.file_versions import FileVersion, Reject

_WRITER_THREADS: Final = 4
_WORKER_CODE: Final = "import sys; from pipeline.sync.batch_writer import main; main(sys.argv[1])"
# Every batch needs the same memory again, so the allocator keeps it instead of returning it to the system.
_ALLOCATOR_ENV: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(256 * 1024**2),
    "MALLOC_MMAP_THRESHOLD_": str(64 * 1024**2),
}
_MIN_FILES_FOR_SUBPROCESS: Final = 1_500  # files of one run; for fewer the start costs more than it saves


class WriteRequest(Struct, frozen=True):
    """Message to the writer: versions sorted by file, the commit's number, definitions that the lake has.

    `texts_from_list`: only the list heeds `lang`. `flush`: no rows may be pending after this batch.
    """

    versions: tuple[FileVersion, ...]
    run_id: str
    commit_seq: int
    known_definitions: frozenset[str]
    texts_from_list: bool = False
    flush: bool = False


class FlushRequest(Struct, frozen=True):
    """Message to the writer: write all pending rows. It answers with their parts."""


class WriteResult(Struct, frozen=True):
    """Message from the writer: parts on disk, rejects, drift; digests of the list items in the order of versions.

    `tenants` are those of the uploads. `rows_pending`: the parts lack the rows of this batch; otherwise they have the
    pending rows of earlier batches too.
    """

    commit_seq: int
    parts: tuple[Part, ...]
    digests: tuple[bytes, ...]
    rejects: tuple[Reject, ...]
    drift: Mapping[tuple[str, str, str], int]
    definitions: frozenset[str]
    tenants: frozenset[int]
    rows_pending: bool = False

    @property
    def unreadable_files(self) -> frozenset[int | None]:
        """Files of the batch that could not be flattened."""
        return frozenset(reject.file_id for reject in self.rejects)


def write_batch(layout: LakeLayout, request: WriteRequest, buffer: RowBuffer | None = None) -> WriteResult:
    """Flatten and write one batch. Raises `StorageError`; a version that cannot be read becomes a reject.

    The documents are always on disk afterwards. The rows stay in `buffer`, if there is one, until it is full. Parts
    are written concurrently, because each waits for the disk twice.
    """
    run_id, commit_seq = request.run_id, request.commit_seq
    flat = flatten(
        request.versions,
        run_id=run_id,
        seq=commit_seq,
        known_definitions=request.known_definitions,
        texts_from_list=request.texts_from_list,
    )
    unreadable = {reject.file_id for reject in flat.rejects}
    versions = [version for version in request.versions if version.file_id not in unreadable]
    tenants = flat.tenants  # before the tables are taken away
    write_part = partial(parts.write_part, layout, run_id=run_id, seq=commit_seq)
    digests = tuple(version_digest(version.list_item or b"") for version in versions)
    write_raw_part = partial(parts.write_raw_part, layout, texts_from_list=request.texts_from_list)
    with ThreadPoolExecutor(_WRITER_THREADS, thread_name_prefix="disk") as disk:
        writes = []
        if buffer is None:
            # `pop` frees a table as soon as it is written. The documents come last: they are as large as all tables.
            writes += [disk.submit(write_part, name, flat.tables.pop(name)) for name in tuple(flat.tables)]
        if versions:
            writes.append(disk.submit(write_raw_part, versions, digests, run_id=run_id, seq=commit_seq))
        written = [write.result() for write in writes]
    if buffer is not None:
        buffer.add(flat.tables, run_id=run_id, seq=commit_seq)
        if buffer.is_full or request.flush:
            written += buffer.write()
    return WriteResult(
        commit_seq=commit_seq,
        parts=tuple(written),
        digests=digests,
        rejects=flat.rejects,
        drift=flat.drift,
        definitions=flat.definitions,
        tenants=tenants,
        rows_pending=buffer is not None and buffer.has_rows,
    )


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
                log.warning("writer.not_started", reason=error.strerror, hint="The run writes more slowly.")
        return self._process

    def close(self) -> None:
        """End the subprocess, if there is one. Rows that are still pending are lost."""
        process, self._process, self._files = self._process, None, 0
        if process is not None:
            process.close()


def main(root: str) -> None:
    """Process write requests from stdin until it is closed."""
    load_casts()
    layout = LakeLayout(Path(root))
    buffer = RowBuffer(layout)

    def answer(request: WriteRequest | FlushRequest) -> object:
        return buffer.write() if isinstance(request, FlushRequest) else write_batch(layout, request, buffer)

    serve(answer)
