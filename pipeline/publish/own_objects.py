"""Ownership of objects: a place with objects of others is refused, and only objects that scanlake wrote are deleted.

An object is shown to be scanlake's by its content: its name has the hash, or it is a catalog of a run of the lake. So
no list of objects need be kept, and what a killed run left is known too.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from pipeline.errors import SettingsError
from pipeline.lake.duckdb_files import read_database
from pipeline.lake.image_names import IMAGES
from pipeline.logs import get_logger
from pipeline.publish.store_records import require_lake
from pipeline.publish.target_layout import CATALOG, PROBE_PREFIX, RECORDS
from pipeline.publish.uploads import run_side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pipeline.lake.ledger import Ledger
    from pipeline.publish.store_contract import ObjectStore, StoredObject

_HASH: Final = re.compile(
    r"ledgers/([0-9a-f]{64})\.sqlite|.*-([0-9a-f]{12})\.parquet"
    rf"|{IMAGES}/([0-9a-f]{{2}}/[0-9a-f]{{62}})\.[a-z0-9]+"
)
"""Names that have a hash: of a ledger, of a part, of an image."""
_MAX_PROBE_BYTES: Final = 100
_log = get_logger()


class OwnObjects:
    """The objects in a store that scanlake wrote."""

    def __init__(self, store: ObjectStore, ledger: Ledger) -> None:
        self._store, self._ledger = store, ledger

    def require_no_others(self, listed: Mapping[str, StoredObject], lake_id: str) -> None:
        """Raise `SettingsError` if a place without a record has an object that scanlake did not write.

        Below it, or beside its own objects, can be Iceberg tables, a mirror or a backup of the same lake, whose objects
        are not looked at.
        """
        records = [path for path in listed if path.rpartition("/")[2] in RECORDS]
        for path in records:
            require_lake(self._store, path, lake_id, "objects")
        roots = tuple(path.removesuffix(path.rpartition("/")[2]) for path in records)  # "" or with a slash at the end
        for path, item in listed.items():
            if (path == CATALOG or not path.startswith(roots)) and not self._is_own(item):
                raise SettingsError(
                    f"{self._store.base_url} has other objects, such as {item.path}.",
                    hint="Use a folder or URL of its own.",
                )

    def delete(self, items: Iterable[StoredObject]) -> int:
        """Delete the objects that scanlake wrote, and return their number. Others stay, and are named in the log."""
        items = list(items)
        are_own = run_side_by_side(self._is_own, items)
        own = [item.path for item, is_own in zip(items, are_own, strict=True) if is_own]
        self._store.delete(own)
        if others := [item.path for item, is_own in zip(items, are_own, strict=True) if not is_own]:
            _log.warning("objects.left", target=self._store.base_url, objects=len(others), first=others[0])
        return len(own)

    def _is_own(self, item: StoredObject) -> bool:
        if item.path.startswith(f"{PROBE_PREFIX}/"):
            return item.bytes < _MAX_PROBE_BYTES and self._store.read(item.path).startswith(item.path.encode())
        if item.path == CATALOG:
            return _read_run_id(self._store, item.path) in {record.run_id for record in self._ledger.snapshots()}
        if (match := _HASH.fullmatch(item.path)) is None:
            return False
        return self._store.hash(item.path).startswith(match[match.lastindex or 0].replace("/", ""))


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
