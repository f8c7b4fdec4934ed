"""Deletion of files of Iceberg tables that no kept snapshot of them names.

The tables have `gc.enabled = false`: no engine deletes their files, because other snapshots of the lake need the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.publish.iceberg_format import list_referenced_files
from pipeline.publish.target_layout import data_prefix, is_table_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pipeline.publish.iceberg_catalogs import TableState
    from pipeline.publish.iceberg_files import StoreFileIO
    from pipeline.publish.store_contract import ObjectStore, StoredObject
    from pipeline.publish.sweep_rule import SweepRule

_FOLDERS: Final = ("data", "metadata")


def list_table_files(io: StoreFileIO, states: Iterable[TableState]) -> set[str]:
    """Return the locations of all files that the tables need, for readers of any kept snapshot."""
    referenced: set[str] = set()
    for state in states:
        referenced |= {state.metadata_location, *list_referenced_files(state.metadata, io)}
    return referenced


def list_stored_files(io: StoreFileIO, state: TableState) -> Iterator[tuple[ObjectStore, str, StoredObject]]:
    """Yield everything in the folders of a table: the store, the location, and the object."""
    for folder in _FOLDERS:
        location = f"{state.metadata.location.rstrip('/')}/{folder}"
        store, path = io.find_object(location)
        root = location.removesuffix(path)
        yield from ((store, f"{root}{stored.path}", stored) for stored in store.list(path))


def sweep_tables(io: StoreFileIO, states: Collection[TableState], rule: SweepRule) -> int:
    """Delete the tables' files that nothing needs, where the rule permits it; return their number."""
    unneeded: dict[str, tuple[ObjectStore, str]] = {}
    for state in states:
        location = state.metadata.location.rstrip("/")
        for of_folder, folder in (io.find_object(f"{location}/{name}") for name in _FOLDERS):
            of_folder.remove_temp_files([folder])
        for store, file, stored in list_stored_files(io, state):
            target_path = f"{data_prefix(state.name)}/{file.rpartition('/')[2]}"
            if is_table_file(file.removeprefix(f"{location}/")) and rule.permits(stored, target_path):
                unneeded[file] = store, stored.path
    needed = list_table_files(io, states) if unneeded else set[str]()
    for store in {store for store, _ in unneeded.values()}:
        store.delete([path for file, (of, path) in unneeded.items() if of is store and file not in needed])
    return len(unneeded.keys() - needed)
