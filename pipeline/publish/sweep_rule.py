"""What a sweep of a target spares, whatever it looks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from pipeline.publish.target_layout import DOCUMENTS_PREFIX, remove_hash, to_unhashed_path
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from pipeline.lake.lake import Lake
    from pipeline.publish.store_contract import StoredObject

_CLOCK_SKEW_SECONDS: Final = 600  # between the store and this machine


class SweepRule(Struct, frozen=True):
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
        needed = frozenset(path for path in parts if documents or not path.startswith(DOCUMENTS_PREFIX))
        return cls(max(at / SECOND - grace_seconds, purge_end), needed)

    def permits(self, stored: StoredObject, target_path: str) -> bool:
        """Return whether a file may go if nothing names it. `target_path` is its path on a target."""
        return stored.modified_at.timestamp() < self.before and remove_hash(target_path) not in self.lake_parts
