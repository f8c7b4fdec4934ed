"""Deletion of files of Iceberg tables that no kept snapshot of them names.

The tables have `gc.enabled = false`: no engine deletes their files, because other snapshots of the lake need the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.publish.iceberg_format import list_referenced_files
from pipeline.publish.target_layout import remove_hash

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pipeline.publish.iceberg_catalogs import TableState
    from pipeline.publish.iceberg_files import StoreFileIO

_FOLDERS: Final = ("data", "metadata")


def list_table_files(io: StoreFileIO, states: Iterable[TableState]) -> set[str]:
    """Return the locations of all files that the tables need, for readers of any kept snapshot."""
    referenced: set[str] = set()
    for state in states:
        referenced |= {state.metadata_location, *list_referenced_files(state.metadata, io)}
    return referenced


def sweep_tables(
    io: StoreFileIO,
    states: Collection[TableState],
    *,
    before: float,
    part_names: Collection[str],
) -> int:
    """Delete the tables' files that nothing needs and that were written before `before`, in seconds since 1970.

    Younger ones may belong to a publish that is running, or to a reader. Parts in `part_names`, by their file names
    in the lake, stay in any case. Returns the number of deleted files.
    """
    deleted = 0
    for state in states:
        referenced = list_table_files(io, [state])
        for folder in _FOLDERS:
            location = f"{state.metadata.location.rstrip('/')}/{folder}"
            store, path = io.find_object(location)
            root = location[: len(location) - len(path)]
            unneeded = [
                stored.path
                for stored in store.list(path)
                if f"{root}{stored.path}" not in referenced
                and stored.modified_at.timestamp() < before
                and remove_hash(stored.path).rpartition("/")[2] not in part_names
            ]
            store.delete(unneeded)
            deleted += len(unneeded)
    return deleted
