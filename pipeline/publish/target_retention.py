"""Deletion of objects that no published snapshot needs: expired snapshots, their parts, orphans, purged files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.errors import PublishError
from pipeline.lake.duckdb_files import open_read_only
from pipeline.lake.kept_snapshots import SnapshotTime, select_kept
from pipeline.lake.physical_tables import read_parts
from pipeline.publish.target_layout import (
    PROBE_PREFIX,
    is_image_table_path,
    is_part_path,
    is_raw_path,
    is_snapshot_path,
    remove_hash,
    to_target_path,
    to_unhashed_path,
)
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pipeline.lake.kept_snapshots import RetentionRules
    from pipeline.lake.lake import Lake
    from pipeline.publish.latest import LatestRecord, PublishedSnapshot
    from pipeline.publish.store_contract import ObjectStore, StoredObject

_CLOCK_SKEW_SECONDS: Final = 600  # between the store and this machine


def select_remaining(
    snapshots: Iterable[PublishedSnapshot],
    current: PublishedSnapshot,
    rules: RetentionRules,
    *,
    purged_at: int | None,
) -> tuple[PublishedSnapshot, ...]:
    """Return the snapshots that stay beside the current one, oldest first. Pure; instants are microseconds.

    They are those that the rules of the lake keep, by the time when they came to the target. None that was published
    before a purge stays.
    """
    earlier = sorted((item for item in snapshots if item.snapshot != current.snapshot), key=lambda item: item.snapshot)
    earlier = [item for item in earlier if purged_at is None or item.published_at > purged_at]
    times = [SnapshotTime(item.snapshot, item.published_at) for item in (*earlier, current)]
    reasons = select_kept(times, rules)
    return tuple(item for item in earlier if item.snapshot in reasons)


def sweep_target(
    lake: Lake,
    store: ObjectStore,
    record: LatestRecord,
    listed: Iterable[StoredObject],
    *,
    grace_seconds: float,
    now_us: int,
    purged_at: int | None,
    named: Collection[str],
    documents: bool,
    unnamed_images: Iterable[StoredObject],
) -> int:
    """Delete the `listed` objects that nothing needs any more, and the unnamed images; return their number.

    A part stays while the ledger (also as retired), a kept snapshot, or `named` has it. Others go when they are older
    than the grace time, or than the last purge: then at once.
    """
    now = now_us / SECOND
    since = max(now - grace_seconds, 0 if purged_at is None else purged_at / SECOND + _CLOCK_SKEW_SECONDS)
    old = [item for item in listed if item.modified_at.timestamp() < since]
    images = [item.path for item in unnamed_images if item.modified_at.timestamp() < since]
    snapshots = {item.file for item in record.snapshots}
    # At once: the record that readers start from no longer names them, and their grace time was in the record.
    expired = [item.path for item in old if is_snapshot_path(item.path) and item.path not in snapshots]
    expired += [item.path for item in old if item.path.startswith(f"{PROBE_PREFIX}/")]
    expired += [item.path for item in old if is_image_table_path(item.path) and item.path not in named]
    in_lake = {to_unhashed_path(name) for name in lake.ledger.part_names()}

    def is_needed(path: str) -> bool:
        if is_raw_path(path) and not documents:
            return False
        return path in named or remove_hash(path) in in_lake

    unnamed = [item.path for item in old if is_part_path(item.path) and not is_needed(item.path)]
    if unnamed:
        unnamed = sorted(set(unnamed) - _read_named_parts(store, record))
    store.delete(expired)  # a snapshot never outlives its parts
    store.delete(unnamed)
    store.delete(images)
    return len(expired) + len(unnamed) + len(images)


def _read_named_parts(store: ObjectStore, record: LatestRecord) -> set[str]:
    """Return the paths of the parts that the snapshots on the target name. Each is downloaded."""
    named = set()
    with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
        for item in record.snapshots:
            file = Path(folder, f"{item.snapshot}.duckdb")
            store.download(item.file, file)
            try:
                with open_read_only(file) as db:
                    paths = {to_target_path(part.name, part.sha256) for part in read_parts(db)}
            except duckdb.Error as error:
                raise PublishError(
                    f"{store.url(item.file)} cannot be read; nothing was deleted.",
                    hint="Run `scanlake check --published`.",
                ) from error
            file.unlink()
            named |= {path for path in paths if item.documents or not is_raw_path(path)}
    return named
