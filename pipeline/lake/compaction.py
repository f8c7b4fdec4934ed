"""Compaction: the parts of many commits become few, without the rows of superseded versions.

The parts of one commit, over all tables, are a part group. After a sync a lake has at most 16 of them, so that every
engine that reads the parts opens few files and filters few rows. Compaction has a memory limit of its own, and readers
use the former parts meanwhile.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import LakeCorruptedError, ScanlakeError
from pipeline.lake.catalog.duckdb import open_worker_connection, split_sorted_query
from pipeline.lake.catalog.sql import sql_literal
from pipeline.lake.catalog.tables import read_parts_sql
from pipeline.lake.retention import expire_snapshots
from pipeline.lake.storage.parts import (
    RAW_TABLE,
    READ_BATCH_ROWS,
    check_part_intact,
    estimate_memory,
    write_batches,
    write_parts,
)
from pipeline.output.logs import log
from schemas.tables import BY_NAME, COMMIT_SEQ_COLUMN, FETCHED, RESTORED
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.storage.layout import LakeLayout, Part
    from pipeline.settings.settings import Settings
    from schemas.tables import Table

MAX_GROUPS: Final = 16
MAX_SUPERSEDED_RATIO: Final = 0.05
MIN_SUPERSEDED: Final = 1_000  # versions: fewer slow no query down
SMALL_RAW_PART_BYTES: Final = 8 * 1024 * 1024  # larger parts of documents are not merged
_MAX_SMALL_RAW_PARTS: Final = 20
_MERGED_RAW_PART_BYTES: Final = 16 * 1024 * 1024  # of one compaction: documents are decoded and encoded again
_MAX_EXPIRED_RATIO: Final = 0.2  # of a raw part's documents; a part with more expired ones is rewritten
_RAW_BATCH_ROWS: Final = 1_000
_VERSION_BATCH_ROWS: Final = 500

_Version: TypeAlias = tuple[int, int]


class PartGroup(Struct, frozen=True):
    """The parts of one commit or of one compaction: range of commits, files, superseded versions."""

    first_commit_seq: int
    last_commit_seq: int
    files: int
    superseded: int


def list_part_groups(ledger: Ledger) -> list[PartGroup]:
    """Return the lake's part groups, oldest first. Their ranges of commits never overlap."""
    groups = (
        "(SELECT first_commit_seq, last_commit_seq, sum(iif(table_name = 'files', row_count, 0)) AS files,"
        " (SELECT count(*) FROM superseded_version AS s"
        " WHERE s.commit_seq BETWEEN part.first_commit_seq AND part.last_commit_seq) AS superseded"
        " FROM part WHERE table_name <> ? GROUP BY first_commit_seq, last_commit_seq ORDER BY first_commit_seq)"
    )
    return ledger.select(PartGroup, groups, (RAW_TABLE,))


def select_for_compaction(groups: Sequence[PartGroup]) -> Sequence[PartGroup]:
    """Return the newest groups that are to be compacted, contiguous; none while compaction is not due.

    An older group is taken only when the younger ones together have half its files. So the number of times that a
    row is rewritten grows with the logarithm of the lake's size, not with its age.
    """
    superseded = sum(group.superseded for group in groups)
    if superseded >= MIN_SUPERSEDED and superseded > MAX_SUPERSEDED_RATIO * sum(group.files for group in groups):
        return groups
    if len(groups) <= MAX_GROUPS:
        return ()
    files = 0
    for index in range(len(groups) - 1, -1, -1):
        younger = groups[index + 1 :]
        if len(younger) > 1 and groups[index].files > 2 * files:
            return younger
        files += groups[index].files
    return groups


