"""Every state of a lake, published as Iceberg tables, equals the lake's snapshot row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from obstore.store import MemoryStore

from pipeline.lake.file_names import list_snapshots
from pipeline.lake.layout import LakeLayout
from pipeline.publish.cloud_store import CloudStore
from pipeline.publish.iceberg_connection import connect_catalog
from pipeline.publish.iceberg_publish import publish_iceberg
from tests.lake.lake_builder import AT
from tests.publish.iceberg_reading import load_tables, read_all
from tests.publish.lake_history import LAKE_ID, list_differences
from tests.soaking import sample

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.publish.iceberg_catalogs import IcebergCatalog
    from tests.publish.lake_history import LivedLake


def connect(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> IcebergCatalog:
    """Return a new catalog of a kind."""
    if kind == "none in memory":
        store = CloudStore("memory://test", MemoryStore())
        return connect_catalog(store.base_url, store=store)
    catalog, _, place = kind.partition(" on ")
    location = f"file://{tmp_path}/target" if place == "files" else request.getfixturevalue("s3_url")
    properties = {"sql": {"uri": f"sqlite:///{tmp_path}/catalog.sqlite"}, "glue": {"type": "glue"}}.get(catalog)
    # The server, and with it Glue, has the tables of earlier tests.
    namespace = location.split("/")[2].replace("-", "_") if catalog == "glue" else "scanlake"
    return connect_catalog(location, namespace, properties)


@pytest.mark.parametrize(
    ("kind", "count"),
    [("none in memory", 99), ("sql on files", 99), ("none on S3", 6), ("sql on S3", 6), ("glue on S3", 12)],
)
def test_every_snapshot_is_published_whole(
    kind: str, count: int, lived_lake: LivedLake, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """After every step all tables equal the snapshot, now and by its tag; kept earlier syncs stay as they were."""
    lake = lived_lake.root
    layout = LakeLayout(lake)
    catalog = connect(kind, request, tmp_path)
    for step in sample(range(len(lived_lake.steps)), count):
        name, number = lived_lake.steps[step]
        lived_lake.go_to(step)
        result = publish_iceberg(catalog, layout, number, lake_id=LAKE_ID, at=AT + step)
        assert (result.snapshot, result.tag) == (number, f"sync-{number}")
        tables = load_tables(catalog)
        assert list_differences(lake, number, read_all(tables)) == [], name
        kept = {f"sync-{snapshot}" for snapshot, _ in list_snapshots(layout)}
        for table in tables.values():
            refs = table.metadata.refs
            assert refs.keys() == (kept & refs.keys()) | {"main"}
            assert refs[result.tag].snapshot_id == table.metadata.current_snapshot_id
            assert {ref.snapshot_id for ref in refs.values()} == {
                snapshot.snapshot_id for snapshot in table.metadata.snapshots
            }
    earlier = sorted(kept & tables["files"].metadata.refs.keys())
    assert len(earlier) > min(5, count // 3)
    for tag in earlier[::3]:
        assert list_differences(lake, int(tag.removeprefix("sync-")), read_all(tables, tag)) == [], tag
