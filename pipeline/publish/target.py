"""A target of the lake: the names of its objects, the records of the lake that it belongs to, and whose objects go.

A place with objects of others is refused, and a sweep deletes what scanlake wrote alone. An object is shown to be
scanlake's by its content: its name has the hash, or it is a catalog of a run of the lake. So no list of objects need be
kept, and what a killed run left is known too.
"""

from __future__ import annotations

import math
import re
import tempfile
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Self, TypeVar

import duckdb
import msgspec
from msgspec import Struct, field

from pipeline.errors import ForeignObjectError, LakeCorruptedError, PublishError, SettingsError
from pipeline.lake.catalog.duckdb import read_database
from pipeline.lake.catalog.tables import read_shown_snapshot as read_snapshot_of
from pipeline.lake.storage.layout import IMAGES
from pipeline.output.logs import log
from pipeline.publish.object_store import PROBE_PREFIX, run_side_by_side
from schemas.timestamps import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pipeline.lake.lake import Lake
    from pipeline.lake.ledger.ledger import Ledger
    from pipeline.lake.ledger.queries import LedgerQueries
    from pipeline.publish.object_store import ObjectStore, StoredObject

LATEST: Final = "latest.json"
"""Object that names the published snapshot. It is replaced last."""
OWNER: Final = "iceberg-owner.json"
"""Object that names the lake and the catalog whose Iceberg tables are below a location."""
RECORDS: Final = (LATEST, OWNER)
"""Objects that name the lake to which the place with them belongs."""
CATALOG: Final = "catalog.duckdb"
TABLES_PREFIX: Final = "tables"
DOCUMENTS_PREFIX: Final = "documents"
LEDGERS_PREFIX: Final = "ledgers"
"""Folder of the ledger's copy, which a target that is a backup has."""
FOLDERS: Final = (TABLES_PREFIX, DOCUMENTS_PREFIX, LEDGERS_PREFIX, PROBE_PREFIX)
"""The folders of a target but for its images; the objects outside of folders are OBJECTS."""
OBJECTS: Final = (CATALOG, OWNER, LATEST)
TEMP_FOLDERS: Final = (*FOLDERS, IMAGES)

NOTHING_PUBLISHED: Final = "No published lake is there. Is it mounted? If it was deleted, publish elsewhere."

REMAKE_HINT: Final = "Drop the tables from their catalog (or delete iceberg.json if there is none), then publish again."
"""How Iceberg tables that lost a file become whole: the parts that are there are taken again."""

FORMAT: Final = 1
"""Format of all records."""
_MAX_BYTES: Final = 1_000_000  # a record has a few thousand; a file of others must not fill the memory
_HINT: Final = "Use another target, or delete the object."
_HASH_LENGTH: Final = 12
_STEM: Final = rf"(?P<stem>\d{{12}}-[0-9a-f]{{6}}(-\d{{4}})?)-([0-9a-f]{{{_HASH_LENGTH}}})"
_PART_NAME: Final = re.compile(rf"/{_STEM}\.parquet\Z")
_OWN: Final = re.compile(
    rf"({DOCUMENTS_PREFIX}|{TABLES_PREFIX}/\w+/data)/{_STEM}\.parquet|{LEDGERS_PREFIX}/([0-9a-f]{{64}})\.sqlite"
    rf"|{IMAGES}/([0-9a-f]{{2}}/[0-9a-f]{{62}})\.[a-z0-9]+|{PROBE_PREFIX}/[0-9a-f]{{32}}"
)
"""Names of objects. The last group, but for those that test a store, is the hash of the content."""
_TABLE_FILE: Final = re.compile(
    rf"data/{_STEM}(-deletes-[0-9a-f-]+)?\.parquet|metadata/(\d+-[^/]+\.metadata\.json|([0-9a-f-]{{36}}-m\d+|snap-\d+)\.avro)"
)
_MAX_PROBE_BYTES: Final = 100
_CLOCK_SKEW_SECONDS: Final = 600  # between the store and this machine
T = TypeVar("T")


