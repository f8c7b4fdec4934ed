"""Compaction: small parts of documents become few, and documents of old versions expire.

It has a memory limit of its own, and readers use the former parts meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

from pipeline.errors import ScanlakeError
from pipeline.lake.catalog.documents import rewrite_documents
from pipeline.lake.catalog.duckdb import open_worker_connection
from pipeline.lake.catalog.sql import sql_literal
from pipeline.lake.retention import expire_snapshots
from pipeline.lake.storage.parts import RAW_TABLE
from pipeline.output.logs import log
from schemas.tables import COMMIT_SEQ_COLUMN, FETCHED, RESTORED
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.storage.layout import LakeLayout, Part
    from pipeline.settings.settings import Settings

SMALL_RAW_PART_BYTES: Final = 8 * 1024 * 1024  # larger parts of documents are not merged
_MAX_SMALL_RAW_PARTS: Final = 20
_MERGED_RAW_PART_BYTES: Final = 16 * 1024 * 1024  # of one compaction: documents are decoded and encoded again
_MAX_EXPIRED_RATIO: Final = 0.2  # of a raw part's documents; a part with more expired ones is rewritten
_VERSION_BATCH_ROWS: Final = 500

_Version: TypeAlias = tuple[int, int]


def compact(layout: LakeLayout, ledger: Ledger, keep_raw_versions: int | None) -> bool:
    """Write parts of documents again that are small, or of which enough have expired. Return whether there were any.

    `keep_raw_versions` is the number of versions of each file whose documents are kept; None keeps all.
    """
    old: list[Part] = []
    new: list[Part] = []
    try:
        expired: Mapping[str, set[_Version]] = {}
        if keep_raw_versions is not None:
            expired = find_expired_documents(layout, ledger, keep_raw_versions)
        versions = set[_Version]().union(*expired.values())
        for parts in _group_raw_parts(_list_raw_parts(ledger), expired):
            new += rewrite_documents(layout, parts, lambda *version: version not in versions)
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
    has_compacted = compact(lake.layout, lake.ledger, settings.keep_raw_versions)
    if has_compacted or lake.needs_publish:
        lake.republish(at=now_us())  # not the time above: a compaction may take minutes
    expire_snapshots(lake.layout, lake.ledger, settings)
    return has_compacted
