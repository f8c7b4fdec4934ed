"""Catalogs of the tests, and reading of published Iceberg tables by pyiceberg's own reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import Table

from pipeline.publish.iceberg_connection import connect_catalog
from schemas.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import pyarrow as pa

    from pipeline.publish.iceberg_catalogs import IcebergCatalog

NAMES = tuple(table.name for table in TABLES)


def connect(kind: str, folder: Path, s3_url: str = "") -> IcebergCatalog:
    """Return a catalog of a kind: "none", "sql" or "glue", "on files" in the folder or "on S3"."""
    catalog, _, place = kind.partition(" on ")
    location = f"file://{folder}/target" if place == "files" else s3_url
    properties = {"sql": {"uri": f"sqlite:///{folder}/catalog.sqlite"}, "glue": {"type": "glue"}}.get(catalog)
    # The server, and with it Glue, has the tables of earlier tests.
    namespace = location.split("/")[2].replace("-", "_") if catalog == "glue" else "scanlake"
    return connect_catalog(location, namespace, properties)


def load_tables(catalog: IcebergCatalog, names: Iterable[str] = NAMES) -> dict[str, Table]:
    """Return published tables, by default all of them, as the catalog has them now."""
    states = catalog.load(names)
    return {
        name: Table(("scanlake", name), state.metadata, state.metadata_location, catalog.io, NoopCatalog("none"))
        for name, state in states.items()
    }


def reader(catalog: IcebergCatalog, tag: str | None = None) -> Callable[[str], pa.Table]:
    """Return a function that reads a table at a tag; without one, as it is now."""
    return read_all(load_tables(catalog), tag)


def read_all(tables: Mapping[str, Table], tag: str | None = None) -> Callable[[str], pa.Table]:
    """Return a function that reads one of the tables, at a tag or as it is now."""

    def read(name: str) -> pa.Table:
        table = tables[name]
        snapshot_id = table.metadata.refs[tag].snapshot_id if tag is not None else None
        return table.scan(snapshot_id=snapshot_id).to_arrow()

    return read
