"""Iceberg v2 on disk: manifests and snapshots.

The writers of pyiceberg 0.12 are half private: no other module uses them, and the extra `lakehouse` pins the version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)

from pipeline.publish.iceberg_format import describe_removed_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table.metadata import TableMetadata

    from pipeline.publish.iceberg_files import StoreFileIO
    from pipeline.publish.iceberg_format import FileChanges, TableFiles

_MAX_MANIFESTS: Final = 8  # of one kind, each of which a reader opens
_CODEC: Final = "deflate"


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def write_snapshot(
    io: StoreFileIO,
    metadata: TableMetadata,
    files: TableFiles,
    changes: FileChanges,
    properties: Mapping[str, str],
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
            Summary(operation=operation, **summary.build(), **properties),
            parent.summary if parent else None,
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
            same_kind = [manifest for manifest in former if manifest.content == content and _has_files(manifest)]
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
        if {file.file_path for file in removed} != changes.removed:
            message = "files to remove are not in the table"
            raise ValueError(message)
        return removed

    def _add(self, file: DataFile) -> ManifestEntry:
        return self._entry(ManifestEntryStatus.ADDED, self.snapshot_id, file)

    def _carry(self, entry: ManifestEntry, removed: set[str]) -> ManifestEntry:
        sequences = {"sequence": entry.sequence_number, "file_sequence": entry.file_sequence_number}
        if entry.data_file.file_path in removed:
            file = describe_removed_file(entry.data_file)
            return self._entry(ManifestEntryStatus.DELETED, self.snapshot_id, file, **sequences)
        return self._entry(ManifestEntryStatus.EXISTING, entry.snapshot_id, entry.data_file, **sequences)

    @staticmethod
    def _entry(
        status: ManifestEntryStatus,
        snapshot_id: int | None,
        file: DataFile,
        *,
        sequence: int | None = None,
        file_sequence: int | None = None,
    ) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=snapshot_id,
            sequence_number=sequence,
            file_sequence_number=file_sequence,
            data_file=file,
        )

    def _write_manifest(self, content: ManifestContent, entries: Iterable[ManifestEntry]) -> None:
        writer_class = ManifestWriterV2 if content == ManifestContent.DATA else _DeleteManifestWriter
        output = self._io.new_output(self._location(f"{self._uuid}-m{len(self._manifests)}.avro"))
        spec, schema = self._metadata.spec(), _remove_comments(self._metadata.schema())
        with writer_class(spec, schema, output, self.snapshot_id, _CODEC) as writer:
            for entry in entries:
                writer.add_entry(entry)
        self._manifests.append(writer.to_manifest_file())

    def write_list(self, parent_id: int | None) -> str:
        """Write the list of the snapshot's manifests, and return its location."""
        # The id is a random number of 63 bits, and every kept snapshot has the name in its table's metadata.
        location = self._location(f"snap-{self.snapshot_id}.avro")
        output = self._io.new_output(location)
        with write_manifest_list(2, output, self.snapshot_id, parent_id, self.sequence, _CODEC) as writer:
            writer.add_manifests(self._manifests)
        return location

    def _location(self, name: str) -> str:
        return f"{self._metadata.location.rstrip('/')}/metadata/{name}"


def _remove_comments(schema: Schema) -> Schema:
    """Return the schema that a manifest's header has, uncompressed. The table's metadata has the comments."""
    fields = [field.model_copy(update={"doc": None}) for field in schema.fields]
    return Schema(*fields, schema_id=schema.schema_id)


def _has_files(manifest: ManifestFile) -> bool:
    return manifest.has_added_files() or manifest.has_existing_files()
