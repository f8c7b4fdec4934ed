"""Documents as received, read back from raw parts: rows are rebuilt from them without a call to the service."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.flatten.flatten import FlattenResult, flatten
from pipeline.lake.duckdb_files import first_line
from pipeline.lake.parts import RAW_TABLE, RowBuffer
from pipeline.logs import get_logger
from schemas.file_versions import FileVersion
from schemas.tables import COMMIT_SEQ_COLUMN, DELETED, DELETED_FILES, FETCHED, FILES, RESTORED
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.models import Part

_DOCUMENTS_PER_BATCH: Final = 500
_REASON = "the documents were damaged before their rows were written; the next sync fetches the file again"
_log = get_logger()


class RawCommit(Struct, frozen=True):
    """Versions of one commit with their raw documents. `texts_from_list`: only the list heeded `lang`."""

    run_id: str
    seq: int
    texts_from_list: bool
    versions: tuple[FileVersion, ...]

    def flatten(self, known_definitions: Container[str]) -> FlattenResult:
        """Return the rows of the versions, without definitions that the lake has."""
        return flatten(
            self.versions,
            run_id=self.run_id,
            seq=self.seq,
            known_definitions=known_definitions,
            texts_from_list=self.texts_from_list,
        )


def iter_raw_batches(layout: LakeLayout, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of raw parts. Raises OSError or `pa.ArrowException` for a damaged part."""
    for part in parts:
        with pq.ParquetFile(layout.part_path(part.name), page_checksum_verification=True) as file:
            yield from file.iter_batches(_DOCUMENTS_PER_BATCH)


def iter_commits(batch: pa.RecordBatch) -> Iterator[RawCommit]:
    """Yield the versions in rows of a raw part, by commit, in their order."""
    versions = _select_kinds(batch, FETCHED, RESTORED)
    for (seq, run_id, texts_from_list), rows in groupby(_versions(versions), key=lambda row: row[:3]):
        yield RawCommit(run_id, seq, texts_from_list, tuple(row[3] for row in rows))


def _versions(batch: pa.RecordBatch) -> Iterator[tuple[int, str, bool, FileVersion]]:
    instants = [batch.column(name).cast(pa.int64()).to_pylist() for name in ("updated_at", "_fetched_at")]
    names = (COMMIT_SEQ_COLUMN, "_run_id", "texts_from_list", "file_id", "list_item", "detail")
    plain = [batch.column(name).to_pylist() for name in names]
    for seq, run_id, from_list, file_id, item, detail, updated, fetched in zip(*plain, *instants, strict=True):
        yield seq, run_id, from_list, FileVersion(file_id, item, detail, updated, fetched, "")


def _select_kinds(batch: pa.RecordBatch, *kinds: str) -> pa.RecordBatch:
    return batch.filter(pa.array([kind in kinds for kind in batch.column("kind").to_pylist()], pa.bool_()))


def select_tombstones(batch: pa.RecordBatch) -> pa.Table:
    """Return the tombstones in rows of a raw part, as rows of `deleted_files`."""
    tombstones = _select_kinds(batch, DELETED)
    columns = [
        tombstones.column("_fetched_at" if field.name == "deletion_detected_at" else field.name)
        for field in DELETED_FILES.arrow
    ]
    return pa.Table.from_arrays(columns, schema=DELETED_FILES.arrow)


class DefinitionIndex:
    """The workflow definitions and their commits. Each is written once, with the first commit that contains it."""

    def __init__(self, ledger: Ledger) -> None:
        self.all: Mapping[str, int] = ledger.definitions()
        self.seqs = frozenset(self.all.values())
        self.written: frozenset[str] = frozenset()

    def select_known(self, seq: int) -> frozenset[str]:
        """Return the definitions that rows of commit `seq` must not repeat."""
        return self.written.union(name for name, first in self.all.items() if first != seq)


# Rows that are pending


def write_pending_rows(layout: LakeLayout, ledger: Ledger) -> None:
    """Write the pending rows of the lake as parts, if there are any. Raises `StorageError`.

    A file whose documents cannot be read leaves the tables, and the next sync fetches it again.
    """
    first = ledger.properties.pending_rows_from
    if first is None:
        return
    raw = [part for part in ledger.parts() if part.table_name == RAW_TABLE and part.first_commit_seq >= first]
    definitions = DefinitionIndex(ledger)
    buffer = RowBuffer(layout, span=(first, ledger.next_commit_seq() - 1))
    flattened: set[tuple[int, int]] = set()
    written: list[Part] = []
    for part in raw:
        try:
            for batch in iter_raw_batches(layout, [part]):
                buffer.add({DELETED_FILES.name: select_tombstones(batch)})
                for commit in iter_commits(batch):
                    flat = commit.flatten(definitions.select_known(commit.seq))
                    definitions.written |= flat.definitions
                    buffer.add(flat.tables)
                    if (files := flat.tables.get(FILES.name)) is not None:
                        flattened.update((file_id, commit.seq) for file_id in files["file_id"].to_pylist())
        except (OSError, pa.ArrowException) as error:
            _log.warning("raw.read_failed", part=part.name, error=first_line(error))
        if buffer.is_full:
            written += buffer.write()
    written += buffer.write()
    # Before the rows count: a run that is killed in between finds the same files again.
    _forget_lost_files(ledger, set(ledger.file_commit_seqs((first, ledger.next_commit_seq()))) - flattened)
    lost_definitions = {name for name, seq in definitions.all.items() if seq >= first} - definitions.written
    if lost_definitions:
        ledger.delete_definitions(sorted(lost_definitions))
    ledger.add_rows(written)
    _log.info("rows.written", versions=len(flattened))


def _forget_lost_files(ledger: Ledger, lost: set[tuple[int, int]]) -> None:
    if lost:
        run = ledger.last_run()
        documents = {file_id: b'{"id": %d}' % file_id for file_id, _ in sorted(lost)}
        run_id = "" if run is None else run.run_id
        ledger.queue_refetch(documents, incomplete=set(documents), reason=_REASON, run_id=run_id, at=now_us())
