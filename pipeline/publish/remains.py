"""Proof that a published copy has nothing of purged files: every object of it is listed, and read again."""

from __future__ import annotations

import sqlite3
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import uuid4

import duckdb
from msgspec import Struct

from pipeline.errors import LakeCorruptedError, MissingBucketError, PublishError, ScanlakeError
from pipeline.lake.purge import read_ids_in_catalog, read_ids_in_ledger, read_ids_in_part
from pipeline.lake.reader import open_ledger_readonly
from pipeline.publish.image_objects import compare_images
from pipeline.publish.store_records import read_latest, read_owner
from pipeline.publish.stores import open_store
from pipeline.publish.target_layout import CATALOG, LATEST
from pipeline.publish.uploads import list_target, run_side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pipeline.lake.layout import LakeLayout
    from pipeline.publish.store_contract import ObjectStore

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
    has_file: dict[str, bool] = {}
    has_files = partial(_has_files, frozenset(file_ids), columns)
    return tuple(_read_copy(name, list_copy, has_files, has_file) for name, list_copy in copies.items())


def _read_copy(
    name: str,
    list_copy: CopyLister,
    has_files: Callable[[Path, tuple[ObjectStore, str]], bool],
    has_file: dict[str, bool],
) -> ErasedCopy:
    """Read one copy. `has_file` has what was read before, by URL."""
    try:
        objects, unknown = list_copy()
        unread = [(store, path) for store, path in objects if store.url(path) not in has_file]
        with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
            results = run_side_by_side(partial(has_files, Path(folder)), unread, threads=_READS_SIDE_BY_SIDE)
    except ScanlakeError as error:
        return ErasedCopy(name, 0, (), error.message)
    has_file.update((store.url(path), result) for (store, path), result in zip(unread, results, strict=True))
    remains = {url for store, path in objects if has_file[url := store.url(path)]}
    return ErasedCopy(name, len(objects), tuple(sorted(remains.union(unknown))))


def list_mirror(layout: LakeLayout, store: ObjectStore) -> tuple[Objects, list[str]]:
    """Return the objects of a mirror, and the URLs of the images that no row of the lake names.

    Raises `PublishError` if there is none: a folder that is not mounted is empty, too.
    """
    with open_ledger_readonly(layout) as ledger:
        record, _ = read_latest(store, lake_id=ledger.properties.lake_id)
        if record is None:
            raise PublishError(f"{store.base_url} has no published lake.")
        listed = list_target(store)
        images = [store.url(item.path) for chunk in compare_images(layout, ledger, store) for item in chunk.unnamed]
    return [(store, path) for path in listed], images


def find_earlier_targets(layout: LakeLayout, names: Collection[str]) -> Iterator[ErasedCopy]:
    """Yield each target, but those of `names`, that has the lake as it was before a purge, or cannot be read."""
    with open_ledger_readonly(layout) as ledger:
        properties = ledger.properties
    for url, is_erased in properties.published_targets.items():
        root, _, record = url.rpartition("/")
        name = root if record == LATEST else name_tables(root)
        is_other = not is_erased and name not in names
        if is_other and (problem := _find_problem(root, record, properties.lake_id)):
            yield ErasedCopy(name, 0, (), problem)


def name_tables(location: str) -> str:
    """Return the name of the Iceberg tables at a location; "" is one that their catalog chose."""
    return f"Iceberg tables at {location}" if location else "Iceberg tables"


def _find_problem(root: str, record: str, lake_id: str | None) -> str | None:
    """Return why an earlier target is not erased, None if nothing of the lake is there."""
    try:
        owner = read_owner(store := open_store(root), record)
        # Without a record, the catalog can be of a first publish that was killed.
        has_lake = store.head(CATALOG) is not None if owner is None and record == LATEST else owner == lake_id
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
