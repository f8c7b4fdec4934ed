"""Differences between lake and service: what a verify counts and selects. Pure."""

from __future__ import annotations

from bisect import bisect_right
from math import ceil
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from pipeline.crawl.details import max_deletions
from pipeline.errors import ProtocolError
from pipeline.output.formatting import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_MAX_NAMED_FILES: Final = 5
_MAX_LISTED_IDS: Final = 1_000  # ids per kind in the record
_HASH_RANGE: Final = 2**64
_HASH_FACTOR: Final = 0x9E37_79B9_7F4A_7C15  # odd, so no two ids have one hash; 2^64 / golden ratio spreads them evenly


class Differences(Struct):
    """Files that differ between lake and service, by id; update times in microseconds."""

    missing: dict[int, int | None] = field(default_factory=dict)
    stale: dict[int, int | None] = field(default_factory=dict)
    deleted: dict[int, str] = field(default_factory=dict)  # the evidence by file
    unlisted: list[int] = field(default_factory=list)
    unproven: list[int] = field(default_factory=list)  # neither listed nor proven deleted
    changed_meanwhile: dict[int, int | None] = field(default_factory=dict)
    details: dict[int, int | None] = field(default_factory=dict)  # the list shows them as the lake has them
    details_checked: int = 0
    unrepaired: list[int] = field(default_factory=list)  # of the missing, stale and different ones

    def list_ids(self) -> dict[str, list[int]]:
        """Return the ids that differ: the first of each kind."""
        kinds: dict[str, Iterable[int]] = {
            "missing": self.missing,
            "stale": self.stale,
            "deleted": self.deleted,
            "unlisted": self.unlisted,
            "unproven": self.unproven,
            "changed_meanwhile": self.changed_meanwhile,
            "details_differing": self.details,
            "unrepaired": self.unrepaired,
        }
        return {kind: list(ids)[:_MAX_LISTED_IDS] for kind, ids in kinds.items()}


def has_lost_too_many(file_count: int, lost: int) -> bool:
    """Return whether a list that lacks `lost` of the lake's files is no list of this lake, until that is accepted.

    Sync and verify both ask this. All files are too many, however few they are.
    """
    return lost > max_deletions(file_count) or lost == file_count > 0


def shrunken_list_error(unseen: int, file_count: int, unlisted: Sequence[int]) -> ProtocolError:
    """Return the error for a list that has lost too much. `unlisted` are files that the service finds by id."""
    problem = f"The list lacks {unseen:,} of {pluralize(file_count, 'file')}"
    if unlisted:
        ids = ", ".join(map(str, unlisted[:_MAX_NAMED_FILES]))
        return ProtocolError(
            f"{problem}, yet the service finds some of them by id ({ids}): its list is not complete.",
            hint="Nothing was changed. Verify again later; if the list stays so, ask the service's owner.",
        )
    return ProtocolError(
        f"{problem}: a suspect number of deletions.",
        hint="Nothing was removed. If the files were deleted: `scanlake verify --accept-deletions`.",
    )


def select_rotating_share(file_ids: Iterable[int], *, position: int, share: float) -> tuple[set[int], int]:
    """Return the files of the next `share` (0 to 1), rounded up, and the position to continue from.

    Files are ranked by a hash of their ids. Calls that pass the position on select every file in turn.
    """
    ranked = sorted((file_id * _HASH_FACTOR % _HASH_RANGE, file_id) for file_id in file_ids)
    start = bisect_right(ranked, (position, _HASH_RANGE))
    count = ceil(round(share * len(ranked), 6))  # 0.07 * 100 is a little more than 7
    selected = [*ranked[start:], *ranked[:start]][:count]
    return {file_id for _, file_id in selected}, selected[-1][0] if selected else position
