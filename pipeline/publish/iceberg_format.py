"""Iceberg v2 in an object store: schemas, data files, position deletes, manifests and snapshots.

Files are read, and created once, never replaced.

pyiceberg 0.12 deletes rows by copying files (apache/iceberg-python#3618), so position deletes are written here. Its
writers are half private: no other module uses them, and the extra `lakehouse` pins the version.
"""

# ruff: noqa: D102 - the base classes describe the methods

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from hashlib import sha256
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct, field
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import EMPTY_DICT, Record
from pyiceberg.types import BooleanType, DoubleType, LongType, NestedField, StringType, TimestampType

from pipeline.errors import PublishError, ScanlakeError
from pipeline.publish.stores import open_store
from pipeline.publish.target import REMAKE_HINT
from schemas.tables import FIELD_ID_KEY, SCHEMA_VERSION
from schemas.value_types import INSTANT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Properties
    from pyiceberg.types import PrimitiveType

    from pipeline.publish.object_store import ObjectStore
    from schemas.tables import Table

_PATH_ID: Final = 2147483546
_POSITION_ID: Final = 2147483545
_DELETES: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(_PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(_POSITION_ID)}),
    ]
)
"""Schema of position deletes. Spark refuses files without these ids (apache/iceberg#13751)."""
_DELETE_OPTIONS: Final[Mapping[str, Any]] = {
    "compression": "zstd",
    "store_schema": False,
    "write_statistics": False,  # the manifest has the only path, and readers need every position
    "use_dictionary": ["file_path"],
}
"""A file of 60 positions has 560 bytes; with statistics, and positions by a dictionary, it had 1,050."""
_NO_STATISTICS: Final[Mapping[str, Any]] = {
    "lower_bounds": None,
    "upper_bounds": None,
    "column_sizes": None,
    "value_counts": None,
    "null_value_counts": None,
    "nan_value_counts": None,
    "split_offsets": None,
}
_DELETE_NAME: Final = re.compile(r"(.*)-deletes-([0-9a-f]{16})-[0-9a-f]{8}\.parquet", re.DOTALL)
_MAX_MANIFESTS: Final = 8  # of one kind, each of which a reader opens
_CODEC: Final = "deflate"
_TYPES: Final[dict[pa.DataType, PrimitiveType]] = {
    pa.int64(): LongType(),
    pa.string(): StringType(),
    pa.bool_(): BooleanType(),
    pa.float64(): DoubleType(),
    pa.timestamp("us"): TimestampType(),  # without zone, as in the lake; the comment names UTC
}
_UTC: Final = "(UTC)"
_Result = TypeVar("_Result")

FORMAT_VERSION: Final = 2
LAKE_PROPERTY: Final = "scanlake.lake"
"""Table property with the id of the lake that the table belongs to."""
SCHEMA_PROPERTY: Final = "scanlake.schema"
SYNC_PROPERTY: Final = "scanlake.sync"
"""Table property with the tag of the sync that the table shows. `files`, which is committed last, has that of all."""
_FIXED_PROPERTIES: Final = {
    "gc.enabled": "false",  # the parts belong to the lake, which deletes them itself
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.compression-codec": "gzip",  # for others who write; `IcebergCatalog` obeys it itself
}


class DeleteFile(Struct, frozen=True):
    """A file of position deletes of one data file, and the sequence number that orders it."""

    file: DataFile
    digest: str
    """Digest of all positions of the data file that are deleted with this file and the earlier ones."""


class TableFiles(Struct, frozen=True):
    """Files of a table's current snapshot: data files, and scanlake's delete files by the location of their data file.

    `others` can have no place in a publish: delete files that others wrote or that a reader does not apply, because
    their data file was removed or came back later, and data files that are there twice or in a partition. All of these
    are locations.
    """

    data: set[str]
    deletes: dict[str, list[DeleteFile]]
    others: set[str]
    manifests: tuple[ManifestFile, ...]


class FileChanges(Struct):
    """Files that a snapshot adds, and locations of the files that it removes."""

    data: list[DataFile] = field(default_factory=list)
    deletes: list[DataFile] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """Whether the snapshot has the files of its parent."""
        return not (self.data or self.deletes or self.removed)


# Access


