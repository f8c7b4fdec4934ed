"""Integrity of pictures: compare the files of the store with the ledger's rows."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import sha256_file
from pipeline.lake.image_files import move_damaged
from pipeline.lake.image_names import COMPLETE, IMAGES, INCOMING
from pipeline.lake.image_records import ImageRecord, ImageState, has_images, read_images_of, write_images
from pipeline.lake.integrity import IntegrityIssue, describe_os_error
from pipeline.lake.layout import translate_os_errors

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.ledger_queries import LedgerQueries

_HEX: Final = "0123456789abcdef"
_TEMPORARY: Final = ".tmp"


@dataclass(slots=True)
class ImageCheck:
    """Result of a check: pictures and bytes that were compared, findings, and files that no row names."""

    pictures: int = 0
    bytes: int = 0
    issues: list[IntegrityIssue] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)


def check_images(layout: LakeLayout, ledger: LedgerQueries, *, read_data: bool, repair: Ledger | None) -> ImageCheck:
    """Compare the store with the ledger: existence and size, with `read_data` also the hash of every picture.

    `repair` is the ledger of a lake that is open for writing: a damaged file is renamed, and the rows of pictures that
    are missing or damaged become failed, so that the next `scanlake images` fetches them.
    """
    result = ImageCheck()
    if not has_images(ledger) and not (layout.root / IMAGES).is_dir():
        return result
    pending = _list_pending(layout)
    for prefix in (first + second for first in _HEX for second in _HEX):
        _check_folder(layout, ledger, prefix, result, pending, read_data=read_data, repair=repair)
    result.unlisted += _list_strange_folders(layout)
    return result


def _check_folder(
    layout: LakeLayout,
    ledger: LedgerQueries,
    prefix: str,
    result: ImageCheck,
    pending: frozenset[str],
    *,
    read_data: bool,
    repair: Ledger | None,
) -> None:
    rows: dict[str, list[ImageRecord]] = {}
    for record in read_images_of(ledger, prefix):
        rows.setdefault(record.path or "", []).append(record)
    folder = layout.root / IMAGES / prefix
    names = {
        f"{IMAGES}/{prefix}/{name}" for name in _list_names(folder) if prefix + name.partition(".")[0] not in pending
    }
    result.unlisted += sorted(name for name in names - rows.keys() if not name.endswith(_TEMPORARY))
    for name, records in rows.items():
        result.pictures += 1
        result.bytes += records[0].bytes or 0
        problem = _find_problem(layout.root / name, records[0], read_data=read_data)
        if problem is None:
            continue
        issue = IntegrityIssue(name, problem, f"images, of {len(records):,} rows" if len(records) > 1 else "images")
        if repair is not None:
            issue = replace(issue, repaired=_queue_again(layout, repair, name, problem, records))
        result.issues.append(issue)


def _list_pending(layout: LakeLayout) -> frozenset[str]:
    """Return the hashes of complete downloads whose rows a stopped run did not commit: the next one does."""
    names = map(COMPLETE.fullmatch, _list_names(layout.root / IMAGES / INCOMING))
    return frozenset(name[4] for name in names if name is not None)


def _list_names(folder: Path) -> list[str]:
    with translate_os_errors(folder):
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _list_strange_folders(layout: LakeLayout) -> list[str]:
    known = {INCOMING, *(first + second for first in _HEX for second in _HEX)}
    return sorted(f"{IMAGES}/{name}" for name in set(_list_names(layout.root / IMAGES)) - known)


def _find_problem(path: Path, record: ImageRecord, *, read_data: bool) -> str | None:
    try:
        if path.is_symlink() or not path.is_file():
            return "not a regular file" if os.path.lexists(path) else "missing"
        size = path.stat().st_size
        if size != record.bytes:
            return f"{size:,} bytes, not {record.bytes:,}"
        if read_data and sha256_file(path) != record.sha256:
            return "not what was written (sha256 differs)"
    except OSError as error:
        return describe_os_error(error)
    return None


def _queue_again(layout: LakeLayout, ledger: Ledger, name: str, problem: str, records: list[ImageRecord]) -> str:
    """Rename a damaged file, and make its rows failed. Return what was done."""
    path = layout.root / name
    moved = ""
    if os.path.lexists(path):
        target = move_damaged(path)
        moved = f"renamed to {layout.part_name(target)}; "
    failed = [
        ImageRecord(*record.key, ImageState.FAILED, record.fetched_at, f"its file was damaged: {problem}")
        for record in records
    ]
    write_images(ledger, failed)
    return f"{moved}the next `scanlake images` fetches it again"
