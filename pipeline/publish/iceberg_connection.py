"""Connection to the Iceberg catalog that the settings name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NotInstalledError

from pipeline.errors import SettingsError
from pipeline.publish.iceberg_catalogs import ServiceTables, SqlTables, StoreTables
from pipeline.publish.iceberg_errors import translate_catalog_errors
from pipeline.publish.iceberg_files import StoreFileIO
from pipeline.publish.object_store import open_store

if TYPE_CHECKING:
    from pipeline.publish.iceberg_catalogs import IcebergCatalog
    from pipeline.publish.object_store import ObjectStore

CatalogKind: TypeAlias = Literal["sql", "rest", "glue", "none"]
_NAME: Final = "scanlake"
_PSYCOPG: Final = 'Run `pip install "psycopg[binary]"`'
_DRIVERS: Final = {
    "psycopg": f"{_PSYCOPG}.",
    "boto3": "Run `pip install boto3`.",
    "psycopg2": f"{_PSYCOPG}, and begin the catalog's URI with postgresql+psycopg://.",  # SQLAlchemy 2.0
}
_FILE_IO: Final = f"{StoreFileIO.__module__}.{StoreFileIO.__qualname__}"


@dataclass(frozen=True, slots=True)
class IcebergOptions:
    """Where the Iceberg tables are. `location` is a URL, "" if a REST catalog or Glue chooses the place itself."""

    catalog: CatalogKind = "none"
    location: str = ""
    uri: str = ""
    namespace: str = _NAME


def connect_catalog(options: IcebergOptions, store: ObjectStore | None = None) -> IcebergCatalog:
    """Return the catalog of the lake's Iceberg tables; `store` is the one at `location`, if it is open already.

    Further settings, credentials among them, come from the environment or the configuration of pyiceberg, under the
    catalog's name scanlake: PYICEBERG_CATALOG__SCANLAKE__TOKEN, for example.
    """
    if options.catalog in {"sql", "none"} and not options.location:
        raise SettingsError("Iceberg tables need a location.", hint="Set iceberg_location, such as s3://bucket/lake.")
    if options.location and store is None:
        store = open_store(options.location)
    io = StoreFileIO(stores=() if store is None else (store,))
    root = "" if store is None else store.base_url
    if options.catalog == "none":
        return StoreTables(cast("ObjectStore", store), io)
    properties = {"type": options.catalog, "py-io-impl": _FILE_IO}
    if options.uri:
        properties["uri"] = options.uri
    if root and options.catalog == "sql":
        properties["warehouse"] = root
    with translate_catalog_errors():
        try:
            catalog = load_catalog(_NAME, **properties)
        except (ValueError, ImportError, NotInstalledError) as error:
            cause = error.__cause__ if isinstance(error, NotInstalledError) else error
            if isinstance(cause, ModuleNotFoundError) and cause.name in _DRIVERS:
                message = f"The Iceberg catalog ({options.catalog}) needs the library {cause.name}."
                raise SettingsError(message, hint=_DRIVERS[cause.name]) from None
            hint = "Set iceberg_catalog and iceberg_uri; PYICEBERG_CATALOG__SCANLAKE__* for what is secret."
            raise SettingsError(f"The Iceberg catalog ({options.catalog}) cannot be opened.", hint=hint) from error
    if isinstance(catalog, SqlCatalog):
        return SqlTables(catalog, io, options.namespace, root)
    return ServiceTables(catalog, io, options.namespace, root, kind=options.catalog)
