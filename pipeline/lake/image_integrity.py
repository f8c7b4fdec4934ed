"""Integrity of pictures: compare the files of the store with the ledger's rows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from pipeline.atomic_files import sha256_file
from pipeline.findings import damage
from pipeline.lake.file_names import COMPLETE, IMAGES, INCOMING, is_image_path
from pipeline.lake.image_records import ImageRecord, ImageState, has_images, read_images_of, write_images
from pipeline.lake.image_store import move_damaged
from pipeline.lake.integrity import describe_os_error
from pipeline.lake.layout import translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pipeline.findings import Finding
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.ledger_queries import LedgerQueries

_HEX: Final = "0123456789abcdef"
_TEMPORARY: Final = ".tmp"
_REPAIR: Final = "renamed if it is there; the next `scanlake images` fetches it again"


class DamagedPicture(Struct, frozen=True):
    """A picture that is missing or has another content than recorded, with the rows that name it."""

    finding: Finding
    records: Sequence[ImageRecord]


class ImageCheck(Struct):
    """Result of a check: pictures and bytes that were compared, damage, and files that no row names."""

    pictures: int = 0
    bytes: int = 0
    damaged: list[DamagedPicture] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)


def check_images(layout: LakeLayout, ledger: LedgerQueries, *, read_data: bool) -> ImageCheck:
    """Compare the store with the ledger: existence and size, with `read_data` also the hash of every picture."""
    result = ImageCheck()
    if not has_images(ledger) and not (layout.root / IMAGES).is_dir():
        return result
    pending = _list_pending(layout)
    for prefix in (first + second for first in _HEX for second in _HEX):
        rows: dict[str, list[ImageRecord]] = {}
        for record in read_images_of(ledger, prefix):
            rows.setdefault(record.path or "", []).append(record)
        names = _list_names(layout.root / IMAGES / prefix)
        paths = {f"{IMAGES}/{prefix}/{name}" for name in names if prefix + name.partition(".")[0] not in pending}
        result.unlisted += sorted(path for path in paths - rows.keys() if not path.endswith(_TEMPORARY))
        for path, records in rows.items():
            result.pictures += 1
            result.bytes += records[0].bytes or 0
            problem = _find_problem(layout, path, records[0], read_data=read_data)
            if problem is not None:
                finding = damage(path, problem, _REPAIR, {record.file_id for record in records})
                result.damaged.append(DamagedPicture(finding, records))
    result.unlisted += _list_strange_folders(layout)
    return result


def queue_images_again(layout: LakeLayout, ledger: Ledger, pictures: Iterable[DamagedPicture]) -> None:
    """Rename damaged pictures, and make their rows failed: the next `scanlake images` fetches them again."""
    for picture in pictures:
        path = layout.root / picture.finding.subject
        if is_image_path(picture.finding.subject) and os.path.lexists(path):
            move_damaged(path)
        reason = f"its file was damaged: {picture.finding.problem}"
        failed = ImageState.FAILED
        write_images(ledger, [ImageRecord(*item.key, failed, item.fetched_at, reason) for item in picture.records])


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


def _find_problem(layout: LakeLayout, name: str, record: ImageRecord, *, read_data: bool) -> str | None:
    if not is_image_path(name):  # a ledger from elsewhere may name files of others
        return "not the name of an image"
    path = layout.root / name
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
