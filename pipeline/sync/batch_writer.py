"""Flattens batches and writes their documents: in this process for small runs, in a subprocess for large ones.

The module calls neither ledger nor service: it receives versions and returns parts, rejects and drift.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.flatten.rows import load_casts
from pipeline.lake.catalog.catalog import AppliedCommits
from pipeline.lake.catalog.next_catalog import NextCatalog
from pipeline.lake.storage import parts
from pipeline.lake.storage.layout import LakeLayout, Part
from pipeline.output.logs import log
from pipeline.processes.worker import WorkerProcess, serve
from schemas.file_versions import version_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from pipeline.lake.catalog.documents import RawCommit
    from pipeline.lake.catalog.next_catalog import NextBase
    from schemas.file_versions import Reject

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
    """Message to the writer: a commit with its versions sorted by file, and definitions that the lake has.

    `committed` is the last of the writer's commits that the ledger has, `base` the catalog to which the first one can
    be applied.
    """

    commit: RawCommit
    known_definitions: frozenset[str]
    committed: int = 0
    base: NextBase | None = None


class FinishRequest(Struct, frozen=True):
    """Message to the writer: end the next catalog, with the rows up to a commit. It answers with it, or with None."""

    committed: int


class WriteResult(Struct, frozen=True):
    """Message from the writer: documents on disk, rejects, drift; digests of the list items in the order of versions.

    `tenants` are those of the uploads.
    """

    parts: tuple[Part, ...]
    digests: tuple[bytes, ...]
    rejects: tuple[Reject, ...]
    drift: Mapping[tuple[str, str, str], int]
    definitions: frozenset[str]
    tenants: frozenset[int]


def write_batch(layout: LakeLayout, request: WriteRequest) -> tuple[WriteResult, Mapping[str, pa.Table]]:
    """Flatten one batch, and write its documents. Return the rows, too.

    Raises `StorageError`; a version that cannot be read becomes a reject.
    """
    commit, written = request.commit, list[Part]()
    flat = commit.flatten(request.known_definitions)
    unreadable = {reject.file_id for reject in flat.rejects}
    versions = [version for version in commit.versions if version.file_id not in unreadable]
    digests = tuple(version_digest(version.list_item or b"") for version in versions)
    if versions:
        from_list = commit.texts_from_list
        written.append(
            parts.write_raw_part(
                layout, versions, digests, run_id=commit.run_id, seq=commit.seq, texts_from_list=from_list
            )
        )
    return WriteResult(tuple(written), digests, flat.rejects, flat.drift, flat.definitions, flat.tenants), flat.tables


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
        self._files += len(request.commit.versions)
        self.prestart(self._files)
        if self._process is None:  # of so few files the publish makes the rows again
            return write_batch(self._layout, request)[0]
        result = self._process.exchange(request)
        assert isinstance(result, WriteResult)  # noqa: S101 - the writer process sends nothing else
        return result

    def finish(self, committed: int) -> AppliedCommits | None:
        """Return the next catalog with the rows up to a commit; None if there is none."""
        applied = None if self._process is None else self._process.exchange(FinishRequest(committed))
        assert applied is None or isinstance(applied, AppliedCommits)  # noqa: S101 - the writer process sends nothing else
        return applied

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
        """End the subprocess, if there is one. Its next catalog is lost, if it is not finished."""
        process, self._process, self._files = self._process, None, 0
        if process is not None:
            process.close()


class _Writer:
    """The writer process: it applies the rows of a batch once it knows that the ledger has the commit."""

    def __init__(self, layout: LakeLayout) -> None:
        self._layout, self._next = layout, NextCatalog(layout)
        self._last: tuple[WriteRequest, Mapping[str, pa.Table]] | None = None

    def answer(self, request: WriteRequest | FinishRequest) -> object:
        """Write a batch, or end the next catalog."""
        if self._last is not None:
            (last, tables), self._last = self._last, None
            if last.commit.seq == request.committed and last.base is not None:
                self._next.add(tables, seq=request.committed, base=last.base)
        if isinstance(request, FinishRequest):
            return self._next.finish()
        result, tables = write_batch(self._layout, request)
        self._last = request, tables
        return result


def main(root: str) -> None:
    """Process write requests from stdin until it is closed."""
    load_casts()
    serve(_Writer(LakeLayout(Path(root))).answer)
