"""Deletion of files that are no longer needed: orphans of killed runs, expired snapshots and parts, purged files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.lake.ledger.images import find_unused
from pipeline.lake.storage.atomic_files import fsync_dir, is_damaged_copy, is_temp_file
from pipeline.lake.storage.layout import (
    COMPLETE,
    IMAGES,
    INCOMING,
    is_image_path,
    list_files,
    list_snapshots,
    name_image,
    translate_os_errors,
)
from pipeline.lake.storage.parts import is_own_part
from schemas.timestamps import to_datetime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.storage.layout import LakeLayout
    from pipeline.settings.settings import Settings

_PARTS: Final = ("tables/*/*", "documents/*")


def remove_orphans(layout: LakeLayout, ledger: Ledger) -> None:
    """Delete temporary files, parts without a ledger entry, and snapshots that were not published: of killed runs.

    Also parts that others have replaced. The lock makes this safe: no other process writes parts.
    """
    next_snapshot = ledger.next_snapshot()
    unpublished = {row[0] for row in ledger.query("SELECT snapshot FROM snapshot WHERE state <> 'published'")}
    with translate_os_errors(layout.root):
        for number, path in list_snapshots(layout):
            if number >= next_snapshot or number in unpublished:
                path.unlink(missing_ok=True)
        for path in _find_orphans(layout, ledger):
            path.unlink(missing_ok=True)
        for path in list_files(layout, *_PARTS, "snapshots/*", f"{IMAGES}/{INCOMING}/*", ".*.tmp*"):
            if is_temp_file(path):
                path.unlink(missing_ok=True)
        layout.remove_spill()


def _find_orphans(layout: LakeLayout, ledger: Ledger) -> Iterator[Path]:
    """Yield the parts without a ledger entry."""
    names = ledger.part_names()
    for path in list_files(layout, *_PARTS):
        if layout.part_name(path) not in names and is_own_part(path):
            yield path


def expire_snapshots(layout: LakeLayout, ledger: Ledger, settings: Settings) -> None:
    """Delete the snapshots that the settings do not keep."""
    paths = dict(list_snapshots(layout))
    published = [record for record in ledger.snapshots() if record.snapshot in paths]
    reasons = select_kept(((record.snapshot, record.published_at) for record in published), settings)
    _delete(layout, [paths[record.snapshot] for record in published if record.snapshot not in reasons])


def _delete(layout: LakeLayout, paths: Iterable[Path]) -> None:
    """Delete files durably."""
    folders = set()
    with translate_os_errors(layout.root):
        for path in paths:
            path.unlink(missing_ok=True)
            folders.add(path.parent)
        for folder in folders:
            fsync_dir(folder)


def finish_purge(layout: LakeLayout, ledger: Ledger, snapshot: int) -> None:
    """Delete all that still contains purged files. Readers see `snapshot`, which has none of them."""
    _delete(layout, (path for number, path in list_snapshots(layout) if number != snapshot))
    _delete(layout, _find_orphans(layout, ledger))
    with translate_os_errors(layout.root):
        fsync_dir(layout.root / "snapshots")  # a purge that was killed may have deleted them all
        _delete_images(layout, ledger)
        for path in list_files(layout, f"{layout.ledger.name}.damaged-*", "documents/*.damaged-*"):
            if is_damaged_copy(path):
                path.unlink(missing_ok=True)
        fsync_dir(layout.root)
    ledger.vacuum_securely()
    ledger.set_properties(purge_in_progress=None, purged_pictures=None)


def _delete_images(layout: LakeLayout, ledger: Ledger) -> None:
    """Delete the images of purged files that no other row has, damaged copies, and downloads that were not stored.

    No row names the file of a damaged copy: those of all files go. No folder of images is a link here.
    """
    properties = ledger.properties
    complete = ((path, COMPLETE.fullmatch(path.name)) for path in list_files(layout, f"{IMAGES}/{INCOMING}/*"))
    purged = set(properties.purge_in_progress or ())
    downloads = {path: parts[4] for path, parts in complete if parts is not None and int(parts[1]) in purged}
    # A run that was killed before it wrote the row of an image has linked its final name already.
    linked = list_files(layout, *(name_image(sha256, "*") for sha256 in downloads.values()))
    # A ledger from elsewhere may name files of others.
    images = filter(is_image_path, [*properties.purged_pictures, *map(layout.part_name, linked)])
    paths = [layout.root / name for name in find_unused(ledger, images)]
    paths += filter(is_damaged_copy, list_files(layout, f"{IMAGES}/[0-9a-f][0-9a-f]/*.damaged-*"))
    paths += downloads  # last: after a kill they show which final names are due
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in paths if path.parent.is_dir()}:
        fsync_dir(folder)


# Snapshots that stay

_PERIODS: Final[Mapping[str, Callable[[datetime], tuple[int, ...]]]] = {
    "keep_daily": lambda at: (at.year, at.month, at.day),
    "keep_weekly": lambda at: at.isocalendar()[:2],
    "keep_monthly": lambda at: (at.year, at.month),
}
"""Calendar rules by setting: the newest snapshot of a period stays. Periods without one do not count."""


def select_kept(snapshots: Iterable[tuple[int, int]], settings: Settings) -> dict[int, tuple[str, ...]]:
    """Return the numbers of the snapshots that stay, oldest first, and why: current, newest, daily, weekly, monthly.

    `snapshots` are numbers with the instants of their first publish, in microseconds since 1970.
    """
    ordered = sorted(snapshots)
    reasons: dict[int, list[str]] = {number: [] for number, _ in ordered}
    for why, count in (("current", 1), ("newest", settings.keep_snapshots)):
        for number, _ in ordered[-count:]:
            reasons[number].append(why)
    for setting, to_period in _PERIODS.items():
        newest_of = {to_period(to_datetime(at)): number for number, at in ordered}
        for period in sorted(newest_of)[max(0, len(newest_of) - getattr(settings, setting)) :]:
            reasons[newest_of[period]].append(setting.removeprefix("keep_"))
    return {number: tuple(why) for number, why in reasons.items() if why}
