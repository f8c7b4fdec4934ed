"""Backup: a consistent copy of a lake, which is a lake itself."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import FileLockedError, atomic_write, fsync_dir, fsync_file, is_temp_file, lock_file
from pipeline.errors import LakeLockedError, SettingsError
from pipeline.lake.integrity import check_parts_exist
from pipeline.lake.lake import BACKUP_IN_PROGRESS, Lake
from pipeline.lake.lake_folder import require_outside_lakes
from pipeline.lake.layout import LakeLayout, translate_os_errors
from schemas.tables import TABLES
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.lake.models import Part

# Entries of a killed backup: those of a lake, and the files that SQLite adds to the ledger.
_BACKUP_ENTRIES: Final = (
    *("parts", "raw", "snapshots", "spill", "LOCK", "catalog.duckdb"),
    *("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite-journal"),
)


@dataclass(frozen=True, slots=True)
class BackupResult:
    """Result of a backup; the object that `--json` prints."""

    folder: str
    files: int
    parts: int
    bytes: int
    linked: int
    copied: int
    snapshot: int


def backup(lake: Lake, folder: Path, *, copy: bool = False) -> BackupResult:
    """Copy the locked lake into an empty `folder`, or into one with a killed backup.

    Raises `SettingsError` for a folder with other files, `LakeLockedError` while another backup writes to the folder,
    and `LakeCorruptedError` if a part is missing. The ledger is copied last: an incomplete copy without it is no lake.
    Earlier snapshots are not copied: they name the parts of the original lake.
    """
    target = LakeLayout(folder.absolute())
    check_parts_exist(lake.layout, lake.ledger.parts())
    with translate_os_errors(folder):
        require_outside_lakes(target.root.parent, str(folder), lake.layout.root)
        entries = _folder_entries(target.root)
        is_killed_backup = BACKUP_IN_PROGRESS in entries and all(map(_is_backup_entry, entries))
        if folder.is_symlink() or (entries and not is_killed_backup):
            raise SettingsError(f"{folder} is not an empty folder.", hint="Choose an empty folder or a new one.")
    is_new = not target.root.exists()
    with translate_os_errors(folder):
        target.root.mkdir(parents=True, exist_ok=True)
    with _backup_in_progress(target.root):
        try:
            _remove_partial_backup(target.root)
            parts, linked = _copy_parts_and_ledger(lake, target, copy=copy)
            with Lake(target.root, doing="backup", is_backup=True, options=lake.options) as copied:
                copied.set_reader_root(target.root)  # the original lake may have another reader root
                # Retired parts are not copied.
                copied.ledger.delete_retired([part.name for part in copied.ledger.retired_parts()])
                record = copied.republish(at=now_us())
        except BaseException:
            with suppress(OSError):
                _remove_partial_backup(target.root)
                (target.root / BACKUP_IN_PROGRESS).unlink()
                if is_new:
                    target.root.rmdir()
            raise
        with translate_os_errors(folder):
            (target.root / BACKUP_IN_PROGRESS).unlink()
            fsync_dir(target.root)
    size = sum(part.bytes for part in parts)
    return BackupResult(str(folder), record.files, len(parts), size, linked, len(parts) - linked, record.snapshot)


def _folder_entries(folder: Path) -> set[str]:
    """Return the names in a folder. A file at this path counts as an unknown file."""
    if folder.exists() and not folder.is_dir():
        return {str(folder)}
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@contextmanager
def _backup_in_progress(folder: Path) -> Iterator[None]:
    """Mark the folder as an incomplete backup and lock it. The caller removes the mark."""
    with ExitStack() as stack:
        with translate_os_errors(folder):
            try:
                stack.enter_context(lock_file(folder / BACKUP_IN_PROGRESS))
            except FileLockedError:
                raise LakeLockedError(f"Another backup writes to {folder}.") from None
        yield


def _is_backup_entry(name: str) -> bool:
    return name in _BACKUP_ENTRIES or name == BACKUP_IN_PROGRESS or is_temp_file(Path(name))


def _remove_partial_backup(folder: Path) -> None:
    """Remove every entry of a backup except its mark."""
    with translate_os_errors(folder):
        for name in _folder_entries(folder) - {BACKUP_IN_PROGRESS}:
            path = folder / name
            if not _is_backup_entry(name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _copy_parts_and_ledger(lake: Lake, target: LakeLayout, *, copy: bool) -> tuple[list[Part], int]:
    """Copy the parts, then the ledger. Return the parts and the number of linked ones."""
    target.create_dirs(target.folders(table.name for table in TABLES))
    parts, linked = lake.ledger.parts(), 0
    for part in parts:
        linked += _link_or_copy(lake.layout.part_path(part.name), target.part_path(part.name), copy=copy)
    with translate_os_errors(target.root):
        for table_dir in sorted({target.part_path(part.name).parent for part in parts}):
            fsync_dir(table_dir)
        with atomic_write(target.ledger) as temp:
            lake.ledger.copy_to(temp)
    return parts, linked


def _link_or_copy(source: Path, target: Path, *, copy: bool) -> bool:
    """Link a part, or copy it if the link fails. Return whether it was linked."""
    with translate_os_errors(target):
        if not copy:
            with suppress(OSError):  # another file system, or one without links; the copy raises any other disk error
                os.link(source, target)
                return True
        shutil.copyfile(source, target)
        target.chmod(0o444)
        fsync_file(target)
    return False
