"""Copies of a lake's pictures beside a copy of its ledger."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import fsync_dir, sha256_file
from pipeline.errors import LakeCorruptedError
from pipeline.lake.image_names import IMAGES, is_image_path
from pipeline.lake.image_records import ImageState, forget_images, iter_images
from pipeline.lake.layout import translate_os_errors, write_read_only

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger import Ledger
    from pipeline.lake.ledger_queries import LedgerQueries

_BATCH_ROWS: Final = 10_000


def copy_pictures(layout: LakeLayout, ledger: LedgerQueries, target: LakeLayout, *, link: bool) -> tuple[int, int]:
    """Copy the pictures that the target lacks, by name, and delete those that no row has any more.

    Each is compared with its hash first. Returns the number of pictures, and of those that the target lacked. Raises
    `LakeCorruptedError` for a damaged one.
    """
    folders: set[Path] = set()
    named: set[str] = set()
    copied = 0
    for records in iter_images(ledger):
        for record in records:
            if record.state is not ImageState.STORED or record.path is None or record.path in named:
                continue
            if not is_image_path(record.path):  # of a backup that is restored: it must not lead out of the lake
                raise LakeCorruptedError("The ledger names a file that is no image.", hint="Use another backup.")
            named.add(record.path)
            source, copy = layout.root / record.path, target.root / record.path
            if copy.is_file() and copy.stat().st_size == record.bytes:
                continue
            if not source.is_file() or sha256_file(source) != record.sha256:
                raise LakeCorruptedError(
                    f"{record.path} is missing or damaged.", hint="Run `scanlake repair --read-data`."
                )
            target.create_dirs([copy.parent.parent, copy.parent])
            folders.add(copy.parent)
            link_or_copy(source, copy, link=link)
            copied += 1
    for folder in sorted(folders):
        fsync_dir(folder)
    with translate_os_errors(target.root):
        for path in target.root.glob(f"{IMAGES}/??/*"):
            if target.part_name(path) not in named:
                path.unlink(missing_ok=True)
    return len(named), copied


def link_or_copy(source: Path, copy: Path, *, link: bool) -> bool:
    """Copy a file, or link it if `link` and the file system can; return whether it was linked."""
    with translate_os_errors(copy):
        if link:
            with suppress(OSError):  # another file system, or one without links; the copy raises any other disk error
                os.link(source, copy)
                return True
        with write_read_only(copy) as temp:
            shutil.copyfile(source, temp)
    return False


def forget_missing_pictures(ledger: Ledger, is_missing: Callable[[str], bool]) -> None:
    """Delete the rows of pictures that a copy of a lake does not have, by their paths: its next run fetches them."""
    missing = [
        record.key
        for records in iter_images(ledger)
        for record in records
        if record.path is not None and is_missing(record.path)
    ]
    if missing:
        forget_images(ledger, missing)