class StoreFileIO(FileIO):
    """Files by their location (a URL). `stores` are used for the locations below them; others are opened by URL.

    Catalogs that open files themselves create it by its name, with their properties alone.
    """

    def __init__(self, properties: Properties = EMPTY_DICT, stores: tuple[ObjectStore, ...] = ()) -> None:
        super().__init__(properties)
        self._stores = {store.base_url: store for store in stores}
        self._sizes: list[int] = []  # threads append

    @property
    def bytes_written(self) -> int:
        """Size of the files that were created."""
        return sum(self._sizes)

    def find_object(self, location: str) -> tuple[ObjectStore, str]:
        """Return the store of a location, and the path in it."""
        for base_url, store in self._stores.items():
            if location.startswith(f"{base_url}/"):
                return store, location[len(base_url) + 1 :]
        parts = urlsplit(location)
        # The root of a bucket, or the folder of a local file: no other part of the URL is known to be a store.
        base_url = f"{parts.scheme}://{parts.netloc}" if parts.netloc else location.rpartition("/")[0]
        store = open_store(base_url)
        self._stores = self._stores | {base_url: store}  # a new one: other threads iterate over the former
        return store, location[len(base_url) + 1 :]

    def open_root(self, location: str) -> ObjectStore:
        """Return the store below a location."""
        return self._stores.get(location) or open_store(location)

    def new_input(self, location: str) -> StoredInput:
        return StoredInput(location, *self.find_object(location))

    def new_output(self, location: str) -> StoredOutput:
        return StoredOutput(self, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        store, path = self.find_object(location if isinstance(location, str) else location.location)
        store.delete([path])

    def read(self, location: str) -> bytes:
        """Return the content of a file."""
        store, path = self.find_object(location)
        return store.read(path)

    def create(self, location: str, content: bytes) -> None:
        """Write a new file. Raises `FileExistsError` if it exists."""
        store, path = self.find_object(location)
        # The library repeats a request whose response was lost: then this writer has created the file.
        if not store.create(path, content) and store.read(path) != content:
            raise FileExistsError(location)
        self._sizes.append(len(content))


class StoredInput(InputFile):
    """A file to read. It is read whole: metadata and delete files are small."""

    def __init__(self, location: str, store: ObjectStore, path: str) -> None:
        super().__init__(location)
        self._store, self._path = store, path

    def __len__(self) -> int:
        stored = self._store.head(self._path)
        return 0 if stored is None else stored.bytes

    def exists(self) -> bool:
        return self._store.head(self._path) is not None

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002, FBT001, FBT002 - the signature of the base class
        return BytesIO(self._store.read(self._path))


class StoredOutput(OutputFile):
    """A file to create. It is sent when its stream is closed without an error."""

    def __init__(self, io: StoreFileIO, location: str) -> None:
        super().__init__(location)
        self._io = io
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def exists(self) -> bool:
        return self._io.new_input(self.location).exists()

    def to_input_file(self) -> StoredInput:
        return self._io.new_input(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002, FBT001, FBT002 - never replaced
        return _OutputBuffer(self)

    def send(self, content: bytes) -> None:
        """Write the file."""
        self._io.create(self.location, content)
        self._size = len(content)


class _OutputBuffer(BytesIO):
    """The content of a file while it is written."""

    def __init__(self, output: StoredOutput) -> None:
        super().__init__()
        self._output: StoredOutput | None = output

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        if kind is not None:
            self._output = None
        self.close()

    def close(self) -> None:
        output, self._output = self._output, None
        if output is not None:
            output.send(self.getvalue())
        super().close()


# Tables


def to_iceberg_schema(table: Table, *, schema_id: int = 0) -> Schema:
    """Return the Iceberg schema of a table's parts."""
    comments = {column.name: _describe_column(column.comment, column.kind is INSTANT) for column in table.columns}
    fields = [
        NestedField(
            int(field.metadata[FIELD_ID_KEY]),
            field.name,
            _TYPES[field.type],
            required=not field.nullable,
            doc=comments[field.name],
        )
        for field in table.arrow
    ]
    return Schema(*fields, schema_id=schema_id)


def _describe_column(comment: str, is_instant: bool) -> str:  # noqa: FBT001
    return comment if not is_instant or _UTC in comment else f"{comment.removesuffix('.')} {_UTC}."


def table_properties(table: Table, lake_id: str) -> dict[str, str]:
    """Return the properties that a published table must have."""
    own = {LAKE_PROPERTY: lake_id, SCHEMA_PROPERTY: str(SCHEMA_VERSION)}
    return {**_FIXED_PROPERTIES, "comment": table.comment, **own}


def new_metadata(schema: Schema, location: str, properties: Mapping[str, str]) -> TableMetadataV2:
    """Return the metadata of a new table.

    pyiceberg's own function gives the columns new ids, which the parts do not have.
    """
    return TableMetadataV2(
        location=location,
        table_uuid=uuid4(),
        schemas=[schema],
        last_column_id=schema.highest_field_id,
        current_schema_id=schema.schema_id,
        partition_specs=[UNPARTITIONED_PARTITION_SPEC],
        default_spec_id=UNPARTITIONED_PARTITION_SPEC.spec_id,
        last_partition_id=UNPARTITIONED_PARTITION_SPEC.last_assigned_field_id,
        sort_orders=[UNSORTED_SORT_ORDER],
        default_sort_order_id=UNSORTED_SORT_ORDER.order_id,
        properties=dict(properties),
    )


# Read


def read_intact(location: str, read: Callable[[Any], _Result], source: Any) -> _Result:
    """Return what `read` makes of the source of a file. Raises `PublishError` if the file is damaged."""
    try:
        return read(source)
    except ScanlakeError:
        raise
    except Exception as error:  # of any parser: they raise what the damaged bytes lead to
        raise PublishError(f"{location} is damaged ({type(error).__name__}).", hint=REMAKE_HINT) from error


def read_files(metadata: TableMetadata, io: StoreFileIO) -> TableFiles:
    """Return the files of a table's current snapshot."""
    current = metadata.current_snapshot()
    manifests = tuple(read_intact(current.manifest_list, current.manifests, io)) if current is not None else ()
    read = (read_intact(manifest.manifest_path, manifest.fetch_manifest_entry, io) for manifest in manifests)
    entries = list(chain.from_iterable(read))
    times = Counter(entry.data_file.file_path for entry in entries)
    sequences = {
        entry.data_file.file_path: entry.sequence_number or 0
        for entry in entries
        if entry.data_file.content == DataFileContent.DATA
        and entry.data_file.spec_id == UNPARTITIONED_PARTITION_SPEC.spec_id
        and times[entry.data_file.file_path] == 1
    }
    deletes: defaultdict[str, list[DeleteFile]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.sequence_number or 0):
        if match := _DELETE_NAME.fullmatch(entry.data_file.file_path):
            location = f"{match[1]}.parquet"
            if (entry.sequence_number or 0) >= sequences.get(location, math.inf):
                deletes[location].append(DeleteFile(entry.data_file, match[2]))
    own = {delete.file.file_path for delete in chain.from_iterable(deletes.values())}
    return TableFiles(set(sequences), dict(deletes), times.keys() - sequences.keys() - own, manifests)


def read_positions(io: FileIO, paths: Iterable[str], location: str) -> set[int]:
    """Return the positions of a data file in files of position deletes; `paths` are their locations."""
    tables = (read_intact(path, pq.read_table, io.new_input(path).open()) for path in paths)
    of_file = (table.filter(pc.equal(table["file_path"], location)) for table in tables)
    return {position for table in of_file for position in table["pos"].to_pylist()}


# Files


def describe_data_file(part: Path, location: str, schema: Schema) -> DataFile:
    """Return a part as Iceberg's data file, with the statistics of its footer. `location` is its published place."""
    footer, size = pq.read_metadata(part), part.stat().st_size
    statistics = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(schema, {}), parquet_path_to_id_mapping(schema)
    )
    return _describe_file(DataFileContent.DATA, location, size, statistics.to_serialized_dict())


def digest_positions(positions: Sequence[int]) -> str:
    """Return the digest of sorted positions, as the names of delete files have it."""
    return sha256(pa.array(positions, pa.int64()).buffers()[1] or b"").hexdigest()[:16]


def write_deletes(io: StoreFileIO, data_location: str, positions: Sequence[int], *, digest: str) -> DataFile:
    """Write positions of one data file as a delete file beside it.

    `digest` is that of all its deleted positions, those in earlier delete files included.
    """
    location = f"{data_location.removesuffix('.parquet')}-deletes-{digest}-{uuid4().hex[:8]}.parquet"
    rows = pa.table([pa.array([data_location] * len(positions)), pa.array(positions, pa.int64())], schema=_DELETES)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, **_DELETE_OPTIONS)
    content = sink.getvalue().to_pybytes()
    io.create(location, content)
    path = data_location.encode()
    bounds = {"lower_bounds": {_PATH_ID: path}, "upper_bounds": {_PATH_ID: path}}  # equal: it concerns one data file
    statistics = {**_NO_STATISTICS, **bounds, "record_count": len(positions)}
    return _describe_file(DataFileContent.POSITION_DELETES, location, len(content), statistics)


