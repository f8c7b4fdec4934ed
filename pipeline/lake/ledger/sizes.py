"""Sizes of a lake by what it has, and what a year will add."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.errors import ScanlakeError
from pipeline.lake.ledger.readonly import open_ledger_readonly
from pipeline.lake.storage.layout import IMAGES, LakeLayout, list_snapshots
from pipeline.output.formatting import format_bytes
from schemas.timestamps import DAY, now_us, to_datetime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.lake.ledger.queries import LedgerQueries

CONTENTS: Final = ("documents", "tables", "catalog", "snapshots", IMAGES, "ledger", "other")
_YEAR_DAYS: Final = 365
_MIN_DAYS: Final = 7
_PERIOD_DAYS: Final = 90
_EMPTY_CATALOG_BYTES: Final = 1_600_000
_FIRST_STATE: Final = (
    "SELECT published_at, files FROM snapshot WHERE complete AND state = 'published'"
    " ORDER BY published_at > ?1, abs(published_at - ?1) LIMIT 1"
)
_DOCUMENTS: Final = "SELECT coalesce(sum(row_count), 0) FROM part WHERE table_name = 'documents'"
_VERSIONS: Final = "SELECT coalesce(sum(files_stored), 0) FROM run WHERE started_at > ?"
_IMAGE_BYTES: Final = "SELECT coalesce(sum(bytes), 0) FROM (SELECT DISTINCT path, bytes FROM image WHERE path NOT NULL)"


class LakeSize(Struct, frozen=True):
    """Bytes of a lake, of all and by what has them. The newest snapshot is the catalog, under a second name.

    `year_bytes` is what a year adds, if files and versions come as they did since `since`; null before a week.
    """

    total: int
    contents: Mapping[str, int]
    year_bytes: int | None = None
    since: datetime | None = None

    @property
    def details(self) -> str:
        """What has the bytes, and what a year adds, in words."""
        texts = [f"{name} {format_bytes(size)}" for name, size in self.contents.items() if size]
        if self.year_bytes is not None and self.since is not None:
            texts.append(f"a year adds about {format_bytes(self.year_bytes)}, as since {self.since:%Y-%m-%d}")
        return ", ".join(texts)


def read_size(lake: Path) -> LakeSize | None:
    """Return the sizes of a lake that may be in use; None if its ledger cannot be read."""
    layout = LakeLayout(lake.absolute())
    with suppress(ScanlakeError), open_ledger_readonly(layout) as ledger:
        return measure_lake(layout, ledger)
    return None


def measure_lake(layout: LakeLayout, ledger: LedgerQueries) -> LakeSize:
    """Return the sizes of the files, each once. Images are as recorded, because they can be millions."""
    sizes: dict[tuple[int, int], tuple[str, int]] = {}
    for folder, folders, names in os.walk(layout.root):
        top = Path(folder).relative_to(layout.root).parts[:1]
        if not top and IMAGES in folders:
            folders.remove(IMAGES)
        for name in names:
            content = top[0] if top else name.partition(".")[0]  # catalog.duckdb and ledger.sqlite-wal
            with suppress(OSError):  # it vanished during the count
                status = Path(folder, name).lstat()
                sizes.setdefault((status.st_dev, status.st_ino), (content, status.st_size))
    contents: dict[str, int] = defaultdict(int, dict.fromkeys(CONTENTS, 0))
    for content, size in sizes.values():
        contents[content if content in CONTENTS else "other"] += size
    contents[IMAGES] = ledger.count(_IMAGE_BYTES)
    total, now = sum(contents.values()), now_us()
    first = next(iter(ledger.query(_FIRST_STATE, (now - _PERIOD_DAYS * DAY,))), None)
    if first is None or (days := (now - first["published_at"]) / DAY) < _MIN_DAYS:
        return LakeSize(total, contents)
    versions = ledger.count(_VERSIONS, (first["published_at"],))
    rows = ledger.count(_DOCUMENTS)
    files, documents = ledger.count_files(), contents["documents"]
    others = max(0, total - documents - len(list_snapshots(layout)) * _EMPTY_CATALOG_BYTES)
    added = versions * documents / max(rows, 1) + max(0, files - first["files"]) * others / max(files, 1)
    return LakeSize(total, contents, round(added * _YEAR_DAYS / days), to_datetime(first["published_at"]))
