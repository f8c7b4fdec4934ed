"""Purge: delete files from tables, documents, kept snapshots and ledger, and overwrite their remains on disk.

New documents without the files are written first, then a new catalog with new outputs. Only then the old ones go. A
kill in between leaves a complete lake, and the next publish finishes the purge. Readers that have an old snapshot
open keep it until they close it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.lake.catalog.documents import read_references, rewrite_documents
from pipeline.lake.file_traces import ID_IN_JSON_GLOB, TABLES_BY_FILE, find_references, find_traces
from pipeline.lake.ledger.images import delete_images
from pipeline.lake.ledger.ledger import insert_all, make_publish_due, replace_parts, set_properties
from pipeline.lake.ledger.targets import note_unerased
from pipeline.lake.purged_requests import OutsideCopy, find_outside_copies, forget_requests
from pipeline.lake.storage.layout import list_snapshots
from pipeline.lake.storage.parts import RAW_TABLE
from schemas.timestamps import now_us

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from pipeline.lake.file_traces import FileTraces
    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.ledger import Ledger

_ERRORS: Final = (("run", "error"), ("report_order", "error"), ("report_file", "reason"), ("share", "error"))
_PURGED: Final = "(purged)"


class PurgeResult(Struct, frozen=True):
    """Result of a purge; the object that `--json` prints. Its records of `outside` copies are erased, too."""

    file_ids: tuple[int, ...]
    known: tuple[int, ...]
    parts: int
    snapshots: int
    snapshot: int
    outside: tuple[OutsideCopy, ...] = ()


class PurgedFile(Struct, frozen=True):
    """A file to purge, and its reference in the current version. A deleted file has none."""

    file_id: int
    reference: str | None


class PurgePlan(Struct, frozen=True):
    """What a purge erases: the files that the lake has, the parts to rewrite, and all earlier snapshots.

    `targets` have copies of the lake. `outside` are the copies that it does not reach.
    """

    file_ids: tuple[int, ...]
    files: tuple[PurgedFile, ...]
    parts: int
    snapshots: int
    targets: tuple[str, ...]
    outside: tuple[OutsideCopy, ...]


def plan_purge(lake: Lake, file_ids: Sequence[int]) -> PurgePlan:
    """Return what a purge would erase, and change nothing. Raises the errors of `purge`."""
    traces = find_traces(lake, file_ids)
    seqs = {
        file_id: version.commit_seq for file_id, version in lake.ledger.file_versions(sorted(traces.stored)).items()
    }
    references = read_references(lake.layout, lake.ledger, seqs)
    return PurgePlan(
        traces.file_ids,
        tuple(PurgedFile(file_id, references.get(file_id)) for file_id in sorted(traces.stored)),
        len(traces.parts),
        0 if traces.is_empty else len(list_snapshots(lake.layout)),
        tuple(url.rpartition("/")[0] or url for url in lake.ledger.properties.published_targets),
        _find_outside_copies(lake, traces, find_references(lake, traces), at=now_us()),
    )


def purge(lake: Lake, file_ids: Sequence[int], *, by: str, at: int) -> PurgeResult:
    """Purge files, requested by `by` at `at` (microseconds). Idempotent.

    Raises `SettingsError` when the lake has never had one of them, and `LakeCorruptedError` when a part cannot be
    read; then nothing has changed.
    """
    ledger, traces = lake.ledger, find_traces(lake, file_ids)
    references = find_references(lake, traces)
    outside = _find_outside_copies(lake, traces, references, at=at)
    snapshots = len(list_snapshots(lake.layout))
    raw = [part for part in traces.parts if part.table_name == RAW_TABLE]
    new = [
        rewritten
        for part in raw
        for rewritten in rewrite_documents(lake.layout, [part], lambda *version: not traces.has_version(*version))
    ]
    with ledger.transaction() as db:
        insert_all(db, "purge", ("file_id", "purged_at", "purged_by"), [(key, at, by) for key in traces.file_ids])
        if not traces.is_empty:
            replace_parts(db, raw, new)
            forget_requests(db, traces.list_whole_keys(), references)
            _erase_records(db, traces.file_ids)
            _begin(db, ledger, traces)
    last = ledger.last_snapshot()
    if traces.is_empty:
        return PurgeResult(traces.file_ids, (), 0, 0, last.snapshot if last is not None else 0, outside)
    published = lake.republish(at=at)  # deletes the old parts and snapshots too
    known, parts = tuple(sorted(traces.stored)), len(traces.parts)
    return PurgeResult(traces.file_ids, known, parts, snapshots, published.snapshot, outside)


def _find_outside_copies(
    lake: Lake, traces: FileTraces, references: Sequence[str], *, at: int
) -> tuple[OutsideCopy, ...]:
    """Return the copies elsewhere: of backups those that do not follow this purge, or the last one of the files."""
    if traces.is_empty:
        sql = "SELECT coalesce(max(purged_at), 0) FROM purge WHERE file_id IN (SELECT value FROM json_each(?))"
        at = lake.ledger.count(sql, (json.dumps(traces.file_ids),))
    return find_outside_copies(lake.ledger, traces.list_whole_keys(), references, at)


def _erase_records(db: sqlite3.Connection, file_ids: Sequence[int]) -> None:
    """Delete what the ledger has of files, and what may be of them: that is not searched for their words."""
    for table in TABLES_BY_FILE:
        db.executemany(f"DELETE FROM {table} WHERE file_id = ?", [(file_id,) for file_id in file_ids])
    db.execute("DELETE FROM reject WHERE file_id IS NULL")
    db.execute("DELETE FROM schema_drift WHERE kind = 'unknown_key'")
    for table, column in _ERRORS:
        db.execute(f"UPDATE {table} SET {column} = ? WHERE {column} IS NOT NULL", (_PURGED,))
    # The ids of a verification would still name a purged file.
    patterns = [(ID_IN_JSON_GLOB.format(file_id),) for file_id in file_ids]
    db.executemany("UPDATE verification SET ids = '{}' WHERE ids GLOB ?", patterns)


def _begin(db: sqlite3.Connection, ledger: Ledger, traces: FileTraces) -> None:
    """Record that the purge goes on with the next publish: which ids, which images, and that no target is erased."""
    properties, keys = ledger.properties, traces.list_whole_keys()
    before = {key: fetched_at for key, (_, fetched_at) in traces.keys.items()}
    images = sorted({*properties.purged_pictures, *delete_images(db, before)})
    set_properties(
        db,
        purge_in_progress=sorted(traces.in_progress.union(keys)),
        purged_pictures=images or None,
        has_unpublished_rows=True,
    )
    note_unerased(db, properties)
    # Of a number that is an instance now, the catalog's rows are of another file: it is built from the documents.
    make_publish_due(db, same_rows=len(keys) == len(traces.keys))
