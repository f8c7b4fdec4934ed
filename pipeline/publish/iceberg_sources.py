"""Tables that several lakes share: each lake has a partition, the rows of its source.

The parts have no column for the source. Readers take the value from the partition of a data file, as the format
demands of columns that a file lacks ("column projection"). https://iceberg.apache.org/spec/#column-projection
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, StringType

from pipeline.errors import PublishError, SettingsError
from pipeline.publish.target_layout import SHARED_OWNER

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.schema import Schema

    from pipeline.publish.iceberg_files import StoreFileIO

SOURCE_FIELD: Final = NestedField(
    99, "_source", StringType(), required=False, doc="Source of the lake that the row belongs to."
)
"""It is optional: pyiceberg 0.12 refuses a required column that a file lacks, although the partition has it."""
_PARTITION: Final = PartitionField(SOURCE_FIELD.field_id, 1000, IdentityTransform(), SOURCE_FIELD.name)
_METADATA_FILE: Final = r"\d{5,}-\d{19}-%s\.gz\.metadata\.json"


@dataclass(frozen=True, slots=True)
class PublishScope:
    """What of the tables belongs to a lake: everything or, with `source`, its partition of shared tables."""

    lake_id: str
    source: str | None = None

    @property
    def owner_id(self) -> str:
        """Owner of the tables and their location."""
        return self.lake_id if self.source is None else SHARED_OWNER

    def format_tag(self, number: int) -> str:
        """Return the tag of a snapshot of the lake."""
        return f"sync-{number}" if self.source is None else f"{self.source}-sync-{number}"

    def is_own_tag(self, name: str) -> bool:
        """Return whether a tag is one of the lake's. A source can be named as another one's tag."""
        if self.source is None:
            return name.startswith("sync-")
        return re.fullmatch(rf"{re.escape(self.source)}-sync-\d+", name) is not None


def is_sync_tag(name: str) -> bool:
    """Return whether a tag of a shared table is one of a lake."""
    return re.fullmatch(r".+-sync-\d+", name) is not None


def source_folder(folder: str, source: str | None) -> str:
    """Return the folder of a lake's own files below a folder of a table."""
    return folder if source is None else f"{folder}/{source}"


def find_partition_spec(schema: Schema) -> PartitionSpec:
    """Return how a table with these columns is partitioned: by source, if it has the column."""
    if SOURCE_FIELD.field_id not in schema.field_ids:
        return UNPARTITIONED_PARTITION_SPEC
    return PartitionSpec(_PARTITION, spec_id=0)


def to_partition(source: str | None) -> Record:
    """Return the partition of a lake's files."""
    return Record() if source is None else Record(source)


def owns_manifest(manifest: ManifestFile, source: str | None) -> bool:
    """Return whether a manifest belongs to the lake. A manifest never has files of two lakes."""
    if source is None:
        return True
    bounds = [(item.lower_bound, item.upper_bound) for item in manifest.partitions or ()]
    return bounds == [(source.encode(), source.encode())]


def is_own_path(path: str, folder: str, source: str) -> bool:
    """Return whether the lake of a source has written a file below a table's folder of data or metadata."""
    name = path.removeprefix(f"{folder}/")
    return name.startswith(f"{source}/") or re.fullmatch(_METADATA_FILE % re.escape(source), name) is not None


@dataclass(frozen=True, slots=True)
class _SourceOwner:
    lake_id: str
    format: int = 1


def claim_source(io: StoreFileIO, syncs_location: str, scope: PublishScope) -> None:
    """Make the lake the owner of its source, if it has none. Raises `SettingsError` if another lake has it.

    A lake has one source: under a second name readers would count its rows twice, and nothing would update the first.
    """
    folder = f"{syncs_location.rstrip('/')}/sources"
    location = f"{folder}/{scope.source}.json"
    store, path = io.find_object(location)
    stored = store.read_versioned(path)
    if stored is None:
        _refuse_renamed(io, folder, scope)
        if store.create(path, msgspec.json.encode(_SourceOwner(scope.lake_id))):
            return
        stored = store.read_versioned(path)
    owner = _read_owner(stored[0] if stored is not None else b"", location)
    if owner != scope.lake_id:
        raise SettingsError(
            f"The Iceberg source {scope.source} is another lake ({owner[:8]}, not {scope.lake_id[:8]}).",
            hint="Set another iceberg_source; each lake needs its own.",
        )


def _refuse_renamed(io: StoreFileIO, folder: str, scope: PublishScope) -> None:
    """Raise `SettingsError` if the lake has another source."""
    store, path = io.find_object(folder)
    for stored in store.list(path):
        if _read_owner(store.read(stored.path), store.url(stored.path)) == scope.lake_id:
            former = stored.path.rpartition("/")[2].removesuffix(".json")
            hint = f'Set iceberg_source = "{former}"; for another name use a new iceberg_location.'
            message = f"The lake has published as the Iceberg source {former}, not {scope.source}."
            raise SettingsError(message, hint=hint)


def _read_owner(content: bytes, location: str) -> str:
    """Return the id of the lake that an object names. Raises `PublishError` if it is not an object of scanlake."""
    try:
        return msgspec.json.decode(content, type=_SourceOwner).lake_id
    except msgspec.DecodeError as error:
        raise PublishError(f"{location} is not an object of scanlake.", hint="Use another location.") from error
