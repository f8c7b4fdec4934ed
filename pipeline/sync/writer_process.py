"""Flattens a batch and writes its parts; also the subprocess that does nothing else (see `batch_writer`).

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
from pipeline.lake import parts
from pipeline.lake.layout import LakeLayout
from pipeline.lake.parts import RowBuffer
from pipeline.worker_process import serve
from schemas.file_versions import version_digest
from schemas.tables import UPLOADS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.lake.models import Part
    from schemas.file_versions import FileVersion, Reject

_WRITER_THREADS: Final = 4


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

    `has_detail_forms`: a detail had a submitted form. `tenants` are those of the uploads. `rows_pending`: the parts
    lack the rows of this batch; otherwise they have the pending rows of earlier batches too.
    """

    commit_seq: int
    parts: tuple[Part, ...]
    digests: tuple[bytes, ...]
    rejects: tuple[Reject, ...]
    drift: Mapping[tuple[str, str, str], int]
    definitions: frozenset[str]
    has_detail_forms: bool
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
    uploads = flat.tables.get(UPLOADS.name)
    tenants = frozenset() if uploads is None else frozenset(uploads["tenant_id"].unique().to_pylist()) - {None}
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
        has_detail_forms=flat.has_detail_forms,
        tenants=tenants,
        rows_pending=buffer is not None and buffer.has_rows,
    )


def main(root: str) -> None:
    """Process write requests from stdin until it is closed."""
    load_casts()
    layout = LakeLayout(Path(root))
    buffer = RowBuffer(layout)

    def answer(request: WriteRequest | FlushRequest) -> object:
        return buffer.write() if isinstance(request, FlushRequest) else write_batch(layout, request, buffer)

    serve(answer)
