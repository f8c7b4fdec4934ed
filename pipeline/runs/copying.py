"""Backup: a consistent copy of a lake, which is a lake."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.errors import SettingsError
from pipeline.lake.files import Layout, storage, sync_file, sync_folder
from pipeline.lake.lake import Lake
from schemas.tables import TABLES

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Copied:
    """What a backup did; the object that `--json` prints."""

    folder: str
    files: int
    parts: int
    bytes: int
    linked: int
    copied: int
    snapshot: int


def backup(lake: Lake, folder: Path, *, copy: bool = False) -> Copied:
    """Copy the lake, held by us, into an empty `folder`. Raises `SettingsError` for one that is not empty.

    The ledger comes last: without it a copy that was cut short is no lake. Earlier snapshots stay behind:
    they name the parts of the lake that they came from.
    """
    target = Layout(folder.absolute())
    with storage(folder):
        if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
            raise SettingsError(f"{folder} is not an empty folder", remedy="Name an empty one, or one not there yet.")
        if target.root.resolve().is_relative_to(lake.layout.root.resolve()):
            raise SettingsError(f"{folder} lies within the lake", remedy="Name a folder elsewhere.")
    target.make([table.name for table in TABLES])
    parts, linked = lake.ledger.parts(), 0
    for part in parts:
        linked += _bring(lake.layout.part(part.name), target.part(part.name), copy=copy)
    with storage(folder):
        aside = target.ledger.with_name(f"{target.ledger.name}.aside")
        lake.ledger.copy_to(aside)
        sync_file(aside)
        for below in sorted({target.part(part.name).parent for part in parts}):
            sync_folder(below)
        aside.rename(target.ledger)
        sync_folder(target.root)
    with Lake(target.root, doing="backup") as made:
        made.move_readers_to(target.root)  # wherever those of the lake see it
        made.ledger.forget_retired([name for name, _, _ in made.ledger.retired()])  # they were left behind
        record = made.republish(at=time.time_ns() // 1_000)
    size = sum(part.bytes for part in parts)
    return Copied(str(folder), record.files, len(parts), size, linked, len(parts) - linked, record.snapshot)


def _bring(source: Path, target: Path, *, copy: bool) -> bool:
    """Link a part, or copy it where that cannot be. True when it was linked."""
    with storage(target):
        if not copy:
            try:
                os.link(source, target)
            except OSError:  # another file system, or one that knows no links: a copy tells whether the disk will
                pass
            else:
                return True
        shutil.copyfile(source, target)
        target.chmod(0o444)
        sync_file(target)
    return False
