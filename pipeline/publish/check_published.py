"""Comparison of a target with what was published there: catalog, documents, images."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pipeline.atomic_files import sha256_file
from pipeline.errors import ScanlakeError, SettingsError
from pipeline.findings import error, from_error, ok, warning
from pipeline.formatting import pluralize
from pipeline.lake.duckdb_files import read_database
from pipeline.lake.layout import lock_lake_for_reading
from pipeline.lake.physical_tables import read_parts
from pipeline.lake.reader import open_ledger_readonly
from pipeline.publish.image_objects import compare_images
from pipeline.publish.store_records import read_latest
from pipeline.publish.stores import open_store
from pipeline.publish.target_layout import CATALOG, to_target_path
from pipeline.publish.uploads import list_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pipeline.findings import Finding
    from pipeline.lake.layout import LakeLayout
    from pipeline.lake.ledger_queries import LedgerQueries
    from pipeline.publish.store_contract import ObjectStore, StoredObject
    from pipeline.publish.store_records import LatestRecord

_Damage: TypeAlias = "tuple[str, str]"


def check_target(layout: LakeLayout, url: str) -> Iterator[Finding]:
    """Yield a finding for the record of a target: whether it can be read, and which snapshot it shows."""
    try:
        with open_ledger_readonly(layout) as ledger:
            lake_id = ledger.properties.lake_id
    except ScanlakeError:
        lake_id = None  # another check names what is wrong with the lake
    try:
        record, _ = read_latest(open_store(url), lake_id=lake_id)
    except ScanlakeError as failure:
        yield from_error("target", url, failure)
        return
    yield ok("target", url, "nothing published yet" if record is None else f"has snapshot {record.catalog.snapshot}")


def check_published(layout: LakeLayout, store: ObjectStore, *, read_data: bool) -> Iterator[Finding]:
    """Compare catalog, documents and images of the published snapshot with what was published. Write nothing.

    The catalog is compared by SHA-256, other objects by size, with `read_data` by SHA-256; each is then downloaded.
    Raises `SettingsError` if nothing is published or another lake is, and `PublishError`.
    """
    with lock_lake_for_reading(layout), open_ledger_readonly(layout) as ledger:
        record, _ = read_latest(store, lake_id=ledger.properties.lake_id)
        if record is None:
            raise SettingsError(
                f"{store.base_url} has no published lake.", hint=f"Run `scanlake publish --to {store.base_url}`."
            )
        with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
            check = _Check(layout, ledger, store, record, Path(folder))
            for subject, problem in check.find_damage(read_data=read_data):
                hint = f"Delete the damaged objects, then run `scanlake publish --to {store.base_url}`."
                yield error("target", subject, problem, hint)
        yield ok("target", store.base_url, f"snapshot {record.catalog.snapshot}: {check.describe()}")
        if (last := ledger.last_snapshot()) is not None and record.catalog.snapshot < last.snapshot:
            problem = f"has snapshot {record.catalog.snapshot}, the lake has {last.snapshot}"
            yield warning("target", store.base_url, problem, f"Run `scanlake publish --to {store.base_url}`.")


class _Check:
    """A comparison of one published snapshot. Damage is a subject on the target, and its problem."""

    def __init__(
        self, layout: LakeLayout, ledger: LedgerQueries, store: ObjectStore, record: LatestRecord, folder: Path
    ) -> None:
        self._layout, self._ledger, self._store = layout, ledger, store
        self._record, self._folder = record, folder
        self._objects, self._images = 0, 0

    def describe(self) -> str:
        """Return what was compared."""
        counts = [pluralize(self._objects, "object")]
        counts += [pluralize(self._images, "image")] if self._images else []
        return f"{', '.join(counts)} compared"

    def find_damage(self, *, read_data: bool) -> Iterator[_Damage]:
        yield from self._check_catalog(list_target(self._store), read_data=read_data)
        if self._record.images is not None:
            yield from self._check_images(self._record.images.whole_at, read_data=read_data)

    def _check_catalog(self, listed: Mapping[str, StoredObject], *, read_data: bool) -> Iterator[_Damage]:
        """Compare the catalog with the record, and the objects of a backup with the parts that it names."""
        self._objects = 1
        if CATALOG not in listed:
            yield CATALOG, "missing"
            return
        file = self._folder / CATALOG
        self._store.download(CATALOG, file)
        if sha256_file(file) != self._record.catalog.sha256:
            yield CATALOG, "not what was published (sha256 differs)"
            return
        with read_database(file) as db:
            parts = list(read_parts(db)) if self._record.ledger is not None else []
        self._objects += len(parts)
        for part in parts:
            path = to_target_path(part.name, part.sha256)
            if path not in listed:
                yield path, "missing"
            elif listed[path].bytes != part.bytes:
                yield path, f"{listed[path].bytes:,} bytes instead of {part.bytes:,}"
            elif read_data and self._download(path) != part.sha256:
                yield path, "sha256 differs"

    def _check_images(self, whole_at: int, *, read_data: bool) -> Iterator[_Damage]:
        """Compare the images on the target with the rows of the lake. Newer images need not be there."""
        for chunk in compare_images(self._layout, self._ledger, self._store):
            self._images += len(chunk.pictures) - len(chunk.missing)
            yield from ((item.path, "missing") for item in chunk.missing if item.fetched_at <= whole_at)
            differing = dict(chunk.list_differences())
            yield from differing.items()
            for path, picture in chunk.pictures.items() if read_data else ():
                if path in chunk.objects and path not in differing and self._download(path) != picture.sha256:
                    yield path, "sha256 differs"

    def _download(self, path: str) -> str:
        """Return the SHA-256 of an object."""
        file = self._folder / "object"
        self._store.download(path, file)
        try:
            return sha256_file(file)
        finally:
            file.unlink()