def describe_removed_file(file: DataFile) -> DataFile:
    """Return a removed file without bounds: they are values of its rows, which a purge may have removed."""
    statistics = {**_NO_STATISTICS, "record_count": file.record_count}
    return _describe_file(file.content, file.file_path, file.file_size_in_bytes, statistics)


def _describe_file(content: DataFileContent, location: str, size: int, statistics: Mapping[str, Any]) -> DataFile:
    return DataFile.from_args(
        content=content,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=0,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )


def list_referenced_files(metadata: TableMetadata, io: StoreFileIO) -> set[str]:
    """Return the locations of every file that a kept snapshot of the table needs, its metadata files included."""
    referenced = {entry.metadata_file for entry in metadata.metadata_log}
    for snapshot in metadata.snapshots:
        referenced.add(snapshot.manifest_list)
        for manifest in read_intact(snapshot.manifest_list, snapshot.manifests, io):
            if manifest.manifest_path not in referenced:  # snapshots share most manifests
                referenced.add(manifest.manifest_path)
                entries = read_intact(manifest.manifest_path, manifest.fetch_manifest_entry, io)
                referenced.update(entry.data_file.file_path for entry in entries)
    return referenced


# Manifests and snapshots


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def write_snapshot(
    io: StoreFileIO, metadata: TableMetadata, files: TableFiles, changes: FileChanges, properties: Mapping[str, str]
) -> Snapshot:
    """Write the manifests and the manifest list of a table's next snapshot, and return it; nothing names it yet."""
    writer = _SnapshotWriter(io, metadata)
    removed = writer.write_manifests(files.manifests, changes)
    parent = metadata.current_snapshot()
    summary = SnapshotSummaryCollector()
    for added in (*changes.data, *changes.deletes):
        summary.add_file(added, schema=metadata.schema())
    for file in removed:
        summary.remove_file(file, schema=metadata.schema())
    operation = Operation.OVERWRITE if changes.deletes or changes.removed else Operation.APPEND
    return Snapshot(
        snapshot_id=writer.snapshot_id,
        parent_snapshot_id=parent.snapshot_id if parent else None,
        manifest_list=writer.write_list(parent.snapshot_id if parent else None),
        sequence_number=writer.sequence,
        summary=update_snapshot_summaries(
            Summary(operation=operation, **summary.build(), **properties), parent.summary if parent else None
        ),
        schema_id=metadata.current_schema_id,
    )


