"""Restore: a lake from a backup, in an empty folder."""

from __future__ import annotations

import os
import re
from contextlib import closing, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import READ_ONLY, fsync_dir, fsync_file, is_temp_file, sha256_file, temp_name
from pipeline.errors import LakeCorruptedError, SettingsError
from pipeline.lake.image_store import forget_missing_pictures, iter_paths
from pipeline.lake.lake import Lake
from pipeline.lake.lake_folder import RESTORE_IN_PROGRESS, RESTORE_MARK, has_restore_mark, require_outside_lakes
from pipeline.lake.layout import LakeLayout, hold_lock, is_image_path, is_part_name, is_part_path, translate_os_errors
from pipeline.lake.ledger import Ledger
from pipeline.lake.ledger_format import find_foreign_content, translate_sqlite_errors
from pipeline.publish.image_objects import download_images
from pipeline.publish.object_store import run_side_by_side
from pipeline.publish.target import LATEST, is_own_path, read_latest, to_ledger_path, to_target_path
from schemas.tables import TABLES
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from pipeline.lake.ledger_queries import Part, SnapshotRecord
    from pipeline.publish.object_store import ObjectStore

_NOT_RESTORED: Final = "Use another backup; nothing was restored."
# Names in a folder with a killed restore: of the ledger with the files that SQLite adds to it, and of the others.
_OWN_FILES: Final = re.compile(
    r"(ledger\.sqlite(-wal|-shm|-journal)?|LOCK|catalog\.duckdb|snapshots/\d{6}\.duckdb|tables/\w+/empty\.parquet)"
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
        if folder.is_symlink() or not _is_empty_or_killed_restore(target.root):
            raise SettingsError(f"{folder} is not an empty folder.", hint="Choose an empty folder, or a new one.")
        is_new = not target.root.exists()
        target.root.mkdir(parents=True, exist_ok=True)
    mark = target.root / RESTORE_IN_PROGRESS
    with hold_lock(mark, f"Another restore writes to {target.root}.") as handle:
        with translate_os_errors(folder):
            os.pwrite(handle, RESTORE_MARK, 0)
            os.fsync(handle)
        try:
            _remove_partial_lake(target.root)
            target.create_dirs(target.folders(table.name for table in TABLES))
            problems = _download_backup(store, target)
            record = _publish_copy(target)
        except BaseException as error:
            if isinstance(error, LakeCorruptedError):
                error.hint = _NOT_RESTORED
            with suppress(OSError):
                _remove_partial_lake(target.root)
                mark.unlink()
                if is_new:
                    target.root.rmdir()
            raise
        with translate_os_errors(folder):
            mark.unlink()
            fsync_dir(target.root)
    return record, problems


def _download_backup(store: ObjectStore, layout: LakeLayout) -> dict[str, str]:
    """Write the parts and images, then the ledger, of the backup below the store's URL to the folders of an empty lake.

    Returns the images that are missing or damaged in the backup, by path, with the reason. Raises `SettingsError` if
    there is no backup, `LakeCorruptedError` if another object differs from what was written.
    """
    record, _ = read_latest(store, lake_id=None)
    if record is None or record.ledger is None:
        raise SettingsError(f"{store.base_url} has no backup.", hint="Correct the URL.")
    path = to_ledger_path(record.ledger.sha256)
    if not is_own_path(path):
        raise LakeCorruptedError(f"{store.url(LATEST)} names a file that is no ledger.")
    copy = layout.root / temp_name(layout.ledger.name)
    _download(store, path, copy, record.ledger.sha256, record.ledger.bytes)
    with translate_sqlite_errors(copy):
        content = find_foreign_content(copy)
    if content is not None:
        raise LakeCorruptedError(f"{store.url(path)} is no ledger of scanlake: {content}.")

    def download_part(part: Part) -> None:
        _download(store, to_target_path(part.name, part.sha256), layout.part_path(part.name), part.sha256, part.bytes)

    with closing(Ledger(copy)) as ledger:
        parts = ledger.parts()
        # A name that leads out of the folder would be read, renamed or deleted there, perhaps by a later purge.
        if not all(map(is_part_path, ledger.part_names())):
            raise LakeCorruptedError(f"{store.url(path)} names a file that is no part.")
        if not all(map(is_image_path, iter_paths(ledger))):
            raise LakeCorruptedError(f"{store.url(path)} names a file that is no image.")
        if ledger.count("SELECT count(*) FROM report_order WHERE pdf LIKE '%/%'"):
            raise LakeCorruptedError(f"{store.url(path)} names a file that is no PDF of a report.")
        run_side_by_side(download_part, parts)
        problems = {} if record.images is None else download_images(store, layout, ledger)
    with translate_os_errors(layout.ledger):
        for folder in sorted({layout.part_path(part.name).parent for part in parts}):
            fsync_dir(folder)
        copy.rename(layout.ledger)
        fsync_dir(layout.root)
    return problems


def _download(store: ObjectStore, path: str, file: Path, sha256: str, size: int) -> None:
    with translate_os_errors(file):
        if not store.download(path, file, size) or sha256_file(file) != sha256:
            raise LakeCorruptedError(f"{store.url(path)} differs from what was backed up.")
        fsync_file(file)
        if is_part_name(file.name):
            file.chmod(READ_ONLY)


def _publish_copy(target: LakeLayout) -> SnapshotRecord:
    """Publish the copied ledger."""
    with Lake(target.root, doing="restore", is_restore=True) as lake:
        # Retired parts are not in a backup.
        lake.ledger.delete_retired(lake.ledger.retired_parts())
        forget_missing_pictures(lake.ledger, lambda path: not (target.root / path).is_file())
        return lake.republish(at=now_us(), rebuild=True)


def _is_empty_or_killed_restore(folder: Path) -> bool:
    """Return whether a folder is empty or not there, or has the mark of a restore and no files but those of one."""
    if not folder.is_dir():
        return not os.path.lexists(folder)
    entries, mark = set(folder.iterdir()), folder / RESTORE_IN_PROGRESS
    if not entries - {mark}:
        return not entries or has_restore_mark(folder)
    is_marked = has_restore_mark(folder) and mark.stat().st_size > 0
    return is_marked and all(path == mark or _is_own(folder, path) for path in _list_files(folder))


def _list_files(folder: Path) -> list[Path]:
    """Return everything below a folder that is no folder. Links are not followed."""
    return [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]


def _is_own(folder: Path, path: Path) -> bool:
    """Return whether a restore has made a file, by its name."""
    relative = path.relative_to(folder)
    name, is_temporary = relative.as_posix(), any(is_temp_file(PurePath(part)) for part in relative.parts)
    is_named = is_part_path(name) or is_image_path(name) or _OWN_FILES.fullmatch(name) is not None
    return not path.is_symlink() and (is_named or is_temporary)


def _remove_partial_lake(folder: Path) -> None:
    """Remove every file of a restore except its mark, and the folders that are empty then."""
    with translate_os_errors(folder):
        for path in _list_files(folder):
            if _is_own(folder, path):
                path.unlink(missing_ok=True)
        for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
            with suppress(OSError):
                path.rmdir()
