"""Mirror of a lake in a folder or on object storage: its catalog, which any DuckDB attaches, and more on request.

With the parts and a copy of the ledger it is a backup, and stays one; so does a target with images. Parts, images and
ledger are created first; then `catalog.duckdb` and last `latest.json` are swapped. A stop in between leaves what
readers and a restore see, and the next publish completes it, because it compares with what the target has.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from pipeline import __version__
from pipeline.errors import LakeCorruptedError, ScanlakeError, SettingsError
from pipeline.lake.catalog.catalog import is_as_published
from pipeline.lake.ledger.folder import require_outside_lakes
from pipeline.lake.ledger.targets import note_published, note_target, refuse_lost_target
from pipeline.lake.storage.atomic_files import sha256_file, temp_name
from pipeline.lake.storage.layout import is_image_path, translate_os_errors
from pipeline.lake.storage.parts import check_parts_exist
from pipeline.publish.image_objects import ImagesOnStore, compare_images, has_images_on, upload_images
from pipeline.publish.object_store import Comparison, PendingUpload, create_object, replace_object, upload_all
from pipeline.publish.stores import LocalStore
from pipeline.publish.target import (
    CATALOG,
    LATEST,
    LEDGERS_PREFIX,
    OWNER,
    TEMP_FOLDERS,
    LatestRecord,
    PublishedCatalog,
    PublishedImages,
    PublishedLedger,
    SweepRule,
    delete_own_objects,
    encode_record,
    is_own_object,
    list_own_paths,
    list_target,
    note_backup,
    read_latest,
    read_shown_snapshot,
    require_lake,
    require_own_objects,
    require_own_snapshot,
    to_ledger_path,
    to_target_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.queries import PublishRecord, SnapshotRecord
    from pipeline.publish.object_store import ObjectStore, StoredObject


class MirrorOptions(Struct, frozen=True):
    """`images`: publish these, too, as to every target that has some.

    `backup`: publish all that a restore needs, and compare a share of what is there. What the lake no longer has stays
    for `grace_seconds`.
    """

    images: bool = False
    backup: bool = False
    grace_seconds: float = 0.0


class MirrorResult(Struct, frozen=True):
    """A publish to a mirror. `changed` is false if the target had everything.

    `uploaded` and `deleted` count objects, of which a backup has read and `compared` some, and `replaced` the damaged.
    `images` counts the images on the target, None if it has none; `images_uploaded` are the new ones.
    """

    target: str
    snapshot: int
    files: int
    changed: bool
    uploaded: int
    uploaded_bytes: int
    deleted: int
    seconds: float
    compared: int
    replaced: int
    images: int | None = None
    images_uploaded: int = 0
    images_uploaded_bytes: int = 0


def complete_catalog(lake: Lake, *, at: int) -> None:
    """Let the locked lake's catalog have every commit of a run that was killed, and be the file that was published."""
    is_killed = lake.needs_publish or lake.ledger.properties.purge_in_progress is not None
    if is_killed or not is_as_published(lake.layout, lake.ledger.properties.catalog):
        lake.republish(at=at)


def mirror_lake(lake: Lake, store: ObjectStore, options: MirrorOptions, *, at: int) -> MirrorResult:
    """Publish the newest snapshot of the locked lake at `at` (microseconds), and record the result in the ledger.

    Raises `SettingsError` for a target of another lake, `PublishConflictError` when another publisher was faster,
    `ForeignObjectError` for other contents under the name of an object, and for a snapshot that the lake has never had,
    `LakeCorruptedError` for a damaged catalog, `PublishError`; after everything else `LakeCorruptedError` for images
    that could not be published.
    """
    started, last = time.monotonic(), lake.ledger.last_snapshot()
    if last is None:
        raise SettingsError("The lake has no snapshot to publish.", hint="Run `scanlake sync` first.")
    if isinstance(store, LocalStore):
        require_outside_lakes(store.root, str(store.root), lake.layout.root)
    check_parts_exist(lake.layout, lake.ledger.parts())
    if options.backup:
        note_backup(lake.ledger, store.base_url, is_whole=False)
    with _record_publish(lake, store, is_kept=not options.backup) as record:
        result, images = _Mirror(lake, store, options, last, at).publish()
        record["snapshot"], record["published_at"] = result.snapshot, at
        note_published(lake.ledger, store.url(LATEST))
        if options.backup:
            note_backup(lake.ledger, store.base_url, is_whole=True)
        images.require_whole()
    return replace(result, seconds=round(time.monotonic() - started, 3))


