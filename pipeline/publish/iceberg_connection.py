"""Connection to the catalog of the Iceberg tables: one of pyiceberg's, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NotInstalledError

from pipeline.errors import SettingsError
from pipeline.publish.iceberg_catalogs import CatalogTables, SqlTables, StoreTables
from pipeline.publish.iceberg_errors import CONFIGURATION_HINT, translate_catalog_errors
from pipeline.publish.iceberg_files import StoreFileIO
from pipeline.publish.object_store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.catalog import Catalog

    from pipeline.publish.iceberg_catalogs import IcebergCatalog
    from pipeline.publish.object_store import ObjectStore

_PSYCOPG: Final = 'Run `pip install "psycopg[binary]"`'
CATALOG_NAME: Final = "scanlake"
"""Name of the catalog in pyiceberg's configuration, and the default namespace."""
_DRIVERS: Final = {
    "psycopg": f"{_PSYCOPG}.",
    "boto3": "Run `pip install boto3`.",
    "psycopg2": f"{_PSYCOPG}, and begin the catalog's URI with postgresql+psycopg://.",  # SQLAlchemy 2.0
}
_FILE_IO: Final = f"{StoreFileIO.__module__}.{StoreFileIO.__qualname__}"


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
            raise SettingsError("The Iceberg catalog cannot be opened.", hint=CONFIGURATION_HINT) from error
