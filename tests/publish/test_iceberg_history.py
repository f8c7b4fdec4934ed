"""Every state of a lake, published as Iceberg tables, equals the lake's snapshot row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from obstore.store import MemoryStore

from pipeline.lake.file_names import list_snapshots
from pipeline.lake.layout import LakeLayout
from pipeline.publish.cloud_store import CloudStore
from pipeline.publish.iceberg_connection import IcebergOptions, connect_catalog
from pipeline.publish.iceberg_publish import publish_iceberg
from tests.lake.lake_builder import AT
from tests.publish.iceberg_reading import load_tables, reader
from tests.publish.lake_history import LAKE_ID, list_differences, live_history

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.publish.iceberg_catalogs import IcebergCatalog


def connect(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> IcebergCatalog:
    """Return a new catalog of a kind."""
    if kind == "none in memory":
        store = CloudStore("memory://test", MemoryStore())
        return connect_catalog(IcebergOptions("none", store.base_url), store)
    catalog, _, place = kind.partition(" on ")
    location = f"file://{tmp_path}/target" if place == "files" else request.getfixturevalue("s3_url")
    uri = f"sqlite:///{tmp_path}/catalog.sqlite" if catalog == "sql" else ""
    return connect_catalog(IcebergOptions(catalog, location, uri))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["none in memory", "none on S3", "sql on files", "sql on S3", "glue on S3"])
def test_every_snapshot_is_published_whole(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """After every step all tables equal the snapshot, now and by its tag; kept earlier syncs stay as they were."""
    lake = tmp_path / "lake"
    layout = LakeLayout(lake)
    catalog = connect(kind, request, tmp_path)
    for step, (name, number) in enumerate(live_history(lake)):
        result = publish_iceberg(catalog, layout, number, lake_id=LAKE_ID, at=AT + step)
        assert list_differences(lake, number, reader(catalog)) == [], name
        assert list_differences(lake, number, reader(catalog, f"sync-{number}")) == [], name
        assert (result.snapshot, result.tag) == (number, f"sync-{number}")
        kept = {f"sync-{snapshot}" for snapshot, _ in list_snapshots(layout)}
        for table in load_tables(catalog).values():
            assert table.metadata.refs.keys() == (kept & table.metadata.refs.keys()) | {"main"}
            assert f"sync-{number}" in table.metadata.refs
            assert {ref.snapshot_id for ref in table.metadata.refs.values()} == {
                snapshot.snapshot_id for snapshot in table.metadata.snapshots
            }
    earlier = sorted(kept & load_tables(catalog)["files"].metadata.refs.keys())
    assert len(earlier) > 5
    for tag in earlier[::3]:
        assert list_differences(lake, int(tag.removeprefix("sync-")), reader(catalog, tag)) == [], tag
