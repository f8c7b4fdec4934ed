"""Backup of a lake in a folder or on object storage: its parts and its ledger, from which all else is built."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pipeline.atomic_files import sha256_file, temp_name
from pipeline.errors import SettingsError
from pipeline.lake.image_records import forget_missing_pictures
from pipeline.lake.integrity import check_parts_exist
from pipeline.lake.lake_folder import require_outside_lakes
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.ledger import Ledger
from pipeline.publish.image_objects import (
    ImagesOnStore,
    has_other_images,
    list_without_images,
    require_no_other_images,
    upload_images,
)
from pipeline.publish.local_store import LocalStore
from pipeline.publish.own_objects import OwnObjects
from pipeline.publish.store_records import FORMAT, encode_record, read_record, refuse_other_lake
from pipeline.publish.target_layout import BACKUP, DOCUMENTS_PREFIX, PROBE_PREFIX
from pipeline.publish.uploads import PendingUpload, create_object, upload_all

if TYPE_CHECKING:
    from pipeline.lake.lake import Lake
    from pipeline.lake.models import Part
    from pipeline.publish.store_contract import ObjectStore

_LEDGERS: Final = "ledgers"
_TABLES: Final = "tables"
_FOLDERS: Final = (DOCUMENTS_PREFIX, _TABLES, _LEDGERS, PROBE_PREFIX)
_LEDGER: Final = re.compile(rf"{_LEDGERS}/[0-9a-f]+\.sqlite")
_HASH_CHARS: Final = 16


class BackupRecord(Struct, frozen=True):
    """Content of `backup.json`: which lake the backup has, the object with its ledger, and the number of images."""

    lake_id: str
    files: int
    ledger: str
    ledger_sha256: str
    backed_up_at: int
    images: int = 0
    format: int = FORMAT
    ledger_bytes: int | None = None


class BackupResult(Struct, frozen=True):
    """A backup: what the lake has, and what of it the target lacked before. `images` is null without --with-images."""

    target: str
    files: int
    parts: int
    bytes: int
    copied: int
    copied_bytes: int
    images: int | None
    images_copied: int
    images_copied_bytes: int


def upload_backup(lake: Lake, store: ObjectStore, *, at: int, with_images: bool = False) -> BackupResult:
    """Back up the locked lake below the store's URL, at `at` (microseconds). What is there is not uploaded again.

    The former backup is valid until `backup.json` is swapped; then parts that only it names are deleted, and images
    that the lake no longer has. Raises `SettingsError` for a target with other contents, `PublishConflictError` if
    another backup was faster, `LakeCorruptedError` if a part is missing or damaged, or, after everything else is
    backed up, an image, and `PublishError`.
    """
    if isinstance(store, LocalStore):
        require_outside_lakes(store.root, str(store.root), lake.layout.root)
    parts = lake.ledger.parts()
    check_parts_exist(lake.layout, parts)
    lake_id = lake.ledger.get_lake_id()
    former, version = read_record(store, BACKUP, BackupRecord)
    if former is not None:
        refuse_other_lake(store, former.lake_id, lake_id, "the backup")
    has_images = former is not None and former.images > 0
    listed, has_images = list_without_images(store, (), _FOLDERS, has_images=has_images)
    own = OwnObjects(store, lake.ledger)
    if former is None:
        if has_images and has_other_images(lake.layout, lake.ledger, store):
            raise SettingsError(f"{store.base_url} has other objects: images.", hint="Use a folder or URL of its own.")
        own.require_no_others(listed, lake_id)
        store.probe()
    elif with_images and not has_images:
        require_no_other_images(store, listed)
    missing = [
        PendingUpload(backup_path(part), lake.layout.part_path(part.name), part.bytes, part.sha256)
        for part in parts
        if backup_path(part) not in listed
    ]
    upload_all(store, missing)
    images = ImagesOnStore()
    if has_images or with_images:
        images = upload_images(lake, store, upload=with_images)
    record = _upload_ledger(lake, store, lake_id, at, images)
    store.swap(BACKUP, encode_record(record), version)
    names = {backup_path(part) for part in parts} | {BACKUP, record.ledger}
    own.delete([item for path, item in listed.items() if path not in names])
    own.delete(images.unnamed)
    images.require_whole()
    return BackupResult(
        store.base_url,
        record.files,
        len(parts),
        sum(part.bytes for part in parts),
        copied=len(missing),
        copied_bytes=sum(item.bytes for item in missing),
        images=images.pictures if with_images else None,
        images_copied=images.uploaded,
        images_copied_bytes=images.uploaded_bytes,
    )


def _upload_ledger(lake: Lake, store: ObjectStore, lake_id: str, at: int, images: ImagesOnStore) -> BackupRecord:
    """Upload a copy of the ledger, without the rows of images that the backup does not have."""
    copy = lake.layout.spill_dir / temp_name("backup.sqlite")
    with translate_os_errors(copy):
        copy.parent.mkdir(exist_ok=True)
    try:
        lake.ledger.copy_to(copy)
        with closing(Ledger(copy)) as copied:
            forget_missing_pictures(copied, images.absent.__contains__)
        sha256, size = sha256_file(copy), copy.stat().st_size
        path = f"{_LEDGERS}/{sha256}.sqlite"
        create_object(store, PendingUpload(path, copy, size, sha256))
    finally:
        copy.unlink(missing_ok=True)
    return BackupRecord(lake_id, lake.ledger.count_files(), path, sha256, at, images.pictures, ledger_bytes=size)


def backup_path(part: Part) -> str:
    """Return the path of a part's object. It has the hash, because a repair can write a part again under its name."""
    return f"{part.name}.{part.sha256[:_HASH_CHARS]}"


def is_ledger_path(path: str) -> bool:
    """Return whether an object has the name of the ledger in a backup."""
    return _LEDGER.fullmatch(path) is not None