@contextmanager
def _record_publish(lake: Lake, store: ObjectStore, *, is_kept: bool) -> Iterator[PublishRecord]:
    """Yield the record of this publish to complete. It is stored at the end, with the problem after a failure.

    A backup keeps none: its place is not the target of the next publish and purge.
    """
    former = lake.ledger.properties.remote_publish
    record: PublishRecord = {
        "target": store.base_url,
        "snapshot": None,
        "published_at": None,
        "problem": None,
        "failures": 0,
    }
    if former is not None and former["target"] == store.base_url:
        record = {**former, "problem": None}
    failures, record["failures"] = record["failures"], 0
    try:
        yield record
    except BaseException as error:
        message = error.message if isinstance(error, ScanlakeError) else ""
        record["problem"] = message or f"The publish failed ({type(error).__name__})."
        record["failures"] = failures + 1
        raise
    finally:
        if is_kept:
            lake.ledger.set_properties(remote_publish=record)


def _written_at(lake: Lake) -> int:
    catalog = lake.ledger.properties.catalog
    return catalog["written_at"] if catalog is not None else 0


class _Contents(Struct, frozen=True):
    """What is at a target before a publish: its catalog, its record with the version of it, and other objects."""

    catalog: StoredObject | None
    former: LatestRecord | None
    version: str | None
    objects: Mapping[str, StoredObject]
    has_images: bool

    @property
    def is_backup(self) -> bool:
        """Whether it has all that a restore needs; without its record a backup is known by its ledger."""
        if self.former is not None:
            return self.former.ledger is not None
        return any(path.startswith(f"{LEDGERS_PREFIX}/") for path in list_own_paths(self.objects))


