"""Compaction: small parts of documents become few, and documents of old versions expire.

It has a memory limit of its own, and readers use the former parts meanwhile.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import LakeCorruptedError, ScanlakeError
from pipeline.lake.catalog.duckdb import open_worker_connection
from pipeline.lake.catalog.sql import sql_literal
from pipeline.lake.retention import expire_snapshots
from pipeline.lake.storage.parts import RAW_TABLE, check_part_intact, write_batches
from pipeline.output.logs import log
from schemas.tables import COMMIT_SEQ_COLUMN, FETCHED, RESTORED
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.storage.layout import LakeLayout, Part
    from pipeline.settings.settings import Settings

SMALL_RAW_PART_BYTES: Final = 8 * 1024 * 1024  # larger parts of documents are not merged
_MAX_SMALL_RAW_PARTS: Final = 20
_MERGED_RAW_PART_BYTES: Final = 16 * 1024 * 1024  # of one compaction: documents are decoded and encoded again
_MAX_EXPIRED_RATIO: Final = 0.2  # of a raw part's documents; a part with more expired ones is rewritten
_RAW_BATCH_ROWS: Final = 1_000
_VERSION_BATCH_ROWS: Final = 500

_Version: TypeAlias = tuple[int, int]


def compact(layout: LakeLayout, ledger: Ledger, *, name_suffix: str, keep_raw_versions: int | None = None) -> bool:
    """Write parts of documents again that are small, or of which enough have expired. Return whether there were any.

    `keep_raw_versions` is the number of versions of each file whose documents are kept;
    None keeps all.
    """
    old: list[Part] = []
    new: list[Part] = []
    try:
        expired: Mapping[str, set[_Version]] = {}
        if keep_raw_versions is not None:
            expired = find_expired_documents(layout, ledger, keep_raw_versions)
        for number, parts in enumerate(_group_raw_parts(_list_raw_parts(ledger), expired)):
            new += _rewrite_raw_parts(layout, parts, expired, f"{name_suffix}-{number:04d}")
            old += parts
    finally:
        layout.remove_spill()
    base = ledger.properties.delta_base
    if base is not None and any(part.name in expired for part in old):
        ledger.set_properties(delta_base={**base, "has_expired": True})
    if old:
        ledger.replace_parts(old, new)
    return bool(old)


def _list_raw_parts(ledger: Ledger) -> list[Part]:
    return [part for part in ledger.parts() if part.table_name == RAW_TABLE]


def _group_raw_parts(parts: Sequence[Part], expired: Mapping[str, set[_Version]]) -> list[list[Part]]:
    """Return the raw parts to write again: some small ones as one part, and those in which enough documents expired.

    Small parts are not sorted: documents are large, and rarely looked up.
    """
    merged: list[Part] = []
    small = [part for part in parts if part.bytes < SMALL_RAW_PART_BYTES]
    if len(small) >= _MAX_SMALL_RAW_PARTS:
        while small and sum(part.bytes for part in merged) < _MERGED_RAW_PART_BYTES:
            merged.append(small.pop(0))
    others = [part for part in parts if part not in merged]
    dirty = [[part] for part in others if len(expired.get(part.name, ())) > _MAX_EXPIRED_RATIO * part.row_count]
    return [merged, *dirty] if merged else dirty


def _rewrite_raw_parts(
    layout: LakeLayout, parts: Sequence[Part], expired: Mapping[str, set[_Version]], name_suffix: str
) -> list[Part]:
    """Write the documents of `parts` that have not expired to one part; to none if nothing remains."""
    if all(part.row_count == len(expired.get(part.name, ())) for part in parts):
        return []
    seqs = (min(part.first_commit_seq for part in parts), max(part.last_commit_seq for part in parts))
    target = layout.documents_dir / f"{seqs[1]:012d}-{name_suffix}.parquet"
    batches = (
        _without_versions(batch, expired.get(part.name, set()))
        for part in parts
        for batch in _read_raw_batches(layout, part)
    )
    return [write_batches(layout, target, batches, seqs=seqs)]


def _read_raw_batches(layout: LakeLayout, part: Part) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a part. Raises `LakeCorruptedError`: the error of a read is none of the target's."""
    check_part_intact(layout, part)
    try:
        with pq.ParquetFile(layout.part_path(part.name)) as source:
            yield from source.iter_batches(_RAW_BATCH_ROWS)
    except (OSError, pa.ArrowException) as error:
        raise LakeCorruptedError(f"{part.name} cannot be read.") from error


def _without_versions(batch: pa.RecordBatch, versions: set[_Version]) -> pa.RecordBatch:
    if not versions:
        return batch
    keys = zip(*(batch.column(name).to_pylist() for name in ("file_id", COMMIT_SEQ_COLUMN)), strict=True)
    return batch.filter(pa.array([key not in versions for key in keys]))


def find_expired_documents(layout: LakeLayout, ledger: Ledger, keep: int) -> dict[str, set[_Version]]:
    """Return the documents beyond the newest `keep` versions of each file, by part, as (file_id, commit_seq).

    The current version of a file never expires: its rows are made from its documents.
    """
    paths = {str(layout.part_path(part.name)): part.name for part in _list_raw_parts(ledger)}
    if not paths:
        return {}
    expired: defaultdict[str, set[_Version]] = defaultdict(set)
    with open_worker_connection(layout.spill_dir) as db:
        rows = db.execute(
            f"SELECT filename, file_id, {COMMIT_SEQ_COLUMN}"
            f" FROM read_parquet([{', '.join(map(sql_literal, paths))}], filename = true)"
            f" WHERE kind IN ('{FETCHED}', '{RESTORED}')"
            f" QUALIFY row_number() OVER (PARTITION BY file_id ORDER BY {COMMIT_SEQ_COLUMN} DESC) > $keep",
            {"keep": keep},
        )
        while batch := rows.fetchmany(_VERSION_BATCH_ROWS):
            current = ledger.file_versions(list({file_id for _, file_id, _ in batch}))
            for path, file_id, seq in batch:
                if file_id not in current or current[file_id].commit_seq != seq:
                    expired[paths[path]].add((file_id, seq))
    return dict(expired)


def compact_if_due(lake: Lake, settings: Settings) -> None:
    """Compact if that is due. A failure is logged, not raised: the rows are published, and the next sync tries."""
    try:
        if sum(part.bytes < SMALL_RAW_PART_BYTES for part in _list_raw_parts(lake.ledger)) >= _MAX_SMALL_RAW_PARTS:
            run_compaction(lake, settings)
    except ScanlakeError as error:
        log.warning("compaction.failed", error=error.message, hint=error.hint)


def run_compaction(lake: Lake, settings: Settings) -> bool:
    """Compact the documents, publish, and expire snapshots. Return whether anything was to be done."""
    has_compacted = compact(
        lake.layout,
        lake.ledger,
        name_suffix=secrets.token_hex(3),
        keep_raw_versions=settings.keep_raw_versions,
    )
    if has_compacted or lake.needs_publish:
        lake.republish(at=now_us())  # not the time above: a compaction may take minutes
    expire_snapshots(lake.layout, lake.ledger, settings)
    return has_compacted
