"""Rows of commits that have none yet, after a kill or a rollback: made from the documents of these commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.lake.duckdb_files import first_line
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.raw_documents import DefinitionIndex, iter_commits, iter_raw_batches, select_tombstones
from pipeline.lake.row_buffer import RowBuffer
from pipeline.logs import get_logger
from schemas.tables import DELETED_FILES, FILES
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.models import Part

_REASON = "the documents were damaged before their rows were written; the next sync fetches the file again"
_log = get_logger()


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