class _Mirror:
    """One publish of snapshot `last`."""

    def __init__(self, lake: Lake, store: ObjectStore, options: MirrorOptions, last: SnapshotRecord, at: int) -> None:
        self._lake, self._store, self._options, self._last, self._at = lake, store, options, last, at
        self._lake_id = lake.ledger.get_lake_id()
        self._comparison = Comparison()

    def publish(self) -> tuple[MirrorResult, ImagesOnStore]:
        """Make the target show the newest snapshot."""
        contents, options = self._look(), self._options
        former_share = contents.former.compared_share if contents.former else -1
        if options.backup:
            self._comparison = Comparison.after(former_share)
        else:
            note_target(self._lake.ledger, self._store.url(LATEST))
        is_backup = options.backup or contents.is_backup
        uploads = self._upload_missing(contents.objects) if is_backup else []
        images = ImagesOnStore()
        if contents.has_images or options.images:
            images = upload_images(self._lake, self._store, self._comparison)
        ledger = self._upload_ledger() if is_backup else None
        unneeded = self._list_unneeded(contents, ledger, images)
        current = self._find_current(contents)
        is_equal = current is not None and current.ledger == ledger
        is_changed = bool(not is_equal or uploads or self._comparison.damaged or images.uploaded or unneeded)
        if current is not None and not (is_changed or options.backup):
            return self._to_result(current, changed=False), images
        written = self._swap_catalog(contents.catalog) if current is None else current.catalog
        share = self._comparison.share if options.backup else former_share
        published = PublishedImages(images.count) if images.count else None
        record = LatestRecord(self._lake_id, written, published, ledger, share, scanlake=__version__)
        self._store.swap(LATEST, encode_record(record), contents.version)
        self._store.remove_temp_files(TEMP_FOLDERS)  # until the first record some can be of another lake's publish
        result = replace(
            self._to_result(record, changed=is_changed),
            uploaded=len(uploads) + (current is None),
            uploaded_bytes=sum(item.bytes for item in uploads) + (written.bytes if current is None else 0),
            deleted=delete_own_objects(self._store, unneeded, partial(is_own_object, self._store, self._lake.ledger)),
            images_uploaded=images.uploaded,
            images_uploaded_bytes=images.uploaded_bytes,
        )
        return result, images

    def _look(self) -> _Contents:
        """Return what is at the target. Raises the errors of `mirror_lake` for what is not of this lake."""
        # The catalog's version first: who replaces the catalog after this is noticed before anything is swapped.
        catalog = self._store.head(CATALOG)
        former, version = read_latest(self._store, lake_id=self._lake_id)
        require_lake(self._store, OWNER, self._lake_id, "Iceberg tables")
        if former is None:
            if catalog is None:
                refuse_lost_target(self._lake.ledger, self._store.url(LATEST))
            return _Contents(catalog, former, version, *self._list_own_place())
        state = (former.catalog.snapshot, former.catalog.run_id)
        require_own_snapshot(self._lake.ledger, state, self._store.url(LATEST))
        listed = list_target(self._store)
        has_images = former.images is not None or has_images_on(self._store, upload=self._options.images)
        self._store.remove_temp_files(TEMP_FOLDERS)
        return _Contents(catalog, former, version, listed, has_images)

    def _list_own_place(self) -> tuple[dict[str, StoredObject], bool]:
        """Return the objects of a target without a record, but for its images, and whether it has images.

        Raises `SettingsError` if it has objects of others, and `PublishError` if it ignores conditions.
        """
        everything = {item.path: item for item in self._store.list()}
        listed = {path: item for path, item in everything.items() if not is_image_path(path)}
        has_images = len(listed) < len(everything)
        compared = compare_images(self._lake.layout, self._lake.ledger, self._store) if has_images else ()
        if any(chunk.unnamed for chunk in compared):  # they must not go
            raise SettingsError(
                f"{self._store.base_url} has images of another lake, or of a file that was purged.",
                hint="Use another target, or delete the images there.",
            )
        require_own_objects(self._store, self._lake.ledger, listed, self._lake_id)
        self._store.probe()
        return listed, has_images

    def _to_result(self, record: LatestRecord, *, changed: bool) -> MirrorResult:
        images = record.images.count if record.images is not None else None
        compared, damaged = self._comparison.compared, self._comparison.damaged
        number, files = record.catalog.snapshot, record.catalog.files
        return MirrorResult(self._store.base_url, number, files, changed, 0, 0, 0, 0.0, compared, damaged, images)

    # Parts and images

    def _upload_missing(self, listed: Mapping[str, StoredObject]) -> list[PendingUpload]:
        """Upload the parts that the target lacks, and return them.

        One that has another size there is replaced, and of those that are due each that is damaged.
        """
        missing, to_compare = list[PendingUpload](), list[PendingUpload]()
        for part in self._lake.ledger.parts():
            path, file = to_target_path(part.name, part.sha256), self._lake.layout.part_path(part.name)
            upload = PendingUpload(path, file, part.bytes, part.sha256)
            if path not in listed:
                missing.append(upload)
            elif listed[path].bytes != part.bytes or self._comparison.is_due(part.sha256):
                to_compare.append(upload)
        upload_all(self._store, missing)
        for upload in self._comparison.find_damaged(self._store, to_compare):
            replace_object(self._store, upload)
        return missing

    def _upload_ledger(self) -> PublishedLedger:
        """Upload a copy of the ledger. A restore forgets the images that it names and the target does not have."""
        copy = self._lake.layout.spill_dir / temp_name("backup.sqlite")
        with translate_os_errors(copy):
            copy.parent.mkdir(exist_ok=True)
        try:
            self._lake.ledger.copy_to(copy)
            sha256, size = sha256_file(copy), copy.stat().st_size
            upload = PendingUpload(to_ledger_path(sha256), copy, size, sha256)
            if self._store.head(upload.path) is None:
                create_object(self._store, upload)
            elif self._comparison.find_damaged(self._store, [upload]):
                replace_object(self._store, upload)
        finally:
            copy.unlink(missing_ok=True)
        return PublishedLedger(size, sha256)

    def _list_unneeded(
        self, contents: _Contents, ledger: PublishedLedger | None, images: ImagesOnStore
    ) -> list[StoredObject]:
        """Return the objects of the mirror that nothing needs any more. Iceberg tables have a sweep of their own."""
        published_at = contents.former.catalog.published_at if contents.former else 0
        has_purged = published_at < (self._lake.ledger.last_purge_at() or 0)
        grace_seconds = self._options.grace_seconds
        rule = SweepRule.from_lake(self._lake, at=self._at, grace_seconds=grace_seconds, has_purged=has_purged)
        needed = set() if ledger is None else {to_ledger_path(ledger.sha256)}
        old = [contents.objects[path] for path in sorted(list_own_paths(contents.objects) - needed)]
        return [item for item in [*old, *images.unnamed] if rule.permits(item, item.path)]

    # Catalog

    def _find_current(self, contents: _Contents) -> LatestRecord | None:
        """Return the former record if the target has the lake's catalog, which is read if it is due."""
        former = contents.former
        if former is None or contents.catalog is None or former.catalog.written_at != _written_at(self._lake):
            return None
        sha256, file = former.catalog.sha256, self._lake.layout.catalog
        is_due, upload = self._comparison.is_due(sha256), PendingUpload(CATALOG, file, former.catalog.bytes, sha256)
        return None if is_due and self._comparison.find_damaged(self._store, [upload]) else former

    def _swap_catalog(self, former: StoredObject | None) -> PublishedCatalog:
        """Replace the target's catalog by the lake's. Raises `LakeCorruptedError` if that is not of its snapshot."""
        file, last = self._lake.layout.catalog, self._last
        # A file that rots in place has the inode, the size and the time by which `complete_catalog` knows it.
        if read_shown_snapshot(file) != (last.snapshot, last.run_id):
            raise LakeCorruptedError(f"{file.name} is damaged; it was not published.", hint="Run `scanlake repair`.")
        sha256 = sha256_file(file)
        self._store.swap(CATALOG, file, former.version if former is not None else None, sha256=sha256)
        return PublishedCatalog(
            snapshot=last.snapshot,
            run_id=last.run_id,
            files=last.files,
            complete=last.complete,
            watermark=last.watermark,
            published_at=self._at,
            written_at=_written_at(self._lake),
            bytes=file.stat().st_size,
            sha256=sha256,
        )