class _SnapshotWriter:
    """Writer of the metadata files of one snapshot. Their names have a UUID, so none replaces another."""

    def __init__(self, io: StoreFileIO, metadata: TableMetadata) -> None:
        self._io, self._metadata = io, metadata
        self._uuid: UUID = uuid4()
        self._manifests: list[ManifestFile] = []
        self.snapshot_id = metadata.new_snapshot_id()
        self.sequence = metadata.next_sequence_number()

    def write_manifests(self, former: Sequence[ManifestFile], changes: FileChanges) -> list[DataFile]:
        """Write the manifests that differ from the `former` ones. Return the removed files."""
        removed: list[DataFile] = []
        for content, added in ((ManifestContent.DATA, changes.data), (ManifestContent.DELETES, changes.deletes)):
            entries = [self._add(file) for file in added]
            kind = [manifest for manifest in former if manifest.content == content]
            same_kind = [one for one in kind if one.has_added_files() or one.has_existing_files()]
            merges = len(same_kind) + bool(added) > _MAX_MANIFESTS
            for manifest in same_kind:
                stored = manifest.fetch_manifest_entry(self._io) if changes.removed or merges else []
                if not merges and not any(entry.data_file.file_path in changes.removed for entry in stored):
                    self._manifests.append(manifest)
                    continue
                removed += [entry.data_file for entry in stored if entry.data_file.file_path in changes.removed]
                entries += [self._carry(entry, changes.removed) for entry in stored]
            if entries:
                self._write_manifest(content, entries)
        return removed

    def _add(self, file: DataFile) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=self.snapshot_id,
            sequence_number=None,
            file_sequence_number=None,
            data_file=file,
        )

    def _carry(self, entry: ManifestEntry, removed: set[str]) -> ManifestEntry:
        is_removed = entry.data_file.file_path in removed
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.DELETED if is_removed else ManifestEntryStatus.EXISTING,
            snapshot_id=self.snapshot_id if is_removed else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=describe_removed_file(entry.data_file) if is_removed else entry.data_file,
        )

    def _write_manifest(self, content: ManifestContent, entries: Iterable[ManifestEntry]) -> None:
        writer_class = ManifestWriterV2 if content == ManifestContent.DATA else _DeleteManifestWriter
        output = self._io.new_output(self._location(f"{self._uuid}-m{len(self._manifests)}.avro"))
        schema = self._metadata.schema()
        with writer_class(UNPARTITIONED_PARTITION_SPEC, schema, output, self.snapshot_id, _CODEC) as writer:
            for entry in entries:
                writer.add_entry(entry)
        self._manifests.append(writer.to_manifest_file())

    def write_list(self, parent_id: int | None) -> str:
        """Write the list of the snapshot's manifests, and return its location."""
        # The id is a random number of 63 bits, and every kept snapshot has the name in its table's metadata.
        location = self._location(f"snap-{self.snapshot_id}.avro")
        output = self._io.new_output(location)
        with write_manifest_list(FORMAT_VERSION, output, self.snapshot_id, parent_id, self.sequence, _CODEC) as writer:
            writer.add_manifests(self._manifests)
        return location

    def _location(self, name: str) -> str:
        return f"{self._metadata.location.rstrip('/')}/metadata/{name}"
