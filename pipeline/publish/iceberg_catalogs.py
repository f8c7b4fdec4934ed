"""Iceberg catalogs: which metadata file is a table's current one, and how all tables of a sync change together.

A SQL catalog commits in one transaction, a REST catalog by one request if it has the endpoint, and without a catalog
one object decides. Glue, and REST without that endpoint, commit table by table, `files` last: a reader
who finds a sync there finds it in every table.

Tables of two catalogs with the same names have the same folders, and a sweep of one would delete the files of the
other. So a location has one owner, which the first publish writes there, and every later one compares.
"""

# ruff: noqa: D102 - `IcebergCatalog` describes the methods

from __future__ import annotations

import gzip
import os
import re
from abc import ABC, abstractmethod
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from pyiceberg import exceptions as iceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, NotInstalledError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, update_table_metadata
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from pipeline.errors import PublishConflictError, PublishError, ScanlakeError, SettingsError
from pipeline.publish.iceberg_format import FORMAT_VERSION, StoreFileIO, new_metadata, read_intact
from pipeline.publish.stores import open_store
from pipeline.publish.target import (
    FORMAT,
    LATEST,
    OWNER,
    encode_record,
    read_record,
    refuse_other_lake,
    require_lake,
    require_own_objects,
)
from schemas.tables import FILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from pipeline.lake.ledger.queries import LedgerQueries
    from pipeline.publish.object_store import ObjectStore

POINTER: Final = "iceberg.json"
"""Object that names the metadata file of each table where there is no catalog."""
_VERSION: Final = re.compile(r"/(\d{1,9})-[^/]*$")
_TRANSACTION_ENDPOINT: Final = "transactions/commit"
_NO_ENDPOINT: Final = frozenset({404, 405, 406, 501})
MAIN: Final = "main"
CATALOG_NAME: Final = "scanlake"
"""Name of the catalog in pyiceberg's configuration, and the default namespace."""
_CONFLICTS: Final = (iceberg.CommitFailedException, iceberg.TableAlreadyExistsError, IntegrityError)
_REFUSALS: Final = (iceberg.UnauthorizedError, iceberg.ForbiddenError, iceberg.AuthorizationExpiredError)
_REFUSAL_STATUSES: Final = frozenset({401, 403, 419})  # 419: expired, by the protocol of REST catalogs
_CONFIGURATION_HINT: Final = "Correct the variables of the catalog (PYICEBERG_CATALOG__SCANLAKE__*)."
_PSYCOPG: Final = 'Run `pip install "psycopg[binary]"`'
_DRIVERS: Final = {
    "psycopg": f"{_PSYCOPG}.",
    "boto3": "Run `pip install boto3`.",
    "psycopg2": f"{_PSYCOPG}, and begin the catalog's URI with postgresql+psycopg://.",  # SQLAlchemy 2.0
}
_FILE_IO: Final = f"{StoreFileIO.__module__}.{StoreFileIO.__qualname__}"
_USER: Final = re.compile(r"//[^/@]*@")
_SQLITE_PATH: Final = re.compile(r"(sqlite(?:\+\w+)?:///)([^?]+)")
_NO_PATH: Final = (":memory:", "file:")


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


class _Pointer(Struct, frozen=True):
    tables: dict[str, str]
    format: int = FORMAT


