"""Iceberg catalogs: which metadata file is a table's current one, and how all tables of a sync change together.

A SQL catalog commits in one transaction, a REST catalog by one request if it has the endpoint, and without a catalog
one object decides. Glue, and REST without that endpoint, commit table by table, `files` last: a reader
who finds a sync there finds it in every table.
"""

# ruff: noqa: D102 - `IcebergCatalog` describes the methods

from __future__ import annotations

import gzip
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from pyiceberg.catalog.sql import IcebergTables
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, update_table_metadata
from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from pipeline.errors import PublishConflictError
from pipeline.publish.iceberg_errors import translate_catalog_errors
from pipeline.publish.iceberg_format import new_metadata
from pipeline.publish.iceberg_owner import CatalogId
from pipeline.publish.store_records import FORMAT, encode_record, read_record
from schemas.tables import FILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from pipeline.publish.iceberg_files import StoreFileIO
    from pipeline.publish.object_store import ObjectStore

POINTER: Final = "iceberg.json"
"""Object that names the metadata file of each table where there is no catalog."""
_VERSION: Final = re.compile(r"/(\d{1,9})-[^/]*$")
_TRANSACTION_ENDPOINT: Final = "transactions/commit"
_NO_ENDPOINT: Final = frozenset({404, 405, 406, 501})
MAIN: Final = "main"


class TableState(Struct, frozen=True):
    """A table as the catalog has it. A table without `metadata_location` is not registered yet."""

    name: str
    metadata: TableMetadata
    metadata_location: str = ""


class TableCommit(Struct, frozen=True):
    """Updates of a table, which hold if the table is still in the state that was read."""

    state: TableState
    updates: tuple[TableUpdate, ...]

    @property
    def requirements(self) -> tuple[TableRequirement, ...]:
        """What the catalog must check: that the table is the one that was read."""
        metadata = self.state.metadata
        unchanged = AssertRefSnapshotId(ref=MAIN, snapshot_id=metadata.current_snapshot_id)
        return AssertTableUUID(uuid=metadata.table_uuid), unchanged

    def apply(self) -> TableMetadata:
        """Return the table's new metadata."""
        former = self.state.metadata_location or None
        return update_table_metadata(self.state.metadata, self.updates, metadata_location=former)


class _Pointer(Struct, frozen=True):
    tables: dict[str, str]


class IcebergCatalog(ABC):
    """A catalog of the tables of one lake. Its methods raise `PublishError`."""

    io: StoreFileIO
    id: CatalogId
    root: str
    """Location of new tables, "" if the catalog chooses it."""

    @abstractmethod
    def load(self, names: Iterable[str]) -> dict[str, TableState]:
        """Return the tables that exist, by name."""

    def create(self, name: str, schema: Schema, properties: Mapping[str, str]) -> TableState:
        """Return a new table. It is visible from the commit on, or, in REST and Glue, empty at once."""
        return TableState(name, new_metadata(schema, f"{self.root}/tables/{name}", properties))

    @abstractmethod
    def commit(self, commits: Sequence[TableCommit], note: Mapping[str, object]) -> None:
        """Change the tables. `note` describes the sync. Raises `PublishConflictError` if another has changed one."""

    def _write_metadata(self, commit: TableCommit) -> str:
        """Write the new metadata file of a table, which nothing names yet. Return its location."""
        metadata = commit.apply()
        provider = f"{metadata.location.rstrip('/')}/metadata"
        match = _VERSION.search(commit.state.metadata_location)
        version = int(match[1]) + 1 if match else 0
        unique = f"{version:05d}-{metadata.new_snapshot_id():019d}"
        location = f"{provider}/{unique}-{metadata.table_uuid}.gz.metadata.json"
        content = metadata.model_dump_json(exclude_none=True).encode()
        self.io.create(location, gzip.compress(content, mtime=0))
        return location


class StoreTables(IcebergCatalog):
    """No catalog: one object, which is compared and swapped, names the metadata file of each table."""

    def __init__(self, store: ObjectStore, io: StoreFileIO) -> None:
        self.io, self.id, self.root = io, CatalogId(), store.base_url
        self._store = store
        self._locations: dict[str, str] = {}
        self._version: str | None = None

    def load(self, names: Iterable[str]) -> dict[str, TableState]:
        pointer, self._version = read_record(self._store, POINTER, _Pointer)
        self._locations = {} if pointer is None else pointer.tables
        return {name: _load_state(self.io, name, self._locations[name]) for name in names if name in self._locations}

    def commit(self, commits: Sequence[TableCommit], note: Mapping[str, object]) -> None:
        locations = self._locations | {commit.state.name: self._write_metadata(commit) for commit in commits}
        pointer = {"format": FORMAT, **note, "tables": dict(sorted(locations.items()))}
        self._version = self._store.swap(POINTER, encode_record(pointer), self._version)
        self._locations = locations


