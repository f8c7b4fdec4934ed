"""Checks of published copies, whose objects are listed and read again: that they are whole, or have no purged file."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import uuid4

import duckdb
from msgspec import Struct

from pipeline.errors import LakeCorruptedError, MissingBucketError, PublishError, ScanlakeError, SettingsError
from pipeline.lake.file_traces import read_ids_in_catalog, read_ids_in_ledger, read_ids_in_part
from pipeline.lake.ledger.format import connect_readonly, translate_sqlite_errors
from pipeline.lake.ledger.queries import LedgerQueries
from pipeline.lake.ledger.readonly import open_ledger_readonly
from pipeline.lake.ledger.targets import TargetState, read_targets
from pipeline.lake.storage.atomic_files import sha256_file
from pipeline.lake.storage.lake_lock import lock_lake_for_reading
from pipeline.output.findings import error, from_error, ok, warning
from pipeline.output.formatting import pluralize
from pipeline.publish.image_objects import compare_images
from pipeline.publish.object_store import run_side_by_side
from pipeline.publish.stores import open_store
from pipeline.publish.target import (
    CATALOG,
    LATEST,
    NOTHING_PUBLISHED,
    has_remains,
    list_target,
    read_latest,
    read_owner,
    to_ledger_path,
    to_target_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pipeline.lake.storage.layout import LakeLayout
    from pipeline.output.findings import Finding
    from pipeline.publish.image_objects import ImageChunk
    from pipeline.publish.object_store import ObjectStore
    from pipeline.publish.target import LatestRecord

Objects: TypeAlias = "list[tuple[ObjectStore, str]]"
CopyLister: TypeAlias = "Callable[[], tuple[Objects, list[str]]]"
"""Returns the objects of a copy, and the URLs of more that can have a file, whatever a reader finds in them."""
_READS_SIDE_BY_SIDE: Final = 4  # each with a file of up to one object
_HEAD_BYTES: Final = 12


class ErasedCopy(Struct, frozen=True):
    """A published copy after a purge: its number of objects, and those that have, or can have, a purged file.

    `problem` is why the copy could not be read to its end, null if it could.
    """

    name: str
    objects: int
    remains: tuple[str, ...]
    problem: str | None = None

    @property
    def is_erased(self) -> bool:
        """Whether the copy was read, and has nothing of the files."""
        return self.problem is None and not self.remains


def read_copies(
    copies: Mapping[str, CopyLister], file_ids: Collection[int], columns: Sequence[str]
) -> tuple[ErasedCopy, ...]:
    """Read every object of published copies again, one that is of two copies once. `copies` are by their names.

    `columns` are those of `id_columns`.
    """
    has_files = partial(_has_files, frozenset(file_ids), columns)
    has_file, erased = dict[str, bool](), list[ErasedCopy]()
    for name, list_copy in copies.items():
        try:
            objects, unknown = list_copy()
            unread = [(store, path) for store, path in objects if store.url(path) not in has_file]
            with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
                results = run_side_by_side(partial(has_files, Path(folder)), unread, threads=_READS_SIDE_BY_SIDE)
        except ScanlakeError as error:
            erased.append(ErasedCopy(name, 0, (), error.message))
            continue
        has_file.update((store.url(path), result) for (store, path), result in zip(unread, results, strict=True))
        remains = {url for store, path in objects if has_file[url := store.url(path)]}
        erased.append(ErasedCopy(name, len(objects), tuple(sorted(remains.union(unknown)))))
    return tuple(erased)


def list_mirror(layout: LakeLayout, store: ObjectStore) -> tuple[Objects, list[str]]:
    """Return the objects of a mirror, and the URLs of the images that no row of the lake names.

    Raises `PublishError` if there is none: a folder that is not mounted is empty, too.
    """
    with open_ledger_readonly(layout) as ledger:
        record, _ = read_latest(store, lake_id=ledger.properties.lake_id)
        if record is None:
            raise PublishError(NOTHING_PUBLISHED)
        listed = list_target(store)
        images = [store.url(item.path) for chunk in compare_images(layout, ledger, store) for item in chunk.unnamed]
    return [(store, path) for path in listed], images


def find_earlier_targets(layout: LakeLayout, names: Collection[str]) -> Iterator[ErasedCopy]:
    """Yield each target, but those of `names`, that has the lake as it was before a purge, or cannot be read."""
    with open_ledger_readonly(layout) as ledger:
        properties = ledger.properties
    for url, state in read_targets(properties).items():
        root, _, record = url.rpartition("/")
        name = root if record == LATEST else name_tables(root)
        # Tables whose place their catalog chose stay there, wherever new ones come: they are the published ones.
        is_other = root and state is not TargetState.PUBLISHED and name not in names
        if is_other and (problem := _find_problem(root, record, properties.lake_id)):
            yield ErasedCopy(name, 0, (), problem)


def name_tables(location: str) -> str:
    """Return the name of the Iceberg tables at a location; "" is one that their catalog chose."""
    return f"Iceberg tables at {location}" if location else "Iceberg tables"


def _find_problem(root: str, record: str, lake_id: str | None) -> str | None:
    """Return why an earlier target is not erased, None if nothing of the lake is there."""
    try:
        owner = read_owner(store := open_store(root), record)
        has_lake = has_remains(store) if owner is None and record == LATEST else owner == lake_id
    except MissingBucketError:
        return None
    except ScanlakeError as error:
        return error.message
    return "It is an earlier target: publish there again, or delete it." if has_lake else None


def _has_files(file_ids: frozenset[int], columns: Sequence[str], folder: Path, stored: tuple[ObjectStore, str]) -> bool:
    """Return whether an object has one of the files, or cannot be read."""
    store, path = stored
    file = folder / uuid4().hex
    store.download(path, file)
    try:
        with file.open("rb") as content:
            head = content.read(_HEAD_BYTES)
        if head.startswith(b"PAR1"):
            return bool(read_ids_in_part(file, file_ids, columns))
        if head.startswith(b"SQLite"):
            return bool(read_ids_in_ledger(file, file_ids))
        return head.endswith(b"DUCK") and bool(read_ids_in_catalog(file, file_ids, columns))
    except (LakeCorruptedError, duckdb.Error, sqlite3.Error, UnicodeDecodeError):
        return True
    finally:
        file.unlink()


# Comparison with what was published


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

    The catalog is compared by SHA-256, other objects by size, with `read_data` by SHA-256; each is then read.
    Raises `SettingsError` if nothing is published or another lake is, and `PublishError`.
    """
    with lock_lake_for_reading(layout), open_ledger_readonly(layout) as ledger:
        record, _ = read_latest(store, lake_id=ledger.properties.lake_id)
        if record is None:
            raise SettingsError(
                f"{store.base_url} has no published lake.", hint=f"Run `scanlake publish --to {store.base_url}`."
            )
        objects, damage = _compare_objects(store, record, read_data=read_data)
        compared = [pluralize(objects, "object")]
        if record.images is not None:
            chunks = compare_images(layout, ledger, store, until=record.catalog.written_at)
            images, lost = find_image_damage(store, chunks, read_data=read_data)
            compared.append(pluralize(images, "image"))
            damage |= lost
        hint = f"Delete the damaged objects, then run `scanlake publish --to {store.base_url}`."
        yield from (error("target", subject, problem, hint) for subject, problem in damage.items())
        yield ok("target", store.base_url, f"snapshot {record.catalog.snapshot}: {', '.join(compared)} compared")
        if (last := ledger.last_snapshot()) is not None and record.catalog.snapshot < last.snapshot:
            problem = f"has snapshot {record.catalog.snapshot}, the lake has {last.snapshot}"
            yield warning("target", store.base_url, problem, f"Run `scanlake publish --to {store.base_url}`.")