class IcebergCatalog(ABC):
    """A catalog of the tables of one lake. Its methods raise `PublishError`."""

    io: StoreFileIO
    id: str
    """Its kind, its namespace and a digest of its address."""
    root: str
    """Location of new tables, "" if the catalog chooses it."""

    @abstractmethod
    def load(self, names: Iterable[str]) -> dict[str, TableState]:
        """Return the tables that exist, by name."""

    def create(self, name: str, schema: Schema, properties: Mapping[str, str]) -> TableState:
        """Return a new table. It is visible from the commit on, or, in REST and Glue, empty at once."""
        return TableState(name, new_metadata(schema, f"{self.root}/tables/{name}", properties))

    @abstractmethod
    def commit(self, commits: Sequence[TableCommit]) -> None:
        """Change the tables as they were loaded. Raises `PublishConflictError` if another has changed one."""

    def _write_metadata(self, commit: TableCommit) -> str:
        """Write the new metadata file of a table, which nothing names yet. Return its location."""
        state, former = commit.state, commit.state.metadata_location
        metadata = update_table_metadata(state.metadata, commit.updates, metadata_location=former or None)
        provider = f"{metadata.location.rstrip('/')}/metadata"
        match = _VERSION.search(former)
        version = int(match[1]) + 1 if match else 0
        unique = f"{version:05d}-{metadata.new_snapshot_id():019d}"
        location = f"{provider}/{unique}-{metadata.table_uuid}.gz.metadata.json"
        content = metadata.model_dump_json(exclude_none=True).encode()
        self.io.create(location, gzip.compress(content, mtime=0))
        return location


class StoreTables(IcebergCatalog):
    """No catalog: one object, which is compared and swapped, names the metadata file of each table."""

    def __init__(self, store: ObjectStore, io: StoreFileIO) -> None:
        self.io, self.id, self.root = io, "none", store.base_url
        self._store = store
        self._locations: dict[str, str] = {}
        self._version: str | None = None

    def load(self, names: Iterable[str]) -> dict[str, TableState]:
        pointer, self._version = read_record(self._store, POINTER, _Pointer)
        self._locations = {} if pointer is None else pointer.tables
        return {name: _load_state(self.io, name, self._locations[name]) for name in names if name in self._locations}

    def commit(self, commits: Sequence[TableCommit]) -> None:
        locations = self._locations | {commit.state.name: self._write_metadata(commit) for commit in commits}
        self._store.swap(POINTER, encode_record(_Pointer(dict(sorted(locations.items())))), self._version)


class CatalogTables(IcebergCatalog):
    """A catalog of pyiceberg, such as REST or Glue. `root` is "" if the catalog chooses the place of new tables."""

    def __init__(self, catalog: Catalog, io: StoreFileIO, namespace: str, root: str = "") -> None:
        self.io, self.root = io, root
        kind = type(catalog).__name__.removesuffix("Catalog").lower()
        self.id = identify_catalog(kind, namespace, catalog.properties.get("uri", ""))
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
        versioned = {"format-version": str(FORMAT_VERSION), **properties}
        with translate_catalog_errors():
            table = self._catalog.create_table((self._namespace, name), schema, location=location, properties=versioned)
        return self._state(name, table)

    def commit(self, commits: Sequence[TableCommit]) -> None:
        in_order = sorted(commits, key=lambda commit: commit.state.name == FILES.name)  # some do not commit at once
        if len(in_order) > 1 and self._commit_together(in_order):
            return
        for commit in in_order:
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

    def commit(self, commits: Sequence[TableCommit]) -> None:
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
        return (IcebergTables.catalog_name == self._catalog.name, IcebergTables.table_namespace == self._namespace)


def _load_state(io: StoreFileIO, name: str, location: str) -> TableState:
    return TableState(name, read_intact(location, FromInputFile.table_metadata, io.new_input(location)), location)


def _conflict(name: str) -> PublishConflictError:
    return PublishConflictError(f"Iceberg: another publisher has changed {name}.")


def connect_catalog(
    location: str,
    namespace: str = CATALOG_NAME,
    properties: Mapping[str, str] | None = None,
    store: ObjectStore | None = None,
) -> IcebergCatalog:
    """Return the catalog of the lake's Iceberg tables, which are below `location`, a URL.

    `properties` are those of pyiceberg's catalog, None without one. A catalog other than SQL chooses the place itself
    if `location` is "". `store` is the one at `location`, if it is open already. Raises `SettingsError` and
    `PublishError`.
    """
    if location and store is None:
        store = open_store(location)
    io = StoreFileIO(stores=() if store is None else (store,))
    catalog = None if properties is None else _load_catalog(properties)
    if store is None:
        if catalog is None or isinstance(catalog, SqlCatalog):
            hint = "Set iceberg_location, such as s3://bucket/lake."
            raise SettingsError("Iceberg tables need a location.", hint=hint)
        return CatalogTables(catalog, io, namespace)
    if catalog is None:
        return StoreTables(store, io)
    kind = SqlTables if isinstance(catalog, SqlCatalog) else CatalogTables
    return kind(catalog, io, namespace, store.base_url)