def compact(
    layout: LakeLayout, ledger: Ledger, *, now: int, name_suffix: str, keep_raw_versions: int | None = None
) -> bool:
    """Compact the groups that are due. Return whether anything was to be done.

    `now` is in microseconds. `keep_raw_versions` is the number of versions of each file whose documents are kept;
    None keeps all.
    """
    groups = select_for_compaction(list_part_groups(ledger))
    seqs = (groups[0].first_commit_seq, groups[-1].last_commit_seq) if groups else (0, -1)
    try:
        old, new = _replace_tables(layout, ledger, seqs, name_suffix)
        expired: Mapping[str, set[_Version]] = {}
        if keep_raw_versions is not None:
            expired = find_expired_documents(layout, ledger, keep_raw_versions)
        raw = _group_raw_parts([part for part in ledger.parts() if part.table_name == RAW_TABLE], expired)
        for number, parts in enumerate(raw):
            new += _rewrite_raw_parts(layout, parts, expired, f"{name_suffix}-{number:04d}")
            old += parts
    finally:
        layout.remove_spill()
    if any(part.name in expired for part in old):
        ledger.set_properties(delta_base=None)  # its history has what expires
    if old:
        ledger.replace_parts(old, new, superseded_span=seqs, at=now, same_rows=True)
    return bool(old)


# Tables


def _replace_tables(
    layout: LakeLayout, ledger: Ledger, seqs: tuple[int, int], name_suffix: str
) -> tuple[list[Part], list[Part]]:
    """Merge the parts of a range of commits, one table after the other. Return them and what replaces them."""
    by_table: defaultdict[str, list[Part]] = defaultdict(list)
    for part in ledger.parts():
        if part.table_name != RAW_TABLE and seqs[0] <= part.first_commit_seq <= part.last_commit_seq <= seqs[1]:
            by_table[part.table_name].append(part)
    columns = [pa.array(column, pa.int64()) for column in ledger.superseded_columns(seqs)]
    superseded = pa.table(columns, names=["file_id", COMMIT_SEQ_COLUMN])
    new: list[Part] = []
    for name, parts in by_table.items():
        table = BY_NAME[name]
        for part in parts:
            check_part_intact(layout, part)
        paths = [layout.part_path(part.name) for part in parts]
        with open_worker_connection(layout.spill_dir) as db:
            batches = _read_live_batches(db, table, paths, superseded)
            new += write_parts(layout, table, batches, seqs=seqs, name_suffix=name_suffix)
    return [part for parts in by_table.values() for part in parts], new


def _read_live_batches(
    db: duckdb.DuckDBPyConnection, table: Table, paths: Sequence[Path], superseded: pa.Table
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of parts that are not superseded, sorted by file. Use a connection once."""
    columns = ", ".join(f'part."{name}"' for name in table.arrow.names)
    source = f"SELECT {columns} FROM {read_parts_sql(table.arrow, paths)} AS part"
    if table.is_per_file:
        db.register("incoming", superseded)
        db.execute("CREATE TEMP TABLE superseded AS FROM incoming")
        source += f" ANTI JOIN superseded USING (file_id, {COMMIT_SEQ_COLUMN})"
    for query in split_sorted_query(db, source, table, size=sum(map(estimate_memory, paths))):
        yield from db.sql(query).to_arrow_reader(READ_BATCH_ROWS)


# Raw documents


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
    return [write_batches(layout, target, RAW_TABLE, batches, seqs=seqs)]


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

    The current version of a file never expires: a rebuild and `scanlake repair` make its rows from its documents.
    """
    paths = {str(layout.part_path(part.name)): part.name for part in ledger.parts() if part.table_name == RAW_TABLE}
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
    if not select_for_compaction(list_part_groups(lake.ledger)):
        return
    try:
        run_compaction(lake, settings)
    except ScanlakeError as error:
        log.warning("compaction.failed", error=error.message, hint=error.hint)


def run_compaction(lake: Lake, settings: Settings) -> bool:
    """Compact the due part groups, publish, and expire snapshots. Return whether any were due."""
    has_compacted = compact(
        lake.layout,
        lake.ledger,
        now=now_us(),
        name_suffix=secrets.token_hex(3),
        keep_raw_versions=settings.keep_raw_versions,
    )
    if has_compacted or lake.needs_publish:
        lake.republish(at=now_us())  # not the time above: a compaction may take minutes
    expire_snapshots(lake.layout, lake.ledger, settings, now=time.time())
    return has_compacted
