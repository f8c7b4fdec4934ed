"""Damage of documents, by one rule: the files of documents that are not as they were written are fetched again.

A part that equals, byte by byte, what its own rows are written as is whole: then its entry in the ledger is wrong.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline import __version__
from pipeline.lake.catalog.duckdb import read_database
from pipeline.lake.integrity import find_file_problem
from pipeline.lake.ledger.queries import RunRecord
from pipeline.lake.storage.parts import RAW_OPTIONS, RAW_TABLE, describe_part
from pipeline.output.logs import log
from schemas.tables import COMMIT_SEQ_COLUMN, RAW
from schemas.timestamps import new_run_id, now_us

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import DeltaBase, LedgerQueries
    from pipeline.lake.storage.layout import LakeLayout, Part

_REASON: Final = "the document in documents/ was damaged; the next sync fetches the file again"


class DamagedPart(Struct, frozen=True):
    """A part with another content than recorded. `is_whole`: it has documents, and the record is wrong."""

    part: Part
    problem: str
    is_whole: bool

    @property
    def has_lost_documents(self) -> bool:
        """Whether it has documents that cannot be read."""
        return self.part.table_name == RAW_TABLE and not self.is_whole


def find_damage(layout: LakeLayout, ledger: LedgerQueries, *, since_seq: int = 0) -> list[DamagedPart]:
    """Compare the parts that have later commits than one with what was written. Change nothing."""
    parts = (part for part in ledger.parts() if part.last_commit_seq > since_seq)
    problems = ((part, find_file_problem(layout.part_path(part.name), part)) for part in parts)
    return [DamagedPart(part, problem, _is_whole(layout, part)) for part, problem in problems if problem is not None]


def _is_whole(layout: LakeLayout, part: Part) -> bool:
    """Return whether a part of documents is as it was written: its pages have checksums, and nothing else differs."""
    path, content = layout.part_path(part.name), pa.BufferOutputStream()
    if part.table_name != RAW_TABLE or path.is_symlink():
        return False
    try:
        with (
            pq.ParquetFile(path, page_checksum_verification=True) as file,
            pq.ParquetWriter(content, RAW, **RAW_OPTIONS) as writer,
        ):
            for number in range(file.num_row_groups):
                writer.write_table(file.read_row_group(number).cast(RAW))
        return memoryview(content.getvalue()).cast("B") == path.read_bytes()
    except (OSError, ValueError, pa.ArrowException):  # another version of Arrow may write other bytes, too
        return False


def find_lost_files(
    layout: LakeLayout, ledger: LedgerQueries, damage: Sequence[DamagedPart], *, of_all: bool
) -> frozenset[int]:
    """Return the current files without a document that can be read: of the damaged parts, or `of_all`."""
    unread = {item.part for item in damage if item.has_lost_documents}
    spans = [None] if of_all else [part.span for part in unread]
    missing = {file_id: seq for span in spans for file_id, seq in ledger.file_commit_seqs(span)}
    seqs = set(missing.values())
    for part in ledger.parts() if missing else ():
        is_searched = part.table_name == RAW_TABLE and part not in unread
        if not is_searched or not any(part.first_commit_seq <= seq <= part.last_commit_seq for seq in seqs):
            continue
        with pq.ParquetFile(layout.part_path(part.name)) as file:
            for batch in file.iter_batches(columns=["file_id", COMMIT_SEQ_COLUMN]):
                for file_id, seq in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    if missing.get(file_id) == seq:
                        del missing[file_id]
    return frozenset(missing)


def repair_documents(
    layout: LakeLayout, ledger: Ledger, damage: Iterable[DamagedPart], lost: Collection[int], base: DeltaBase | None
) -> None:
    """Correct the entries of whole parts, and queue the `lost` files for the next sync: each is named as a reject.

    Those whose rows the catalog `base` lacks leave the lake until then; None: a catalog that must be built has no rows.
    """
    damaged = [item for item in damage if item.part.table_name == RAW_TABLE]
    misrecorded = [item.part for item in damaged if item.is_whole]
    corrected = [describe_part(layout, layout.part_path(part.name), RAW_TABLE, part.span) for part in misrecorded]
    if damaged:
        ledger.replace_parts([item.part for item in damaged], corrected)
    if lost:
        known = {} if base is None else _read_references(layout, lost)
        documents = {key: json.dumps({"id": key, "scan_code": known.get(key)}).encode() for key in sorted(lost)}
        published = 0 if base is None else base["commit_seq"]
        incomplete = {key for key, seq in ledger.file_commit_seqs() if key in lost and seq > published}
        log.warning("documents.lost", files=len(lost), hint="The next sync fetches them again.")
        now, run_id = now_us(), new_run_id()
        ledger.begin_run(RunRecord(run_id, "repair", __version__, now, state="done", ended_at=now))
        ledger.queue_refetch(documents, incomplete=incomplete, reason=_REASON, run_id=run_id, at=now)


def _read_references(layout: LakeLayout, file_ids: Collection[int]) -> dict[int, str | None]:
    """Return the references that the catalog has of some files: by them their list items are found."""
    with suppress(duckdb.Error, OSError), read_database(layout.catalog) as db:
        sql = "SELECT file_id, scan_code FROM files WHERE file_id = ANY($ids)"
        return dict(db.execute(sql, {"ids": list(file_ids)}).fetchall())
    return {}
