"""Deletion of files that are no longer needed: orphans of killed runs, expired snapshots and parts, purged files."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import fsync_dir, is_temp_file
from pipeline.lake.layout import translate_os_errors
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger

_PART_NAME_RE: Final = re.compile(r"\d{12}-[0-9a-f]{6}(-\d{4})?\.parquet")
_SNAPSHOT_NAME_RE: Final = re.compile(r"\d{6,}\.duckdb")


def remove_orphans(layout: LakeLayout, ledger: Ledger) -> int:
    """Delete temporary files, and parts and snapshots without a ledger entry, which killed runs left.

    The lock makes this safe: no other process writes parts. Only a snapshot without a ledger entry names a part without
    one: after a restore of an older ledger. Returns the number of deleted files.
    """
    names, next_snapshot = ledger.part_names(), ledger.next_snapshot()
    removed = 0
    with translate_os_errors(layout.root):
        for number, path in list_snapshots(layout):
            if number >= next_snapshot:
                path.unlink(missing_ok=True)
                removed += 1
        for path in _list_files(layout, "parts/*/*", "raw/*", "snapshots/*", ".*.tmp*"):
            is_orphan = _PART_NAME_RE.fullmatch(path.name) and layout.part_name(path) not in names
            if is_orphan or is_temp_file(path):
                path.unlink(missing_ok=True)
                removed += 1
        shutil.rmtree(layout.spill_dir, ignore_errors=True)
    return removed


def _list_files(layout: LakeLayout, *patterns: str) -> list[Path]:
    return [path for pattern in patterns for path in layout.root.glob(pattern)]


def list_part_files(layout: LakeLayout) -> list[Path]:
    """Return the files whose names are those of parts."""
    return [path for path in _list_files(layout, "parts/*/*", "raw/*") if _PART_NAME_RE.fullmatch(path.name)]


def list_snapshots(layout: LakeLayout) -> list[tuple[int, Path]]:
    """Return the kept snapshots with their numbers, oldest first."""
    files = [path for path in layout.root.glob("snapshots/*.duckdb") if _SNAPSHOT_NAME_RE.fullmatch(path.name)]
    return sorted((int(path.stem), path) for path in files)


def expire_snapshots(layout: LakeLayout, ledger: Ledger, *, keep: int, grace: float, now: float) -> int:
    """Delete all but the newest `keep` snapshots, and the retired parts that no kept snapshot names.

    Files younger than `grace` seconds stay, because readers may have opened a catalog that names them. `now` is in
    seconds since 1970. Returns the number of deleted files.
    """
    remaining = list_snapshots(layout)
    removed = 0
    with translate_os_errors(layout.root):
        for number, path in remaining[:-keep]:
            if path.stat().st_mtime < now - grace:
                path.unlink(missing_ok=True)
                remaining.remove((number, path))
                removed += 1
        if removed:
            fsync_dir(layout.root / "snapshots")  # a snapshot must not come back without its parts
        oldest = remaining[0][0] if remaining else 0
        retired = [part for part in ledger.retired_parts() if part.last_snapshot < oldest]
        expired = [part.name for part in retired if part.since < (now - grace) * SECOND]
        for name in expired:
            layout.part_path(name).unlink(missing_ok=True)
        ledger.delete_retired(expired)
    return removed + len(expired)


def finish_purge(layout: LakeLayout, ledger: Ledger, snapshot: int) -> None:
    """Delete all that still contains purged files. Readers see `snapshot`, which has none of them."""
    retired = [part.name for part in ledger.retired_parts()]
    with translate_os_errors(layout.root):
        for number, path in list_snapshots(layout):
            if number != snapshot:
                path.unlink(missing_ok=True)
        fsync_dir(layout.root / "snapshots")  # before the parts that they name
        for name in retired:
            layout.part_path(name).unlink(missing_ok=True)
        for path in layout.root.glob(f"{layout.ledger.name}.damaged-*"):
            path.unlink(missing_ok=True)
        for folder in {layout.part_path(name).parent for name in retired}:
            fsync_dir(folder)
    ledger.delete_retired(retired)
    ledger.vacuum_securely()
    ledger.set_properties(purge_in_progress=None)
