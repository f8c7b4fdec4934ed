"""Restore: a lake from a backup, in an empty folder."""

from __future__ import annotations

import shutil
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import (
    READ_ONLY,
    FileLockedError,
    fsync_dir,
    fsync_file,
    is_temp_file,
    lock_file,
    sha256_file,
    temp_name,
)
from pipeline.errors import LakeCorruptedError, LakeLockedError, SettingsError
from pipeline.lake.file_names import is_part_name, is_part_path
from pipeline.lake.image_names import IMAGES
from pipeline.lake.image_records import forget_missing_pictures
from pipeline.lake.lake import RESTORE_IN_PROGRESS, Lake
from pipeline.lake.lake_folder import require_outside_lakes
from pipeline.lake.layout import LakeLayout, translate_os_errors
from pipeline.lake.ledger import Ledger
from pipeline.publish.backup import RECORD, BackupRecord, backup_path, is_backup_path
from pipeline.publish.image_objects import download_images
from pipeline.publish.store_records import read_record
from pipeline.publish.uploads import run_side_by_side
from schemas.tables import TABLES
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.lake.models import Part, SnapshotRecord
    from pipeline.publish.store_contract import ObjectStore

_NOT_RESTORED: Final = "Use another backup; nothing was restored."
# Entries of a killed restore: those of a lake, and the files that SQLite adds to the ledger.
_LAKE_ENTRIES: Final = (
    *(IMAGES, "parts", "raw", "snapshots", "spill", "LOCK", "catalog.duckdb"),
    *("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite-journal"),
)


def restore_backup(store: ObjectStore, folder: Path) -> tuple[SnapshotRecord, dict[str, str]]:
    """Make a lake of an empty `folder`, or of one with a killed restore, from the backup below the store's URL.

    After a failure the folder is as before. Returns the published snapshot, and the images that are missing or damaged
    in the backup, by path, with the reason. Raises `SettingsError` for a folder with other files or without a backup,
    `LakeLockedError` while another restore writes to the folder, `LakeCorruptedError` if another object differs from
    what was written, and `PublishError`.
    """
    target = LakeLayout(folder.absolute())
    with translate_os_errors(folder):
        require_outside_lakes(target.root.parent, str(folder))
        entries = _folder_entries(target.root)
        is_killed_restore = RESTORE_IN_PROGRESS in entries and all(map(_is_lake_entry, entries))
        if folder.is_symlink() or (entries and not is_killed_restore):
            raise SettingsError(f"{folder} is not an empty folder.", hint="Choose an empty folder, or a new one.")
        is_new = not target.root.exists()
        target.root.mkdir(parents=True, exist_ok=True)
    with _restore_in_progress(target.root):
        try:
            _remove_partial_lake(target.root)
            target.create_dirs(target.folders(table.name for table in TABLES))
            problems = _download_backup(store, target)
            record = _publish_copy(target)
        except BaseException:
            with suppress(OSError):
                _remove_partial_lake(target.root)
                (target.root / RESTORE_IN_PROGRESS).unlink()
                if is_new:
                    target.root.rmdir()
            raise
        with translate_os_errors(folder):
            (target.root / RESTORE_IN_PROGRESS).unlink()
            fsync_dir(target.root)
    return record, problems


def _download_backup(store: ObjectStore, layout: LakeLayout) -> dict[str, str]:
    """Write the parts and images, then the ledger, of the backup below the store's URL to the folders of an empty lake.

    Returns the images that are missing or damaged in the backup, by path, with the reason. Raises `SettingsError` if
    there is no backup, `LakeCorruptedError` if another object differs from what was written.
    """
    record, _ = read_record(store, RECORD, BackupRecord)
    if record is None:
        raise SettingsError(f"{store.base_url} has no backup.", hint="Correct the URL.")
    if not is_backup_path(record.ledger):
        raise LakeCorruptedError(f"{store.url(RECORD)} names a file that is no ledger.", hint=_NOT_RESTORED)
    copy = layout.root / temp_name(layout.ledger.name)
    _download(store, record.ledger, copy, record.ledger_sha256)
    with closing(Ledger(copy)) as ledger:
        parts = ledger.parts()
    if any(not is_part_path(part.name) for part in parts):
        raise LakeCorruptedError(f"{store.url(record.ledger)} names a file that is no part.", hint=_NOT_RESTORED)

    def download_part(part: Part) -> None:
        _download(store, backup_path(part), layout.part_path(part.name), part.sha256)

    run_side_by_side(download_part, parts)
    problems = {}
    if record.images:
        with closing(Ledger(copy)) as ledger:
            problems = download_images(store, layout, ledger)
    with translate_os_errors(layout.ledger):
        for folder in sorted({layout.part_path(part.name).parent for part in parts}):
            fsync_dir(folder)
        copy.rename(layout.ledger)
        fsync_dir(layout.root)
    return problems


def _download(store: ObjectStore, path: str, file: Path, sha256: str) -> None:
    with translate_os_errors(file):
        store.download(path, file)
        if sha256_file(file) != sha256:
            raise LakeCorruptedError(f"{store.url(path)} differs from what was backed up.", hint=_NOT_RESTORED)
        fsync_file(file)
        if is_part_name(file.name):
            file.chmod(READ_ONLY)


def _publish_copy(target: LakeLayout) -> SnapshotRecord:
    """Publish the copied ledger."""
    with Lake(target.root, doing="restore", is_restore=True) as lake:
        # Retired parts are not in a backup.
        lake.ledger.delete_retired([part.name for part in lake.ledger.retired_parts()])
        forget_missing_pictures(lake.ledger, lambda path: not (target.root / path).is_file())
        return lake.republish(at=now_us(), rebuild=True)


def _folder_entries(folder: Path) -> set[str]:
    """Return the names in a folder. A file at this path counts as an unknown file."""
    if folder.exists() and not folder.is_dir():
        return {str(folder)}
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@contextmanager
def _restore_in_progress(folder: Path) -> Iterator[None]:
    """Mark the folder as an incomplete restore and lock it. The caller removes the mark."""
    with ExitStack() as stack:
        with translate_os_errors(folder):
            try:
                stack.enter_context(lock_file(folder / RESTORE_IN_PROGRESS))
            except FileLockedError:
                raise LakeLockedError(f"Another restore writes to {folder}.") from None
        yield


def _is_lake_entry(name: str) -> bool:
    return name in _LAKE_ENTRIES or name == RESTORE_IN_PROGRESS or is_temp_file(Path(name))


def _remove_partial_lake(folder: Path) -> None:
    """Remove every entry of a lake except its mark."""
    with translate_os_errors(folder):
        for name in _folder_entries(folder) - {RESTORE_IN_PROGRESS}:
            path = folder / name
            if not _is_lake_entry(name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
