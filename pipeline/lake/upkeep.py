"""Housekeeping, under the lake's lock: what killed runs left behind, and what is past its time of grace."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Final

from pipeline.lake.files import is_aside, storage, sync_folder
from schemas.instants import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pipeline.lake.files import Layout
    from pipeline.lake.ledger import Ledger

_OUR_PART: Final = re.compile(r"\d{12}-[0-9a-f]{6}(-\d{4})?\.parquet")
_OUR_SNAPSHOT: Final = re.compile(r"\d{6,}\.duckdb")


def sweep(layout: Layout, ledger: Ledger) -> int:
    """Remove what killed runs left: writes aside, and parts that bear our names and no ledger names.

    Safe under the lock alone: nobody else writes parts, and what the ledger does not name no catalog shows.
    Returns the number of files removed.
    """
    named = {part.name for part in ledger.parts()} | {name for name, _, _ in ledger.retired()}
    removed = 0
    with storage(layout.root):
        for path in _written(layout):
            orphan = _OUR_PART.fullmatch(path.name) and path.relative_to(layout.root).as_posix() not in named
            if orphan or is_aside(path):
                path.unlink(missing_ok=True)
                removed += 1
        shutil.rmtree(layout.root / "spill", ignore_errors=True)
    return removed


def _written(layout: Layout) -> Iterator[Path]:
    yield from layout.root.glob("parts/*/*")
    yield from layout.root.glob("raw/*")
    yield from layout.root.glob("snapshots/*")
    yield from layout.root.glob("*.aside*")


def our_parts(layout: Layout) -> list[Path]:
    """The files that bear the names of parts."""
    found = [*layout.root.glob("parts/*/*"), *layout.root.glob("raw/*")]
    return [path for path in found if _OUR_PART.fullmatch(path.name)]


def snapshots(layout: Layout) -> list[tuple[int, Path]]:
    """The kept snapshots, oldest first, with their numbers."""
    found = [path for path in layout.root.glob("snapshots/*.duckdb") if _OUR_SNAPSHOT.fullmatch(path.name)]
    return sorted((int(path.stem), path) for path in found)


def let_go(layout: Layout, ledger: Ledger, *, keep: int, grace: float, now: float) -> int:
    """Remove snapshots beyond the newest `keep`, and retired parts that no kept snapshot shows.

    Neither goes before its time of grace: readers may hold a catalog that names it. `grace` in seconds, `now`
    in seconds since 1970. Returns the number of files removed.
    """
    kept = snapshots(layout)
    removed = 0
    with storage(layout.root):
        for number, path in kept[:-keep]:
            if path.stat().st_mtime < now - grace:
                path.unlink(missing_ok=True)
                kept.remove((number, path))
                removed += 1
        if removed:
            sync_folder(layout.root / "snapshots")  # a snapshot must not come back without its parts
        oldest = kept[0][0] if kept else 0
        past = [
            name
            for name, retired_at, last_snapshot in ledger.retired()
            if last_snapshot < oldest and retired_at < (now - grace) * SECOND
        ]
        for name in past:
            layout.part(name).unlink(missing_ok=True)
        ledger.forget_retired(past)
    return removed + len(past)
