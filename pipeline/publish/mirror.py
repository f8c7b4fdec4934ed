"""Mirror of a lake on object storage, which any DuckDB with httpfs attaches.

Parts are created first, then the snapshot's catalog; then `catalog.duckdb` and last `latest.json` are swapped. A stop
in between leaves what readers see, and the next publish completes it, because it compares with what the target has.
"""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from pipeline.atomic_files import sha256_file, temp_name
from pipeline.errors import PublishConflictError, ScanlakeError, SettingsError, StorageError
from pipeline.lake.integrity import check_parts_exist
from pipeline.lake.kept_snapshots import RetentionRules
from pipeline.lake.layout import translate_os_errors
from pipeline.lake.parts import RAW_TABLE
from pipeline.lake.snapshots import read_snapshot, require_snapshot
from pipeline.publish.image_objects import ImagesOnStore, has_other_images, list_without_images, upload_images
from pipeline.publish.image_table import add_image_view, publish_image_table
from pipeline.publish.latest import (
    LatestRecord,
    PublishedCatalog,
    PublishedImages,
    PublishedSnapshot,
    read_latest,
)
from pipeline.publish.own_objects import OwnObjects, read_run_id
from pipeline.publish.store_records import encode_record, require_lake
from pipeline.publish.target_catalog import TargetCatalogs, read_snapshot_number
from pipeline.publish.target_layout import (
    CATALOG,
    FOLDERS,
    LATEST,
    OBJECTS,
    OWNER,
    is_snapshot_path,
    snapshot_path,
    to_target_path,
)
from pipeline.publish.target_retention import SweepRule, select_remaining, sweep_target
from pipeline.publish.uploads import PendingUpload, check_same_object, upload_all
from pipeline.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from pipeline.lake.lake import Lake
    from pipeline.lake.models import PublishRecord, SnapshotRecord
    from pipeline.lake.snapshots import SnapshotContents
    from pipeline.publish.store_contract import ObjectStore, StoredObject
    from pipeline.settings import Settings

_MAX_TABLES_BYTES: Final = 64 * 1024**2
"""Size up to which a catalog of tables is uploaded with every publish. A larger one is replaced by views."""


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """`documents` and `images`: publish these, too. `retention`: which snapshots stay, by the rules of the lake."""

    documents: bool = False
    images: bool = False
    retention: RetentionRules = RetentionRules()  # noqa: RUF009 - it is frozen

    @classmethod
    def from_settings(cls, settings: Settings, *, images: bool = False) -> Self:
        """Return the options that the settings give. `images`: publish them also if publish_images is not set."""
        retention = RetentionRules.from_settings(settings)
        return cls(documents=settings.publish_documents, images=images or settings.publish_images, retention=retention)


@dataclass(frozen=True, slots=True)
class MirrorResult:
    """A publish to a mirror. `changed` is false if the target had everything.

    `images` counts the pictures on the target, None if it has none; `images_uploaded` are the new ones.
    """

    target: str
    snapshot: int
    files: int
    changed: bool
    parts: int
    uploaded: int
    uploaded_bytes: int
    deleted: int
    seconds: float
    images: int | None = None
    images_uploaded: int = 0
    images_uploaded_bytes: int = 0


def mirror_lake(
    lake: Lake,
    store: ObjectStore,
    options: MirrorOptions,
    *,
    at: int,
    number: int | None = None,
    list_protected: Callable[[str], Collection[str]] = lambda _: (),
) -> MirrorResult:
    """Publish snapshot `number` of the locked lake, the newest by default, at `at` (microseconds).

    `list_protected` returns the paths of files that Iceberg tables of a lake, given by its id, need on the target; it
    is called if there are any. Records the result in the ledger, a failure too.

    Raises `SettingsError` for a target of another lake and a snapshot that is not kept, `PublishConflictError` when
    another publisher was faster, `StorageError` for other contents under the name of a part, `PublishError`, and after
    everything else `LakeCorruptedError` for images that could not be published.
    """
    started, last = time.monotonic(), lake.ledger.last_snapshot()
    if last is None:
        raise SettingsError("The lake has no snapshot to publish.", hint="Run `scanlake sync` first.")
    check_parts_exist(lake.layout, lake.ledger.parts())
    with _record_publish(lake, store, at=at) as record:
        result, images = _Mirror(lake, store, options, at).publish(last, number or last.snapshot, list_protected)
        record["snapshot"], record["published_at"] = result.snapshot, at
        images.require_whole()
        record["catalog_written_at"] = _written_at(lake) if number in {None, last.snapshot} else None
        record["images"] = options.images
    return replace(result, seconds=round(time.monotonic() - started, 3))


@contextmanager
def _record_publish(lake: Lake, store: ObjectStore, *, at: int) -> Iterator[PublishRecord]:
    """Yield the record of this publish to complete. It is stored at the end, with the problem after a failure."""
    former = lake.ledger.properties.remote_publish
    if former is None or former["target"] != store.base_url:
        former = None
    record: PublishRecord = {
        "target": store.base_url,
        "snapshot": former["snapshot"] if former else None,
        "published_at": former["published_at"] if former else None,
        "catalog_written_at": None,
        "tried_at": at,
        "problem": None,
        "failures": 0,
    }
    try:
        yield record
    except BaseException as error:
        message = error.message if isinstance(error, ScanlakeError) else ""
        record["problem"] = message or f"The publish failed ({type(error).__name__})."
        record["failures"] = (former["failures"] if former else 0) + 1
        raise
    finally:
        lake.ledger.set_properties(remote_publish=record)