def to_target_path(part_name: str, sha256: str) -> str:
    """Return the path of a part, which the ledger names by its path below the lake's folder.

    It has the hash: a repaired part keeps its name in the lake, but what a target has under a name never changes.
    """
    return f"{to_unhashed_path(part_name).removesuffix('.parquet')}-{sha256[:_HASH_LENGTH]}.parquet"


def to_unhashed_path(part_name: str) -> str:
    """Return the path of a part without its hash."""
    path = PurePosixPath(part_name)
    folder = DOCUMENTS_PREFIX if path.parts[0] == DOCUMENTS_PREFIX else data_prefix(path.parts[1])
    return f"{folder}/{path.name}"


def data_prefix(table_name: str) -> str:
    """Return the folder of a table's parts. The table's Iceberg location is the folder above."""
    return f"{TABLES_PREFIX}/{table_name}/data"


def is_table_file(path: str) -> bool:
    """Return whether a file has the name of one of an Iceberg table; the path is below the table's location."""
    return _TABLE_FILE.fullmatch(path) is not None


def is_own_path(path: str) -> bool:
    """Return whether an object has the name of one that scanlake writes once."""
    return _OWN.fullmatch(path) is not None


def to_ledger_path(sha256: str) -> str:
    """Return the path of a copy of the ledger."""
    return f"{LEDGERS_PREFIX}/{sha256}.sqlite"


# Records


class _Format(Struct, frozen=True):
    format: int = FORMAT


class _Owner(Struct, frozen=True):
    lake_id: str


def read_record(store: ObjectStore, path: str, kind: type[T]) -> tuple[T, str] | tuple[None, None]:
    """Return a record and the version that a swap compares; None for both if there is none.

    Raises `SettingsError` if a newer scanlake wrote it, `PublishError` if it is no record, and `LakeCorruptedError` if
    it is not even JSON, or larger than any record.
    """
    existing = store.head(path)
    if existing is not None and existing.bytes > _MAX_BYTES:
        raise LakeCorruptedError(f"{store.url(path)} is damaged: it has {existing.bytes:,} bytes.", hint=_HINT)
    stored = None if existing is None else store.read_versioned(path)
    if stored is None:
        return None, None
    content, version = stored
    try:
        if msgspec.json.decode(content, type=_Format).format > FORMAT:
            raise SettingsError(f"{store.url(path)} was written by a newer scanlake.", hint="Update scanlake.")
        return msgspec.json.decode(content, type=kind), version
    except msgspec.ValidationError as error:
        raise PublishError(f"{store.url(path)} is not a record of scanlake.", hint=_HINT) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LakeCorruptedError(f"{store.url(path)} is damaged: it is not JSON.", hint=_HINT) from error


