"""Backup: a consistent copy of a lake, which is a lake."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.errors import LakeBusy, SettingsError
from pipeline.lake.files import Layout, is_aside, storage, sync_file, sync_folder
from pipeline.lake.integrity import require_parts
from pipeline.lake.lake import UNFINISHED, Lake
from schemas.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.lake.records import Part

_LEDGER_ASIDE: Final = "ledger.sqlite.aside"
# What is in a backup that was killed: what a lake consists of, and what its own writes leave aside.
_OURS: Final = (
    *("parts", "raw", "snapshots", "spill", "LOCK", "catalog.duckdb"),
    *("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite-journal"),
    *(_LEDGER_ASIDE, f"{_LEDGER_ASIDE}-journal", f"{_LEDGER_ASIDE}-wal", f"{_LEDGER_ASIDE}-shm"),
)


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
    """Copy the lake, held by us, into an empty `folder`, or into one where a backup was killed.

    Raises `SettingsError` for a folder that holds anything else, `LakeBusy` while another backup fills it, and
    `LakeDamaged` when a part is gone. The ledger comes last: without it a copy that was cut short is no lake.
    Earlier snapshots stay behind: they name the parts of the lake that they came from.
    """
    target = Layout(folder.absolute())
    require_parts(lake.layout, lake.ledger.parts())
    with storage(folder):
        if target.root.resolve().is_relative_to(lake.layout.root.resolve()):
            raise SettingsError(f"{folder} lies within the lake", remedy="Name a folder elsewhere.")
        held = _held(target.root)
        if folder.is_symlink() or (held and not (UNFINISHED in held and all(map(_is_ours, held)))):
            raise SettingsError(f"{folder} is not an empty folder", remedy="Name an empty one, or one not there yet.")
    is_new = not target.root.exists()
    with storage(folder):
        target.root.mkdir(parents=True, exist_ok=True)
    with _begun(target.root):
        try:
            _remove_ours(target.root)
            parts, linked = _copy(lake, target, copy=copy)
            with Lake(target.root, doing="backup") as made:
                made.move_readers_to(target.root)  # wherever those of the lake see it
                made.ledger.forget_retired([name for name, _, _ in made.ledger.retired()])  # they were left behind
                record = made.republish(at=time.time_ns() // 1_000)
        except BaseException:
            with suppress(OSError):
                _remove_ours(target.root)
                (target.root / UNFINISHED).unlink()
                if is_new:
                    target.root.rmdir()
            raise
        with storage(folder):
            (target.root / UNFINISHED).unlink()
            sync_folder(target.root)
    size = sum(part.bytes for part in parts)
    return Copied(str(folder), record.files, len(parts), size, linked, len(parts) - linked, record.snapshot)


def _held(folder: Path) -> set[str]:
    """The names in a folder; a file in its place counts as one that is not ours."""
    if folder.exists() and not folder.is_dir():
        return {str(folder)}
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@contextmanager
def _begun(folder: Path) -> Iterator[None]:
    """Mark the folder as a backup that is not whole, until the mark is removed, and hold it meanwhile."""
    with storage(folder):
        handle = os.open(folder / UNFINISHED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeBusy(f"another backup is being written to {folder}") from None
        yield
    finally:
        os.close(handle)


def _is_ours(name: str) -> bool:
    return name in _OURS or name == UNFINISHED or (name.startswith("catalog.duckdb.") and is_aside(Path(name)))


def _remove_ours(folder: Path) -> None:
    """Remove what a backup makes, but for its mark."""
    with storage(folder):
        for name in _held(folder) - {UNFINISHED}:
            path = folder / name
            if not _is_ours(name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _copy(lake: Lake, target: Layout, *, copy: bool) -> tuple[list[Part], int]:
    """The parts, and then the ledger. Returns the parts, and how many of them were linked."""
    target.make([table.name for table in TABLES])
    parts, linked = lake.ledger.parts(), 0
    for part in parts:
        linked += _bring(lake.layout.part(part.name), target.part(part.name), copy=copy)
    with storage(target.root):
        aside = target.ledger.with_name(_LEDGER_ASIDE)
        lake.ledger.copy_to(aside)
        sync_file(aside)
        for below in sorted({target.part(part.name).parent for part in parts}):
            sync_folder(below)
        aside.rename(target.ledger)
        sync_folder(target.root)
    return parts, linked


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