def _written_at(lake: Lake) -> int:
    catalog = lake.ledger.properties.catalog
    return catalog["written_at"] if catalog is not None else 0


class _Mirror:
    """One publish."""

    def __init__(self, lake: Lake, store: ObjectStore, options: MirrorOptions, at: int) -> None:
        self._lake, self._store, self._options, self._at = lake, store, options, at
        self._lake_id = lake.ledger.get_lake_id()
        self._folder = lake.layout.spill_dir / temp_name("publish")
        self._catalogs = TargetCatalogs(lake.layout, store, documents=options.documents)

    def publish(
        self, last: SnapshotRecord, number: int, list_protected: Callable[[str], Collection[str]]
    ) -> tuple[MirrorResult, ImagesOnStore]:
        """Make the target show snapshot `number`; `last` is the lake's newest."""
        # The catalog's version first: who replaces the catalog after this is noticed before anything is swapped.
        catalog = self._store.head(CATALOG)
        former, version = read_latest(self._store, lake_id=self._lake_id)
        source = require_snapshot(self._lake.layout, number)
        contents = read_snapshot(source)
        has_images = former is not None and former.images is not None
        listed, has_images = list_without_images(self._store, OBJECTS, FOLDERS, has_images=has_images)
        if OWNER in listed:
            require_lake(self._store, OWNER, self._lake_id, "Iceberg tables")
        own = OwnObjects(self._store, self._lake.ledger, [item.file for item in former.snapshots] if former else ())
        if former is None:
            if has_images:
                self._refuse_other_images()
            # Beside Iceberg tables of this lake there are their files, which are not looked at.
            own.require_no_others(
                item
                for path, item in listed.items()
                if OWNER not in listed or path == CATALOG or is_snapshot_path(path)
            )
            self._store.probe()
        uploads = self._list_uploads(contents, listed)
        upload_all(self._store, uploads)
        images = ImagesOnStore()
        if has_images or self._options.images:
            images = upload_images(self._lake, self._store, upload=self._options.images)
        earlier = former.snapshots if former is not None else ()
        is_complete = (
            not uploads and not images.uploaded and {CATALOG, *(item.file for item in earlier)} <= listed.keys()
        )
        if former is not None and is_complete and self._is_current(former, last, number):
            return self._to_result(former, changed=False), images
        # A sweep would delete the parts of the tables.
        protected = list_protected(self._lake_id) if OWNER in listed else ()
        with self._work_folder() as folder:
            snapshot = self._publish_snapshot(folder, source, contents, former, listed)
            file, image_table = self._choose_catalog(folder, snapshot, last, listed, images)
            published = self._swap_catalog(file, catalog, is_newest=snapshot.snapshot == last.snapshot)
        purged_at = self._lake.ledger.last_purge_at()
        rules = self._options.retention
        earlier = tuple(item for item in earlier if item.file in listed)
        remaining = select_remaining(earlier, snapshot, rules, purged_at=purged_at)
        described = None
        if images.pictures:
            whole_at = former.images.whole_at if former and former.images else 0
            is_whole = self._options.images and not images.problems
            described = PublishedImages(images.pictures, self._at if is_whole else whole_at)
        record = LatestRecord(self._lake_id, snapshot, published, remaining, described, scanlake=__version__)
        self._store.swap(LATEST, encode_record(record), version)
        deleted = sweep_target(
            self._store,
            own,
            record,
            listed.values(),
            SweepRule.from_lake(
                self._lake, at=self._at, grace_seconds=rules.seconds, documents=self._options.documents
            ),
            named={item.path for item in self._list_required(contents)} | {image_table or "", *protected},
            unnamed_images=images.unnamed,
        )
        result = replace(
            self._to_result(record, changed=True),
            parts=len(contents.parts),
            uploaded=len(uploads),
            uploaded_bytes=sum(item.bytes for item in uploads) + snapshot.bytes + published.bytes,
            deleted=deleted,
            images_uploaded=images.uploaded,
            images_uploaded_bytes=images.uploaded_bytes,
        )
        return result, images

    def _refuse_other_images(self) -> None:
        """Raise `SettingsError` if images that the lake does not name are there, which a sweep would delete."""
        if has_other_images(self._lake.layout, self._lake.ledger, self._store):
            raise SettingsError(
                f"{self._store.base_url} has images of another lake, or of a file that was purged.",
                hint="Use another target, or delete the images there.",
            )

    def _is_current(self, record: LatestRecord, last: SnapshotRecord, number: int) -> bool:
        """Return whether the target shows the lake's newest state, and the last publish has swept."""
        done = self._lake.ledger.properties.remote_publish
        written_at = _written_at(self._lake)
        return (
            number == last.snapshot == record.current.snapshot
            and record.current.run_id == last.run_id
            and record.catalog.written_at == written_at
            and done is not None
            and done["target"] == self._store.base_url
            and done["catalog_written_at"] == written_at
            and (not self._options.images or done.get("images", False))
        )

    def _to_result(self, record: LatestRecord, *, changed: bool) -> MirrorResult:
        number, files = record.current.snapshot, record.current.files
        images = record.images.pictures if record.images is not None else None
        return MirrorResult(self._store.base_url, number, files, changed, 0, 0, 0, 0, 0.0, images)

    # Parts

    def _list_required(self, contents: SnapshotContents) -> list[PendingUpload]:
        """Return the parts that the target must have."""
        layout = self._lake.layout
        return [
            PendingUpload(to_target_path(part.name, part.sha256), layout.part_path(part.name), part.bytes, part.sha256)
            for part in contents.parts
            if part.table_name != RAW_TABLE or self._options.documents
        ]

    def _list_uploads(self, contents: SnapshotContents, listed: Mapping[str, StoredObject]) -> list[PendingUpload]:
        """Return the parts that the target lacks. Raises `StorageError` if one has another size there."""
        required = self._list_required(contents)
        for item in required:
            if item.path in listed:
                check_same_object(self._store, item, listed[item.path])
        return [item for item in required if item.path not in listed]

    # Catalogs

    @contextmanager
    def _work_folder(self) -> Iterator[Path]:
        with translate_os_errors(self._folder):
            self._folder.mkdir(parents=True)
        try:
            yield self._folder
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _publish_snapshot(
        self,
        folder: Path,
        source: Path,
        contents: SnapshotContents,
        former: LatestRecord | None,
        listed: Mapping[str, StoredObject],
    ) -> PublishedSnapshot:
        """Create the snapshot's catalog unless the target has it; write it to `folder` in any case."""
        number, path = contents.snapshot, snapshot_path(contents.snapshot)
        file = folder / "snapshot.duckdb"
        documents = self._options.documents
        self._catalogs.write_views(source, file)
        record = self._lake.ledger.find_published_snapshot(number)
        new = PublishedSnapshot(
            snapshot=number,
            run_id=contents.run_id,
            commit_seq=record.commit_seq if record else 0,
            files=record.files if record else 0,
            complete=contents.complete,
            watermark=contents.watermark,
            published_at=self._at,
            file=path,
            bytes=file.stat().st_size,
            sha256=sha256_file(file),
            documents=documents,
        )
        earlier = former.snapshots if former is not None else ()
        stored = next((item for item in earlier if item.snapshot == number), None)
        if path not in listed and self._store.create(path, file, sha256=new.sha256):
            return new
        # A file of the same number has the same rows: only a later watermark, or compacted parts, make it differ.
        if stored is None:
            self._check_own_run(path, contents.run_id)
        elif stored.run_id != contents.run_id:
            raise StorageError(
                f"{self._store.url(path)} is a snapshot of another run.",
                hint="Use another target: the lake was restored from an older backup, or a copy of it publishes there.",
            )
        existing = self._store.head(path)
        size, sha256 = (existing.bytes, existing.sha256) if existing is not None else (0, "")
        if stored is not None:
            size, sha256 = stored.bytes, stored.sha256
            published_at, documents = stored.published_at, stored.documents
        else:
            published_at = self._at
        return replace(new, bytes=size, sha256=sha256, published_at=published_at, documents=documents)

    def _check_own_run(self, path: str, run_id: str) -> None:
        """Raise `PublishConflictError` if another publisher has created a snapshot that no record names yet."""
        if read_run_id(self._store, path) != run_id:
            raise PublishConflictError(
                f"{self._store.url(path)}: another publisher has created the object.",
                hint="Wait until the other publisher ends; if there is none, delete the object.",
            )

    def _choose_catalog(
        self,
        folder: Path,
        snapshot: PublishedSnapshot,
        last: SnapshotRecord,
        listed: Collection[str],
        images: ImagesOnStore,
    ) -> tuple[Path, str | None]:
        """Return the next catalog of the target, and the object of its table of images if it has one.

        It is the lake's own if that shows the snapshot and is small, else one of views.
        """
        local = self._lake.layout.catalog
        if snapshot.snapshot == last.snapshot and local.is_file() and local.stat().st_size <= _MAX_TABLES_BYTES:
            copy = folder / "catalog.duckdb"
            self._catalogs.write_tables(local, copy)
            if read_snapshot_number(copy) == snapshot.snapshot:
                return copy, None
        views, image_table = folder / "snapshot.duckdb", None
        if images.pictures:
            image_table = publish_image_table(self._lake.ledger, self._store, folder, listed)
        if image_table is not None:
            add_image_view(views, self._store, image_table)
        return views, image_table

    def _swap_catalog(self, file: Path, former: StoredObject | None, *, is_newest: bool) -> PublishedCatalog:
        sha256 = sha256_file(file)
        version = former.version if former is not None else None
        self._store.swap(CATALOG, file, version, sha256=sha256)
        return PublishedCatalog(CATALOG, file.stat().st_size, sha256, _written_at(self._lake) if is_newest else 0)