def encode_record(record: object) -> bytes:
    """Return a record as JSON, one field per line."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


def read_owner(store: ObjectStore, path: str) -> str | None:
    """Return the id of the lake that the record at `path` names; None if there is no record."""
    owner, _ = read_record(store, path, _Owner)
    return None if owner is None else owner.lake_id


def require_lake(store: ObjectStore, path: str, lake_id: str, content: str) -> None:
    """Raise `SettingsError` if the record at `path` names another lake. `content` is what the record is of."""
    owner_id = read_owner(store, path)
    if owner_id is not None:
        refuse_other_lake(store, owner_id, lake_id, content)


def refuse_other_lake(store: ObjectStore, owner_id: str, lake_id: str, content: str) -> None:
    """Raise `SettingsError` unless the owner of a place is the lake."""
    if owner_id != lake_id:
        raise SettingsError(
            f"{store.base_url} has {content} of another lake ({owner_id[:8]}, not {lake_id[:8]}).",
            hint="Use another target; each lake needs its own.",
        )


def require_own_snapshot(ledger: LedgerQueries, state: tuple[int, str], copy: str) -> None:
    """Raise `ForeignObjectError` if a copy shows a snapshot, by number and run, that this lake has never had."""
    if state not in {(record.snapshot, record.run_id) for record in ledger.snapshots()}:  # a purge has the former's run
        raise ForeignObjectError(
            f"{copy} names a snapshot of another run.",
            hint="Use another target: the lake was restored from an older backup, or a copy of it publishes there.",
        )


class PublishedCatalog(Struct, frozen=True):
    """The catalog on the target, and its snapshot. Instants are microseconds since 1970.

    `published_at` is when it came to the target, `written_at` when the lake wrote it: no image in it is newer.
    """

    snapshot: int
    run_id: str
    files: int
    complete: bool
    watermark: int | None
    published_at: int
    written_at: int
    bytes: int
    sha256: str


class PublishedImages(Struct, frozen=True):
    """The images on the target, which has all that the published catalog names but for the damaged ones."""

    count: int = field(name="pictures")


class PublishedLedger(Struct, frozen=True):
    """The copy of the ledger on a target that is a backup."""

    bytes: int
    sha256: str


class LatestRecord(Struct, frozen=True):
    """Content of `latest.json`. With a `ledger` the target is a backup: it has all parts that the ledger names.

    `compared_share` is the share of a backup's objects that the last `scanlake backup` has compared.
    """

    lake_id: str
    catalog: PublishedCatalog
    images: PublishedImages | None = None
    ledger: PublishedLedger | None = None
    compared_share: int = -1
    format: int = FORMAT
    scanlake: str = field(default="")


def read_latest(store: ObjectStore, *, lake_id: str | None) -> tuple[LatestRecord | None, str | None]:
    """Return the record of a target and the version that a swap compares; None for both on a new target.

    Raises `SettingsError` if the target has another lake than `lake_id` (None: any), or a newer scanlake wrote it, and
    `PublishError` if it cannot be read.
    """
    record, version = read_record(store, LATEST, LatestRecord)
    if record is not None and lake_id is not None:
        refuse_other_lake(store, record.lake_id, lake_id, "the copy")
    return record, version


def list_target(store: ObjectStore) -> dict[str, StoredObject]:
    """Return the objects of a target by path, but for its images, which can be millions."""
    heads = run_side_by_side(store.head, OBJECTS)
    folders = run_side_by_side(lambda folder: list(store.list(folder)), FOLDERS)
    return {item.path: item for item in chain((item for item in heads if item is not None), *folders)}


def list_own_paths(listed: Mapping[str, StoredObject]) -> set[str]:
    """Return the objects that have names of a mirror, or of a backup; those of Iceberg tables are not among them."""
    return {
        path for path in listed if is_own_path(path) and not (OWNER in listed and path.startswith(f"{TABLES_PREFIX}/"))
    }


def list_documents(store: ObjectStore) -> dict[str, tuple[StoredObject, str]]:
    """Return the documents of a backup by their names in the lake, each with the begin of its hash, from their names.

    Of two objects for one part the newer counts.
    """
    listed = sorted(store.list(DOCUMENTS_PREFIX), key=lambda item: item.modified_at)
    matches = ((item, _OWN.fullmatch(item.path)) for item in listed)
    return {f"{m[1]}/{m['stem']}.parquet": (item, m[m.lastindex or 0]) for item, m in matches if m is not None}


def has_remains(store: ObjectStore) -> bool:
    """Return whether a place without a record has something of a mirror: of a first publish that was killed."""
    listed = list_target(store)
    images = (item.path for item in store.list(IMAGES) if is_own_path(item.path))
    remains = chain(list_own_paths(listed), images, store.list_temp_files(TEMP_FOLDERS))
    return CATALOG in listed or next(remains, None) is not None


def note_backup(ledger: Ledger, url: str, *, is_whole: bool) -> None:
    """Let the ledger know where a backup is, and of which purges: one that is not whole, of those that it knew."""
    known, last_purge_at = ledger.properties.backups, ledger.last_purge_at() or 0
    if url not in known or (is_whole and known[url] != last_purge_at):
        ledger.set_properties(backups={**known, url: last_purge_at})


# Ownership of objects


def require_own_objects(
    store: ObjectStore, ledger: LedgerQueries, listed: Mapping[str, StoredObject], lake_id: str
) -> None:
    """Raise `SettingsError` if a place without a record has an object that scanlake did not write.

    Below it, or beside its own objects, can be Iceberg tables, a mirror or a backup of the same lake, whose objects
    are not looked at.
    """
    records = [path for path in listed if path.rpartition("/")[2] in RECORDS]
    for path in records:
        require_lake(store, path, lake_id, "objects")
    roots = tuple(path.removesuffix(path.rpartition("/")[2]) for path in records)  # "" or with a slash at the end
    for path, item in listed.items():
        if (path == CATALOG or not path.startswith(roots)) and not is_own_object(store, ledger, item):
            raise SettingsError(
                f"{store.base_url} has other objects, such as {item.path}.", hint="Use a separate folder or URL."
            )


def delete_own_objects(
    store: ObjectStore, items: Sequence[StoredObject], is_own: Callable[[StoredObject], bool]
) -> int:
    """Delete the objects that scanlake wrote, and return their number. Others stay, and are named in the log."""
    are_own = run_side_by_side(is_own, items)
    own = [item.path for item, is_mine in zip(items, are_own, strict=True) if is_mine]
    store.delete(own)
    if others := [item.path for item, is_mine in zip(items, are_own, strict=True) if not is_mine]:
        log.warning("objects.left", target=store.base_url, objects=len(others), first=min(others))
    return len(own)


def has_named_hash(store: ObjectStore, item: StoredObject) -> bool:
    """Return whether an object has the content of which its name has the hash; only names of parts have one."""
    match = _PART_NAME.search(item.path)
    return match is None or store.hash(item.path).startswith(match[match.lastindex or 0])


def is_own_object(store: ObjectStore, ledger: LedgerQueries, item: StoredObject) -> bool:
    """Return whether scanlake wrote an object of a mirror, or of a backup."""
    if item.path.startswith(f"{PROBE_PREFIX}/"):
        return item.bytes < _MAX_PROBE_BYTES and store.read(item.path).startswith(item.path.encode())
    if item.path == CATALOG:
        _, run_id = _read_shown_snapshot(store, item.path) or (0, "")
        return bool(run_id) and run_id in {record.run_id for record in ledger.snapshots()}
    if (match := _OWN.fullmatch(item.path)) is None:
        return False
    return store.hash(item.path).startswith(match[match.lastindex or 0].replace("/", ""))


def _read_shown_snapshot(store: ObjectStore, path: str) -> tuple[int, str | None] | None:
    with tempfile.TemporaryDirectory(prefix="scanlake-") as folder:
        file = Path(folder, "catalog.duckdb")
        store.download(path, file)
        return read_shown_snapshot(file)


def read_shown_snapshot(catalog: Path) -> tuple[int, str | None] | None:
    """Return the number and the run of the snapshot that a catalog shows; None if it is no catalog of scanlake."""
    try:
        with read_database(catalog) as db:
            snapshot = read_snapshot_of(db)
    except (duckdb.Error, IndexError, UnicodeDecodeError):  # damage in a text is the last
        return None
    return snapshot.snapshot, snapshot.run_id


# Sweeps


class SweepRule(Struct, frozen=True):
    """What every sweep spares: files written from `before` on, in seconds since 1970, and the parts of the lake.

    Younger files may belong to a publish that is running, or to a reader; after a purge no file from before it stays.
    `lake_parts` are paths on a target, without hashes, also of retired parts.
    """

    before: float
    lake_parts: frozenset[str]

    @classmethod
    def from_lake(cls, lake: Lake, *, at: int, grace_seconds: float, has_purged: bool) -> Self:
        """Return the rule at `at` (microseconds). `has_purged`: the copy was not published since a purge.

        Then, and without grace, no file is too young: a store's clock can be ahead.
        """
        purged_at, before = lake.ledger.last_purge_at(), math.inf
        if grace_seconds and not (has_purged and purged_at):
            before = max(at / SECOND - grace_seconds, (purged_at or 0) / SECOND + _CLOCK_SKEW_SECONDS)
        return cls(before, frozenset(map(to_unhashed_path, lake.ledger.part_names())))

    def permits(self, stored: StoredObject, target_path: str) -> bool:
        """Return whether a file may go if nothing names it. `target_path` is its path on a target."""
        unhashed = _PART_NAME.sub(r"/\g<stem>.parquet", target_path)
        return stored.modified_at.timestamp() < self.before and unhashed not in self.lake_parts