def _load_catalog(properties: Mapping[str, str]) -> Catalog:
    with translate_catalog_errors():
        try:
            return load_catalog(CATALOG_NAME, **{**properties, "py-io-impl": _FILE_IO})
        except (ValueError, ImportError, NotInstalledError) as error:
            cause = error.__cause__ if isinstance(error, NotInstalledError) else error
            if isinstance(cause, ModuleNotFoundError) and cause.name in _DRIVERS:
                message = f"The Iceberg catalog needs the library {cause.name}."
                raise SettingsError(message, hint=_DRIVERS[cause.name]) from None
            raise SettingsError("The Iceberg catalog cannot be opened.", hint=_CONFIGURATION_HINT) from error


@contextmanager
def translate_catalog_errors() -> Iterator[None]:
    """Turn the errors of pyiceberg, its database and its HTTP client into `PublishError`, without URLs or passwords."""
    try:
        yield
    except _CONFLICTS as error:
        raise PublishConflictError("Iceberg: another publisher has changed a table.") from error
    except ScanlakeError:
        raise
    except Exception as error:  # of pyiceberg, and of any library that its catalogs use
        # pyiceberg names a refusal only for its own endpoints.
        status = getattr(getattr(error, "response", None), "status_code", None)
        is_refusal = isinstance(error, _REFUSALS) or status in _REFUSAL_STATUSES
        problem = "refuses the credentials" if is_refusal else f"cannot be used ({type(error).__name__})"
        raise PublishError(f"The Iceberg catalog {problem}.", hint=_CONFIGURATION_HINT) from error


def identify_catalog(kind: str, namespace: str, uri: str) -> str:
    """Return the kind and namespace of a catalog, and the digest of its URI without user and password.

    A relative path of SQLite is below the current folder.
    """
    uri = _SQLITE_PATH.sub(_to_absolute, _USER.sub("//", uri))
    return f"{kind}, namespace {namespace}, {sha256(uri.encode()).hexdigest()[:12]}"


def _to_absolute(uri: re.Match[str]) -> str:
    return uri[0] if uri[2].startswith(_NO_PATH) else uri[1] + os.path.realpath(uri[2])


class LocationOwner(Struct, frozen=True):
    """Content of `iceberg-owner.json`."""

    lake_id: str
    catalog: str
    format: int = FORMAT


def claim_locations(io: StoreFileIO, roots: Mapping[str, bool], owner: LocationOwner, ledger: LedgerQueries) -> None:
    """Make `owner` the owner of each location (a URL), if it has none; the value is whether its tables are there.

    Raises `SettingsError` if another has it, or if a new one has objects of others, and `PublishError` if that ignores
    conditions.
    """
    for root, has_tables in sorted(roots.items()):
        store = io.open_root(root)
        existing, _ = read_record(store, OWNER, LocationOwner)
        if existing is None:
            require_lake(store, LATEST, owner.lake_id, "the mirror")  # its sweep deletes unknown parts
            if not has_tables:
                require_own_objects(store, ledger, {item.path: item for item in store.list()}, owner.lake_id)
                store.probe()
            if store.create(OWNER, encode_record(owner)):
                continue
            existing, _ = read_record(store, OWNER, LocationOwner)
        if existing is not None and existing != owner:
            refuse_other_lake(store, existing.lake_id, owner.lake_id, "Iceberg tables")
            raise SettingsError(
                f"{root} has the Iceberg tables of another catalog ({existing.catalog}).",
                hint=f"Use another iceberg_location; if only the catalog's address has changed, delete {OWNER} there.",
            )
