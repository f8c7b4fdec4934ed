"""Iceberg v2 on disk: data files and position deletes. `iceberg_snapshots` writes what names them.

pyiceberg 0.12 deletes rows by copying files (apache/iceberg-python#3618), so position deletes are written here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, field
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyiceberg.manifest import ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

    from pipeline.publish.iceberg_files import StoreFileIO

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
_DIGEST: Final = re.compile(r"-deletes-([0-9a-f]{16})-[0-9a-f]{8}\.parquet")


class DeleteFile(Struct, frozen=True):
    """A file of position deletes of one data file, and the sequence number that orders it."""

    file: DataFile
    sequence: int

    @property
    def digest(self) -> str:
        """Digest of all positions of the data file that are deleted with this file and the earlier ones."""
        match = _DIGEST.search(self.file.file_path)
        return match[1] if match else ""


class TableFiles(Struct, frozen=True):
    """Files of a table's current snapshot: data files by location, delete files by the location of their data file."""

    data: dict[str, DataFile]
    deletes: dict[str, list[DeleteFile]]
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


def read_files(metadata: TableMetadata, io: StoreFileIO) -> TableFiles:
    """Return the files of a table's current snapshot."""
    current = metadata.current_snapshot()
    manifests = tuple(current.manifests(io)) if current is not None else ()
    data: dict[str, DataFile] = {}
    deletes: defaultdict[str, list[DeleteFile]] = defaultdict(list)
    for entry in chain.from_iterable(manifest.fetch_manifest_entry(io) for manifest in manifests):
        file = entry.data_file
        if file.content == DataFileContent.DATA:
            data[file.file_path] = file
        else:
            deletes[file.lower_bounds[_PATH_ID].decode()].append(DeleteFile(file, entry.sequence_number or 0))
    for files in deletes.values():
        files.sort(key=lambda delete: delete.sequence)
    return TableFiles(data, dict(deletes), manifests)


def read_positions(io: StoreFileIO, files: Iterable[DeleteFile]) -> set[int]:
    """Return the positions in files of position deletes."""
    contents = (io.read(delete.file.file_path) for delete in files)
    tables = (pq.read_table(pa.BufferReader(content), columns=["pos"]) for content in contents)
    return {position for table in tables for position in table["pos"].to_pylist()}


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
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path not in referenced:  # snapshots share most manifests
                referenced.add(manifest.manifest_path)
                referenced.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io))
    return referenced