def _compare_objects(store: ObjectStore, record: LatestRecord, *, read_data: bool) -> tuple[int, dict[str, str]]:
    """Compare the catalog with the record, and the objects of a backup with the ledger and the parts that it names.

    Return the number of objects, and the problem of each that is damaged.
    """
    listed = list_target(store)
    if CATALOG not in listed:
        return 1, {CATALOG: "missing"}
    expected, damage = list[tuple[str, int, str]](), {}
    with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
        file = Path(folder, CATALOG)
        store.download(CATALOG, file)
        if sha256_file(file) != record.catalog.sha256:
            return 1, {CATALOG: "not what was published (sha256 differs)"}
        if record.ledger is not None:
            ledger = record.ledger
            expected.append((to_ledger_path(ledger.sha256), ledger.bytes, ledger.sha256))
            copy = Path(folder, "ledger.sqlite")
            if expected[0][0] in listed:
                store.download(expected[0][0], copy)
                with translate_sqlite_errors(copy), closing(connect_readonly(copy)) as db:
                    db.row_factory = sqlite3.Row
                    parts = LedgerQueries(db, copy).parts()
                expected += ((to_target_path(part.name, part.sha256), part.bytes, part.sha256) for part in parts)
    for path, size, sha256 in expected:
        if path not in listed:
            damage[path] = "missing"
        elif listed[path].bytes != size:
            damage[path] = f"{listed[path].bytes:,} bytes instead of {size:,}"
        elif read_data and store.hash_content(path) != sha256:
            damage[path] = "sha256 differs"
    return len(expected) + 1, damage


def find_image_damage(
    store: ObjectStore, chunks: Iterable[ImageChunk], *, read_data: bool
) -> tuple[int, dict[str, str]]:
    """Compare the images on the target with the rows of the lake that its catalog can have."""
    images, damage = 0, dict[str, str]()
    for chunk in chunks:
        images += len(chunk.images) - len(chunk.missing)
        damage |= {item.path: "missing" for item in chunk.missing}
        damage |= dict(chunk.list_differences())
        for path, image in chunk.images.items() if read_data else ():
            is_readable = path in chunk.objects and path not in damage
            if is_readable and store.hash_content(path) != image.sha256:
                damage[path] = "sha256 differs"
    return images, damage
