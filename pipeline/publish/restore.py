"""Restore: a lake from a backup, in an empty folder; and the check that a backup can be restored."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.errors import LakeCorruptedError, PublishError, ScanlakeError, SettingsError
from pipeline.lake.lake import Lake, Opening
from pipeline.lake.ledger.folder import RESTORE_IN_PROGRESS, RESTORE_MARK, has_restore_mark, require_outside_lakes
from pipeline.lake.ledger.format import find_foreign_content, translate_sqlite_errors
from pipeline.lake.ledger.images import forget_missing_images, iter_paths
from pipeline.lake.ledger.ledger import Ledger
from pipeline.lake.rollback import clear_pause
from pipeline.lake.storage.atomic_files import fsync_dir, is_temp_file, list_names, pin_folder, temp_name
from pipeline.lake.storage.lake_lock import hold_lock
from pipeline.lake.storage.layout import LakeLayout, is_image_path, is_part_path, translate_os_errors
from pipeline.output.findings import error, ok
from pipeline.output.formatting import pluralize
from pipeline.publish.image_objects import compare_images, download_images
from pipeline.publish.object_store import PendingUpload, download_object, find_problems, is_whole
from pipeline.publish.target import (
    CATALOG,
    LATEST,
    is_own_path,
    list_documents,
    read_latest,
    to_ledger_path,
    to_target_path,
)
from pipeline.publish.target_checks import find_image_damage
from schemas.tables import TABLES
from schemas.timestamps import now_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pipeline.lake.ledger.queries import SnapshotRecord
    from pipeline.output.findings import Finding
    from pipeline.publish.object_store import ObjectStore
    from pipeline.publish.target import LatestRecord

_LEDGER_MODE: Final = 0o600
_NOT_RESTORED: Final = "Use another backup; nothing was restored."
# Names in a folder with a killed restore: of the ledger with the files that SQLite adds to it, and of the others.
_OWN_FILES: Final = re.compile(
    r"(ledger\.sqlite(-wal|-shm|-journal)?|LOCK|catalog\.duckdb|snapshots/\d{6}\.duckdb|tables/\w+/empty\.parquet)"
)


class RestoredBackup(Struct, frozen=True):
    """A restored lake, and what the backup lacks of it: `lost` objects and images by path, missing or damaged.

    `snapshot` is its last one, None without the ledger.
    """

    snapshot: SnapshotRecord | None
    lost: Mapping[str, str]
    images_lost: Mapping[str, str]


def restore_backup(store: ObjectStore, folder: Path) -> RestoredBackup:
    """Make a lake of an empty `folder`, or of one with a killed restore, from the backup below the store's URL.

    What is missing or damaged in the backup is left out and named. A lake that lacks a part or its ledger has no
    catalog until `scanlake repair`. After a failure the folder is as before. Raises `SettingsError` for a folder with
    other files or without a backup, `LakeLockedError` while another restore writes to the folder, `LakeCorruptedError`
    for a ledger that is not of scanlake or names files of others, and `PublishError`.
    """
    target = LakeLayout(folder.absolute())
    with translate_os_errors(folder):
        require_outside_lakes(target.root.parent, str(folder))
        if folder.is_symlink() or not _is_empty_or_killed_restore(target.root):
            raise SettingsError(f"{folder} is not an empty folder.", hint="Choose an empty folder, or a new one.")
        is_new = not target.root.exists()
    with ExitStack() as stack:
        with translate_os_errors(folder):
            pinned = LakeLayout(stack.enter_context(pin_folder(target.root)))
        mark = pinned.root / RESTORE_IN_PROGRESS
        handle = stack.enter_context(hold_lock(mark, lambda: f"Another restore writes to {target.root}."))
        with translate_os_errors(folder):
            os.pwrite(handle, RESTORE_MARK, 0)
            os.fsync(handle)
        try:
            _remove_partial_lake(pinned.root)
            pinned.create_dirs(pinned.folders(table.name for table in TABLES))
            restored = _download_backup(store, pinned, target)
        except BaseException as error:
            if isinstance(error, LakeCorruptedError):
                error.hint = _NOT_RESTORED
            with suppress(OSError):
                _remove_partial_lake(pinned.root)
                mark.unlink()
                if is_new:
                    target.root.rmdir()
            raise
        with translate_os_errors(folder):
            mark.unlink()
            fsync_dir(pinned.root)
    return restored


def check_backup(store: ObjectStore, *, read_data: bool) -> Iterator[Finding]:
    """Compare every object of a backup with its hash, images by size without `read_data`. Write nothing.

    Raises the errors of `restore_backup` about the backup.
    """
    images, lost = 0, dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
        layout = LakeLayout(Path(folder))
        with _open_backup(store, layout, layout.ledger, lost) as (record, ledger, parts):
            objects = list(parts)
            if record is not None:
                objects.append(PendingUpload(CATALOG, layout.catalog, record.catalog.bytes, record.catalog.sha256))
            lost |= find_problems(store, objects, partial(is_whole, store))
            compared = len(objects) + (1 if record is None else 2)  # with record and ledger
            if ledger is not None and record is not None and record.images is not None:
                chunks = compare_images(layout, ledger, store)
                images, images_lost = find_image_damage(store, chunks, read_data=read_data)
                lost |= images_lost
    hint = f"Delete the damaged objects, then run `scanlake backup {store.base_url}`."
    yield from (error("backup", path, problem, hint) for path, problem in sorted(lost.items()))
    yield ok("backup", store.base_url, f"{pluralize(compared, 'object')}, {pluralize(images, 'image')} compared")


@contextmanager
def _open_backup(
    store: ObjectStore, layout: LakeLayout, copy: Path, lost: dict[str, str]
) -> Iterator[tuple[LatestRecord | None, Ledger | None, Sequence[PendingUpload]]]:
    """Yield the record of a backup, its ledger, copied to `copy`, and its parts. What is lost is added to `lost`.

    Without the record or the ledger the parts are the documents, of which a repair makes a lake. Raises the errors of
    `restore_backup` about the backup.
    """
    record = None
    problem: ScanlakeError = SettingsError(f"{store.base_url} has no backup.", hint="Correct the URL.")
    try:
        record, _ = read_latest(store, lake_id=None)
        lost |= {LATEST: "missing"} if record is None else {}
    except (LakeCorruptedError, PublishError) as failure:
        store.head(LATEST)  # raises if the store does not answer: then the record may be whole
        problem, lost[LATEST] = failure, "damaged"
    if record is not None:
        if record.ledger is None:
            raise problem
        path = to_ledger_path(record.ledger.sha256)
        item = PendingUpload(path, copy, record.ledger.bytes, record.ledger.sha256)
        download = partial(download_object, store, copy.parent)
        lost |= find_problems(store, [item], download) if is_own_path(path) else {LATEST: "damaged"}
        if not lost:
            copy.chmod(_LEDGER_MODE)
            with translate_sqlite_errors(copy):
                content = find_foreign_content(copy)
            if content is not None:
                raise LakeCorruptedError(f"{store.url(path)} is not a ledger of scanlake: {content}.")
            with closing(Ledger(copy)) as ledger:
                _refuse_foreign_names(ledger, store.url(path))
                parts = [(to_target_path(part.name, part.sha256), part) for part in ledger.parts()]
                files = ((path, layout.part_path(part.name), part.bytes, part.sha256) for path, part in parts)
                yield record, ledger, [PendingUpload(*file) for file in files]
            return
    documents = list_documents(store)
    if not documents:
        raise problem
    files = ((item.path, layout.part_path(name), item.bytes, sha256) for name, (item, sha256) in documents.items())
    yield record, None, [PendingUpload(*file) for file in files]


def _refuse_foreign_names(ledger: Ledger, url: str) -> None:
    """Raise `LakeCorruptedError` for a name that leads out of the folder: a purge would read or delete that file."""
    if not all(map(is_part_path, ledger.part_names())):
        raise LakeCorruptedError(f"{url} names a file that is not a part.")
    if not all(map(is_image_path, iter_paths(ledger))):
        raise LakeCorruptedError(f"{url} names a file that is not an image.")
    if ledger.count("SELECT count(*) FROM report_order WHERE pdf LIKE '%/%'"):
        raise LakeCorruptedError(f"{url} names a file that is not the PDF of a report.")


def _download_backup(store: ObjectStore, layout: LakeLayout, target: LakeLayout) -> RestoredBackup:
    """Write the parts and images, then the ledger, of a backup to the folders of an empty lake, and publish it.

    `layout` leads to the lake's folder by its descriptor, `target` by its name.
    """
    copy, lost, images = layout.root / temp_name(layout.ledger.name), dict[str, str](), dict[str, str]()
    with _open_backup(store, layout, copy, lost) as (record, ledger, parts):
        lost |= find_problems(store, parts, partial(download_object, store, layout.root))
        if ledger is not None and record is not None and record.images is not None:
            images = download_images(store, layout, ledger)
    with translate_os_errors(layout.ledger):
        for folder in sorted({part.file.parent for part in parts}):
            fsync_dir(folder)
        if ledger is not None:
            copy.rename(layout.ledger)
        fsync_dir(layout.root)
    snapshot = None if ledger is None else _publish_copy(target, is_whole=not lost)
    return RestoredBackup(snapshot, lost, images)


def _publish_copy(target: LakeLayout, *, is_whole: bool) -> SnapshotRecord | None:
    """Publish the copied ledger if the lake has every part, and return its last snapshot."""
    with Lake(target.root, doing="restore", opening=Opening.RESTORE) as lake:
        clear_pause(lake.ledger)  # a backup has not the snapshot that the lake was rolled back to
        forget_missing_images(lake.ledger, lambda path: not (target.root / path).is_file())
        return lake.republish(at=now_us(), rebuild=True) if is_whole else lake.ledger.last_snapshot()


def _is_empty_or_killed_restore(folder: Path) -> bool:
    """Return whether a folder is empty or not there, or has the mark of a restore and no files but those of one."""
    if not folder.is_dir():
        return not os.path.lexists(folder)
    entries, mark = set(map(folder.joinpath, list_names(folder))), folder / RESTORE_IN_PROGRESS
    if not entries - {mark}:
        return not entries or has_restore_mark(folder)
    is_marked = has_restore_mark(folder) and mark.stat().st_size > 0
    return is_marked and all(is_folder or path == mark or _is_own(folder, path) for path, is_folder in _walk(folder))


def _walk(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield everything below a folder, after what is in it, and whether it is a folder. Links are not followed."""
    for path in map(folder.joinpath, list_names(folder)):
        if is_folder := path.is_dir() and not path.is_symlink():
            yield from _walk(path)
        yield path, is_folder


def _is_own(folder: Path, path: Path) -> bool:
    """Return whether a restore has made a file, by its name."""
    relative = path.relative_to(folder)
    name, is_temporary = relative.as_posix(), any(is_temp_file(PurePath(part)) for part in relative.parts)
    is_named = is_part_path(name) or is_image_path(name) or _OWN_FILES.fullmatch(name) is not None
    return not path.is_symlink() and (is_named or is_temporary)


def _remove_partial_lake(folder: Path) -> None:
    """Remove every file of a restore except its mark, and the folders that are empty then."""
    with translate_os_errors(folder):
        for path, is_folder in _walk(folder):
            if is_folder:
                with suppress(OSError):
                    path.rmdir()
            elif _is_own(folder, path):
                path.unlink(missing_ok=True)
