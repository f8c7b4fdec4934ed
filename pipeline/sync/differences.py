"""Differences between lake and service: what a verify counts, selects and plans. Pure."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from math import ceil
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from pipeline.crawl.details import max_deletions
from pipeline.crawl.windows import ALL_TIME, Window
from pipeline.errors import ProtocolError
from pipeline.formatting import pluralize
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pipeline.crawl.models import RefetchRequest

_MAX_NAMED_FILES: Final = 5
_MAX_LISTED_IDS: Final = 1_000  # ids per kind in the record
_MERGE_GAP_SECONDS: Final = 3  # update times at most so far apart are read again in one window
_HASH_RANGE: Final = 2**64
_HASH_FACTOR: Final = 0x9E37_79B9_7F4A_7C15  # odd, so no two ids have one hash; 2^64 / golden ratio spreads them evenly
_SEEN_UNTIMED: Final = 2


class Differences(Struct):
    """Files that differ between lake and service, by id; update times in microseconds."""

    missing: dict[int, int | None] = field(default_factory=dict)
    stale: dict[int, int | None] = field(default_factory=dict)
    deleted: dict[int, str] = field(default_factory=dict)  # the evidence by file
    unlisted: list[int] = field(default_factory=list)
    unproven: list[int] = field(default_factory=list)  # neither listed nor proven deleted
    changed_meanwhile: dict[int, int | None] = field(default_factory=dict)
    details: list[RefetchRequest] = field(default_factory=list)
    details_checked: int = 0

    def ids_as_json(self) -> str:
        """Return the ids that differ as JSON: the first of each kind."""
        kinds: dict[str, Iterable[int]] = {
            "missing": self.missing,
            "stale": self.stale,
            "deleted": self.deleted,
            "unlisted": self.unlisted,
            "unproven": self.unproven,
            "changed_meanwhile": self.changed_meanwhile,
            "details_differing": [request.file_id for request in self.details],
        }
        return json.dumps({kind: list(ids)[:_MAX_LISTED_IDS] for kind, ids in kinds.items()})


class SeenFiles:
    """The files of the lake, and which of them the list has shown, with an update time or without. Nine bytes each."""

    def __init__(self, file_ids: Iterable[int]) -> None:
        """`file_ids` are the files of the lake, sorted."""
        self._ids = array("q", file_ids)
        self._is_seen = bytearray(len(self._ids))
        self.seen_count = 0

    def __len__(self) -> int:
        return len(self._ids)

    def mark_seen(self, file_id: int, *, is_untimed: bool = False) -> None:
        """Mark a file that the list shows, perhaps without an update time."""
        index = bisect_left(self._ids, file_id)
        if index < len(self._ids) and self._ids[index] == file_id:
            self.seen_count += not self._is_seen[index]
            self._is_seen[index] = max(self._is_seen[index], _SEEN_UNTIMED if is_untimed else 1)

    def list_untimed(self) -> list[int]:
        """Return the files that the list has shown without an update time."""
        return [file_id for file_id, mark in zip(self._ids, self._is_seen, strict=True) if mark == _SEEN_UNTIMED]

    def list_unseen(self) -> list[int]:
        """Return the files that the list has not shown."""
        return [file_id for file_id, is_seen in zip(self._ids, self._is_seen, strict=True) if not is_seen]


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


def plan_repair_windows(updates: Iterable[int | None], *, max_windows: int) -> list[Window]:
    """Return windows that show the files with these update times (microseconds).

    That is all time for a file without an update time, and where more than `max_windows` would be read.
    """
    seconds: set[int] = set()
    for update in updates:
        if update is None:
            return [ALL_TIME]
        seconds.add(update // SECOND)
    spans: list[list[int]] = []
    for second in sorted(seconds):
        if spans and second - spans[-1][1] <= _MERGE_GAP_SECONDS:
            spans[-1][1] = second + 1
        else:
            spans.append([second, second + 1])
    return [Window(start, end) for start, end in spans] if len(spans) <= max_windows else [ALL_TIME]
