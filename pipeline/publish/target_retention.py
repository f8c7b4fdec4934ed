"""Deletion of objects that no published snapshot needs: expired snapshots, their parts, orphans, purged files."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import duckdb

from pipeline.errors import PublishError
from pipeline.lake.duckdb_files import open_read_only
from pipeline.lake.kept_snapshots import SnapshotTime, select_kept
from pipeline.lake.physical_tables import read_parts
from pipeline.publish.target_layout import (
    is_image_table_path,
    is_part_path,
    is_probe_path,
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
    from pipeline.publish.own_objects import OwnObjects
    from pipeline.publish.store_contract import ObjectStore, StoredObject

_CLOCK_SKEW_SECONDS: Final = 600  # between the store and this machine


@dataclass(frozen=True, slots=True)
class SweepRule:
    """What every sweep spares: files written from `before` on, in seconds since 1970, and the parts of the lake.

    Younger files may belong to a publish that is running, or to a reader; after a purge no file from before it stays.
    `lake_parts` are paths on a target, without hashes, also of retired parts.
    """

    before: float
    lake_parts: frozenset[str]

    @classmethod
    def from_lake(cls, lake: Lake, *, at: int, grace_seconds: float, documents: bool = True) -> Self:
        """Return the rule at `at` (microseconds). Without `documents`, the lake needs none on a target."""
        purged_at = lake.ledger.last_purge_at()
        purge_end = 0 if purged_at is None else purged_at / SECOND + _CLOCK_SKEW_SECONDS
        parts = {to_unhashed_path(name) for name in lake.ledger.part_names()}
        needed = frozenset(path for path in parts if documents or not is_raw_path(path))
        return cls(max(at / SECOND - grace_seconds, purge_end), needed)

    def permits(self, stored: StoredObject, target_path: str) -> bool:
        """Return whether a file may go if nothing names it. `target_path` is its path on a target."""
        return stored.modified_at.timestamp() < self.before and remove_hash(target_path) not in self.lake_parts


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
    store: ObjectStore,
    own: OwnObjects,
    record: LatestRecord,
    listed: Iterable[StoredObject],
    rule: SweepRule,
    *,
    named: Collection[str],
    unnamed_images: Iterable[StoredObject],
) -> int:
    """Delete the `listed` objects of a mirror that nothing needs any more, and the unnamed images; return their number.

    A part stays while the lake, a kept snapshot, or `named` has it. Objects that are not `own` stay.
    """
    old = {item.path: item for item in listed if rule.permits(item, item.path)}
    images = [item for item in unnamed_images if rule.permits(item, item.path)]
    snapshots = {item.file for item in record.snapshots}
    # At once: the record that readers start from no longer names them, and their grace time was in the record.
    expired = [path for path in old if is_snapshot_path(path) and path not in snapshots]
    expired += [path for path in old if is_probe_path(path) or (is_image_table_path(path) and path not in named)]
    unnamed = {path for path in old if is_part_path(path)}.difference(named)
    if unnamed:
        unnamed -= read_named_parts(store, record)
    # In this order: a snapshot never outlives its parts.
    groups = [[old[path] for path in paths] for paths in (expired, sorted(unnamed))]
    return sum(map(own.delete, [*groups, images]))


def read_named_parts(store: ObjectStore, record: LatestRecord) -> set[str]:
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
