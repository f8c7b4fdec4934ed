"""Catalogs of the tests, and reading of published Iceberg tables by pyiceberg's own reader."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import Table

from pipeline.publish.iceberg_catalogs import connect_catalog
from schemas.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from pipeline.publish.iceberg_catalogs import IcebergCatalog, TableCommit
    from pipeline.publish.object_store import ObjectStore

NAMES = tuple(table.name for table in TABLES)


def connect_sql(
    folder: Path, location: str = "target", namespace: str = "scanlake", *, store: ObjectStore | None = None
) -> IcebergCatalog:
    """Return a namespace of the SQLite catalog in a folder; the tables are below it, or in a store."""
    url = f"file://{folder}/{location}" if store is None else store.base_url
    return connect_catalog(url, namespace, {"uri": f"sqlite:///{folder}/catalog.sqlite"}, store)


def load_tables(catalog: IcebergCatalog, names: Iterable[str] = NAMES) -> dict[str, Table]:
    """Return published tables, by default all of them, as the catalog has them now."""
    states = catalog.load(names)
    return {
        name: Table(("scanlake", name), state.metadata, state.metadata_location, catalog.io, NoopCatalog("none"))
        for name, state in states.items()
    }


def reader(catalog: IcebergCatalog, tag: str | None = None) -> Callable[[str], pa.Table]:
    """Return a function that reads a table at a tag; without one, as it is now."""
    tables = load_tables(catalog)

    def read(name: str) -> pa.Table:
        snapshot_id = tables[name].metadata.refs[tag].snapshot_id if tag is not None else None
        return tables[name].scan(snapshot_id=snapshot_id).to_arrow()

    return read


@contextmanager
def overtaken(slow: IcebergCatalog, publish_other: Callable[[], object]) -> Iterator[None]:
    """Let another publisher commit after the slow one has read the tables, and before it commits."""
    commit = slow.commit

    def commit_late(commits: Sequence[TableCommit]) -> None:
        publish_other()
        commit(commits)

    with mock.patch.object(slow, "commit", commit_late):
        yield
