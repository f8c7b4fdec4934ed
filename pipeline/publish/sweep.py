"""Ownership of objects: a place with objects of others is refused, and a sweep deletes what scanlake wrote alone.

An object is shown to be scanlake's by its content: its name has the hash, or it is a catalog of a run of the lake. So
no list of objects need be kept, and what a killed run left is known too.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import duckdb
from msgspec import Struct

from pipeline.errors import SettingsError
from pipeline.lake.duckdb_files import read_database
from pipeline.lake.image_names import IMAGES
from pipeline.logs import get_logger
from pipeline.publish.object_store import PROBE_PREFIX, run_side_by_side
from pipeline.publish.target import CATALOG, RECORDS, remove_hash, require_lake, to_unhashed_path
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger import Ledger
    from pipeline.publish.object_store import ObjectStore, StoredObject

_HASH: Final = re.compile(
    r"ledgers/([0-9a-f]{64})\.sqlite|.*-([0-9a-f]{12})\.parquet"
    rf"|{IMAGES}/([0-9a-f]{{2}}/[0-9a-f]{{62}})\.[a-z0-9]+"
)
"""Names that have a hash: of a ledger, of a part, of an image."""
_MAX_PROBE_BYTES: Final = 100
_CLOCK_SKEW_SECONDS: Final = 600  # between the store and this machine
_log = get_logger()


def require_own_objects(store: ObjectStore, ledger: Ledger, listed: Mapping[str, StoredObject], lake_id: str) -> None:
    """Raise `SettingsError` if a place without a record has an object that scanlake did not write.

    Below it, or beside its own objects, can be Iceberg tables, a mirror or a backup of the same lake, whose objects
    are not looked at.
    """
    records = [path for path in listed if path.rpartition("/")[2] in RECORDS]
    for path in records:
        require_lake(store, path, lake_id, "objects")
    roots = tuple(path.removesuffix(path.rpartition("/")[2]) for path in records)  # "" or with a slash at the end
    for path, item in listed.items():
        if (path == CATALOG or not path.startswith(roots)) and not _is_own(store, ledger, item):
            raise SettingsError(
                f"{store.base_url} has other objects, such as {item.path}.", hint="Use a folder or URL of its own."
            )


def delete_own_objects(store: ObjectStore, ledger: Ledger, items: Sequence[StoredObject]) -> int:
    """Delete the objects that scanlake wrote, and return their number. Others stay, and are named in the log."""
    are_own = run_side_by_side(lambda item: _is_own(store, ledger, item), items)
    own = [item.path for item, is_own in zip(items, are_own, strict=True) if is_own]
    store.delete(own)
    if others := [item.path for item, is_own in zip(items, are_own, strict=True) if not is_own]:
        _log.warning("objects.left", target=store.base_url, objects=len(others), first=others[0])
    return len(own)


def _is_own(store: ObjectStore, ledger: Ledger, item: StoredObject) -> bool:
    if item.path.startswith(f"{PROBE_PREFIX}/"):
        return item.bytes < _MAX_PROBE_BYTES and store.read(item.path).startswith(item.path.encode())
    if item.path == CATALOG:
        return _read_run_id(store, item.path) in {record.run_id for record in ledger.snapshots()}
    if (match := _HASH.fullmatch(item.path)) is None:
        return False
    return store.hash(item.path).startswith(match[match.lastindex or 0].replace("/", ""))


def _read_run_id(store: ObjectStore, path: str) -> str | None:
    """Return the run whose snapshot a catalog in a store shows; None if it is no catalog of scanlake."""
    with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
        file = Path(folder, "catalog.duckdb")
        store.download(path, file)
        try:
            with read_database(file) as db:
                rows = db.execute(
                    "SELECT run_id FROM meta.snapshots WHERE snapshot = (SELECT snapshot FROM meta._freshness)"
                ).fetchall()
        except duckdb.Error:
            return None
    return str(rows[0][0]) if rows else None


class SweepRule(Struct, frozen=True):
    """What every sweep spares: files written from `before` on, in seconds since 1970, and the parts of the lake.

    Younger files may belong to a publish that is running, or to a reader; after a purge no file from before it stays.
    `lake_parts` are paths on a target, without hashes, also of retired parts.
    """

    before: float
    lake_parts: frozenset[str]

    @classmethod
    def from_lake(cls, lake: Lake, *, at: int, grace_seconds: float) -> Self:
        """Return the rule at `at` (microseconds)."""
        purged_at = lake.ledger.last_purge_at()
        purge_end = 0 if purged_at is None else purged_at / SECOND + _CLOCK_SKEW_SECONDS
        parts = frozenset(map(to_unhashed_path, lake.ledger.part_names()))
        return cls(max(at / SECOND - grace_seconds, purge_end), parts)

    def permits(self, stored: StoredObject, target_path: str) -> bool:
        """Return whether a file may go if nothing names it. `target_path` is its path on a target."""
        return stored.modified_at.timestamp() < self.before and remove_hash(target_path) not in self.lake_parts
