"""Housekeeping, under the lake's lock: what killed runs left behind, and snapshots past their time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pipeline.lake.files import is_aside, storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.lake.files import Layout
    from pipeline.lake.ledger import Ledger

_OUR_PART: Final = re.compile(r"\d{12}-[0-9a-f]{6}\.parquet")


def sweep(layout: Layout, ledger: Ledger) -> int:
    """Remove what killed runs left: writes aside, and parts that bear our names and no ledger names.

    Safe under the lock alone: nobody else writes parts, and what the ledger does not name no catalog shows.
    Returns the number of files removed.
    """
    named = {part.name for part in ledger.parts()}
    removed = 0
    with storage(layout.root):
        for path in _written(layout):
            orphan = _OUR_PART.fullmatch(path.name) and path.relative_to(layout.root).as_posix() not in named
            if orphan or is_aside(path):
                path.unlink(missing_ok=True)
                removed += 1
    return removed


def _written(layout: Layout) -> Iterator[Path]:
    yield from layout.root.glob("parts/*/*")
    yield from layout.root.glob("raw/*")
    yield from layout.root.glob("snapshots/*")
    yield from layout.root.glob("*.aside")


def thin_snapshots(layout: Layout, *, keep: int, older_than: float) -> int:
    """Remove snapshot files beyond the newest `keep` whose modification time is before `older_than` (epoch s)."""
    found = sorted(layout.root.glob("snapshots/[0-9][0-9][0-9][0-9][0-9][0-9].duckdb"))
    removed = 0
    with storage(layout.root):
        for path in found[:-keep] if keep else found:
            if path.stat().st_mtime < older_than:
                path.unlink(missing_ok=True)
                removed += 1
    return removed