class CatalogTables(IcebergCatalog):
    """A catalog of pyiceberg, such as REST or Glue. `root` is "" if the catalog chooses the place of new tables."""

    def __init__(self, catalog: Catalog, io: StoreFileIO, namespace: str, root: str = "") -> None:
        self.io, self.root = io, root
        kind = type(catalog).__name__.removesuffix("Catalog").lower()
        self.id = CatalogId.from_uri(kind, namespace, catalog.properties.get("uri", ""))
        self._catalog, self._namespace = catalog, namespace
        self._tables: dict[str, Table] = {}
        with translate_catalog_errors():
            catalog.create_namespace_if_not_exists(namespace)

    def load(self, names: Iterable[str]) -> dict[str, TableState]:
        states = {}
        for name in names:
            with translate_catalog_errors():
                try:
                    states[name] = self._state(name, self._catalog.load_table((self._namespace, name)))
                except NoSuchTableError:
                    continue
        return states

    def create(self, name: str, schema: Schema, properties: Mapping[str, str]) -> TableState:
        location = f"{self.root}/tables/{name}" if self.root else None
        versioned = {"format-version": "2", **properties}
        with translate_catalog_errors():
            table = self._catalog.create_table((self._namespace, name), schema, location=location, properties=versioned)
        return self._state(name, table)

    def commit(self, commits: Sequence[TableCommit], note: Mapping[str, object]) -> None:  # noqa: ARG002 - see `load`
        if len(commits) > 1 and self._commit_together(commits):
            return
        for commit in sorted(commits, key=lambda commit: commit.state.name == FILES.name):
            with translate_catalog_errors():
                self._catalog.commit_table(self._tables[commit.state.name], commit.requirements, commit.updates)

    def _commit_together(self, commits: Sequence[TableCommit]) -> bool:
        """Commit by the endpoint for several tables. Return False if the catalog has none."""
        session, url = getattr(self._catalog, "_session", None), getattr(self._catalog, "url", None)
        if session is None or url is None:
            return False
        changes = [
            {
                "identifier": {"namespace": [self._namespace], "name": commit.state.name},
                "requirements": [item.model_dump(mode="json", by_alias=True) for item in commit.requirements],
                "updates": [item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in commit.updates],
            }
            for commit in commits
        ]
        with translate_catalog_errors():
            response = session.post(url(_TRANSACTION_ENDPOINT), json={"table-changes": changes})
            if response.status_code in _NO_ENDPOINT:
                return False
            if response.status_code == 409:
                raise _conflict("a table")
            response.raise_for_status()
        return True

    def _state(self, name: str, table: Table) -> TableState:
        self._tables[name] = table
        return TableState(name, table.metadata, table.metadata_location)


class SqlTables(CatalogTables):
    """A catalog in SQLite or Postgres: one transaction changes all tables."""

    _catalog: SqlCatalog
    create = IcebergCatalog.create

    def load(self, names: Iterable[str]) -> dict[str, TableState]:
        columns = (IcebergTables.table_name, IcebergTables.metadata_location)
        query = select(*columns).where(*self._conditions(), IcebergTables.table_name.in_(list(names)))
        with translate_catalog_errors(), Session(self._catalog.engine) as session:
            rows = session.execute(query).all()
        return {name: _load_state(self.io, name, location) for name, location in rows if location}

    def commit(self, commits: Sequence[TableCommit], note: Mapping[str, object]) -> None:  # noqa: ARG002 - see `load`
        locations = [self._write_metadata(commit) for commit in commits]
        with translate_catalog_errors(), Session(self._catalog.engine) as session:
            for commit, location in zip(commits, locations, strict=True):
                self._register(session, commit.state, location)
            session.commit()

    def _register(self, session: Session, state: TableState, location: str) -> None:
        if not state.metadata_location:
            row = self._catalog._create_table_row(self._namespace, state.name, location)  # noqa: SLF001 - the row's form depends on the catalog's version
            session.execute(insert(IcebergTables).values(**row))
            return
        condition = (IcebergTables.table_name == state.name, IcebergTables.metadata_location == state.metadata_location)
        statement = update(IcebergTables).where(*self._conditions(), *condition)
        values = {"metadata_location": location, "previous_metadata_location": state.metadata_location}
        result: Any = session.execute(statement.values(**values))
        if result.rowcount != 1:
            session.rollback()
            raise _conflict(state.name)

    def _conditions(self) -> tuple[Any, ...]:
        return (
            IcebergTables.catalog_name == self._catalog.name,
            IcebergTables.table_namespace == self._namespace,
        )


def _load_state(io: StoreFileIO, name: str, location: str) -> TableState:
    return TableState(name, FromInputFile.table_metadata(io.new_input(location)), location)


def _conflict(name: str) -> PublishConflictError:
    return PublishConflictError(f"Iceberg: another publisher has changed {name}.")
