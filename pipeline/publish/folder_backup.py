"""Backup: a consistent copy of a lake, which is a lake itself."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import FileLockedError, atomic_write, fsync_dir, is_temp_file, lock_file
from pipeline.errors import LakeCorruptedError, LakeLockedError, ScanlakeError, SettingsError
from pipeline.lake.file_names import is_part_path, list_snapshots
from pipeline.lake.image_copies import copy_pictures, forget_missing_pictures, link_or_copy
from pipeline.lake.image_names import IMAGES
from pipeline.lake.integrity import check_parts_exist
from pipeline.lake.lake import BACKUP_IN_PROGRESS, Lake
from pipeline.lake.lake_folder import require_outside_lakes
from pipeline.lake.lake_readme import README_NAME
from pipeline.lake.layout import LakeLayout, translate_os_errors
from pipeline.lake.ledger_format import LedgerIdentity, identify_ledger
from pipeline.lake.parts import check_part_intact
from pipeline.lake.reader import open_ledger_readonly
from pipeline.lake.retention import remove_orphans
from schemas.tables import TABLES
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipeline.lake.models import SnapshotRecord

# Entries of a killed backup: those of a lake, and the files that SQLite adds to the ledger.
_BACKUP_ENTRIES: Final = (
    *(IMAGES, "parts", "raw", "snapshots", "spill", "LOCK", "catalog.duckdb", README_NAME),
    *("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.sqlite-journal"),
)


@dataclass(frozen=True, slots=True)
class BackupResult:
    """A backup: what the lake has, and what of it the target lacked before. `images` is null without --with-images."""

    target: str
    files: int
    parts: int
    bytes: int
    copied: int
    linked: int
    images: int | None
    images_copied: int


def backup(lake: Lake, folder: Path, *, link: bool = False, with_images: bool = False) -> BackupResult:
    """Copy the locked lake into an empty `folder`, or bring an earlier backup of this lake in `folder` up to date.

    With `link` the parts are hard links where the file system allows. Without `with_images` the copy has no rows of
    pictures that it does not have.
    Raises `SettingsError` for a folder with other files, `LakeLockedError` while another backup writes to the folder,
    and `LakeCorruptedError` if a part is missing or damaged. The ledger is copied after the parts: an incomplete copy
    without it is no lake, and an earlier backup stays whole until then. Earlier snapshots are not copied: they name
    the parts of the original lake.
    """
    parts = lake.ledger.parts()
    check_parts_exist(lake.layout, parts)
    counts = Counter[str]()
    record = fill_folder(
        folder,
        lambda target: counts.update(_copy_parts_and_ledger(lake, target, link=link, with_images=with_images)),
        source=lake.layout.root,
        is_update=_is_backup_of(LakeLayout(folder.absolute()), lake),
        backup_of=str(lake.layout.root),
    )
    images = counts["images"] if with_images else None
    size = sum(part.bytes for part in parts)
    added = (counts["copied"], counts["linked"], images, counts["images_copied"])
    return BackupResult(str(folder), record.files, len(parts), size, *added)


def restore_backup(lake: Lake, folder: Path) -> SnapshotRecord:
    """Copy a locked backup into an empty `folder`, as a lake. Raises the errors of `backup`."""
    check_parts_exist(lake.layout, lake.ledger.parts())
    return fill_folder(
        folder,
        lambda target: _copy_parts_and_ledger(lake, target, link=False, with_images=True),
        source=lake.layout.root,
    )


def fill_folder(
    folder: Path,
    copy_files: Callable[[LakeLayout], object],
    *,
    source: Path | None = None,
    is_update: bool = False,
    backup_of: str | None = None,
) -> SnapshotRecord:
    """Make a lake of an empty `folder`, or of one with a killed backup. `copy_files` writes parts, then the ledger.

    `is_update`: the folder has an earlier backup, which stays whole until the ledger is replaced. Otherwise the folder
    is as before after a failure. `source` is the lake that is copied, `backup_of` the lake that the copy is a backup
    of. Returns the published snapshot.
    """
    target = LakeLayout(folder.absolute())
    with translate_os_errors(folder):
        require_outside_lakes(target.root.parent, str(folder), source)
        entries = _folder_entries(target.root)
        is_killed_backup = BACKUP_IN_PROGRESS in entries and all(map(_is_backup_entry, entries))
        if folder.is_symlink() or (entries and not is_killed_backup and not is_update):
            raise SettingsError(
                f"{folder} is not an empty folder, and no backup of this lake.",
                hint="Choose an empty folder, a new one, or an earlier backup of this lake.",
            )
    is_new = not target.root.exists()
    with translate_os_errors(folder):
        target.root.mkdir(parents=True, exist_ok=True)
    with _backup_in_progress(target.root):
        try:
            if not is_update:
                _remove_partial_backup(target.root)
            target.create_dirs(target.folders(table.name for table in TABLES))
            copy_files(target)
            record = _publish_copy(target, backup_of)
        except BaseException:
            with suppress(OSError):
                if not is_update:
                    _remove_partial_backup(target.root)
                (target.root / BACKUP_IN_PROGRESS).unlink()
                if is_new:
                    target.root.rmdir()
            raise
        with translate_os_errors(folder):
            (target.root / BACKUP_IN_PROGRESS).unlink()
            fsync_dir(target.root)
    return record


def _is_backup_of(target: LakeLayout, lake: Lake) -> bool:
    """Return whether the folder has a complete backup of the lake, into which no run has fetched since."""
    if identify_ledger(target.ledger) is not LedgerIdentity.LEDGER:
        return False
    with suppress(ScanlakeError), open_ledger_readonly(target) as ledger:
        return ledger.properties.backup_of == str(lake.layout.root)
    return False


def _publish_copy(target: LakeLayout, backup_of: str | None) -> SnapshotRecord:
    """Publish the copied ledger, and remove what an earlier backup in the folder had more."""
    with translate_os_errors(target.root):
        for _, path in list_snapshots(target):
            path.unlink()
    with Lake(target.root, doing="backup", is_backup=True) as copied:
        # Retired parts are not copied.
        copied.ledger.delete_retired([part.name for part in copied.ledger.retired_parts()])
        forget_missing_pictures(copied.ledger, lambda path: not (target.root / path).is_file())
        record = copied.republish(at=now_us(), rebuild=True)
        remove_orphans(target, copied.ledger)
        copied.ledger.set_properties(backup_of=backup_of)
    return record


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


def _copy_parts_and_ledger(lake: Lake, target: LakeLayout, *, link: bool, with_images: bool) -> Counter[str]:
    """Copy the parts and images that the target lacks, then the ledger. Return the numbers of `BackupResult`."""
    parts, counts = lake.ledger.parts(), Counter[str]()
    for part in parts:
        if not is_part_path(part.name):  # of a backup that is restored: it must not lead out of the lake
            raise LakeCorruptedError("The ledger names a file that is no part.", hint="Use another backup.")
        copy = target.part_path(part.name)
        if copy.is_file() and copy.stat().st_size == part.bytes:
            continue
        check_part_intact(lake.layout, part)  # damage must not replace the last good copy
        is_linked = link_or_copy(lake.layout.part_path(part.name), copy, link=link)
        counts["linked" if is_linked else "copied"] += 1
    with translate_os_errors(target.root):
        for table_dir in sorted({target.part_path(part.name).parent for part in parts}):
            fsync_dir(table_dir)
        if with_images:
            counts["images"], counts["images_copied"] = copy_pictures(lake.layout, lake.ledger, target, link=link)
        with atomic_write(target.ledger) as temp:
            lake.ledger.copy_to(temp)
    return counts
