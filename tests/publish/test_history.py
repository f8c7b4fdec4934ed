"""Every state of a lake, as a mirror and as Iceberg tables, equals the lake's snapshot row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from pipeline.lake.file_names import list_snapshots
from pipeline.lake.layout import LakeLayout
from pipeline.publish import iceberg_changes, iceberg_snapshots
from pipeline.publish.iceberg_publish import publish_iceberg
from pipeline.publish.object_store import open_store
from tests.lake.lake_builder import AT
from tests.publish.iceberg_reading import connect, load_tables, read_all
from tests.publish.lake_history import LAKE_ID, list_differences, live_history
from tests.publish.target_reading import differing, published
from tests.soaking import SOAKING

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.publish.iceberg_catalogs import IcebergCatalog

_SYNCS_AFTER_PURGE: Final = 10 if SOAKING else 2


def check_tables(catalog: IcebergCatalog, lake: Path, number: int, *, step: int) -> None:
    """Publish Iceberg tables; compare all of them with the snapshot, and their tags with the kept snapshots."""
    layout = LakeLayout(lake)
    result = publish_iceberg(catalog, layout, number, lake_id=LAKE_ID, at=AT + step)
    assert (result.snapshot, result.tag) == (number, f"sync-{number}")
    tables = load_tables(catalog)
    assert list_differences(lake, number, read_all(tables)) == []
    kept = {f"sync-{snapshot}" for snapshot, _ in list_snapshots(layout)}
    for table in tables.values():
        refs = table.metadata.refs
        assert refs.keys() == (kept & refs.keys()) | {"main"}
        assert refs[result.tag].snapshot_id == table.metadata.current_snapshot_id
        assert {ref.snapshot_id for ref in refs.values()} == {
            snapshot.snapshot_id for snapshot in table.metadata.snapshots
        }


@pytest.mark.parametrize(
    ("place", "kinds"),
    [
        ("files", ["sql on files"]),
        pytest.param("S3", ["none on S3", "sql on S3", "glue on S3"], marks=pytest.mark.soak),
    ],
)
def test_every_snapshot_is_published_whole(
    place: str, kinds: list[str], request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every step mirror and tables equal the snapshot, tables also by its tag; earlier tags stay as they were."""
    if not SOAKING:  # this history is too short for the real limits
        monkeypatch.setattr(iceberg_changes, "MAX_DELETE_FILES", 3)
        monkeypatch.setattr(iceberg_snapshots, "_MAX_MANIFESTS", 3)
    lake, s3_url = tmp_path / "lake", request.getfixturevalue("s3_url") if place == "S3" else ""
    catalogs = []
    for kind in kinds:
        folder = tmp_path / kind.partition(" ")[0]
        folder.mkdir()
        catalogs.append(connect(kind, folder, f"{s3_url}/{folder.name}"))
    mirror = open_store(s3_url or f"file://{tmp_path}/mirror")
    for step, (name, number) in enumerate(live_history(lake, syncs_after_purge=_SYNCS_AFTER_PURGE)):
        for catalog in catalogs:
            check_tables(catalog, lake, number, step=step)
        result = published(lake, mirror)
        assert (result.changed, result.snapshot) == (True, number), name
        if name == "changed after a rollback":
            assert differing(lake, mirror, tmp_path / "copy") == []
    assert differing(lake, mirror, tmp_path / "later copy") == []
    for catalog in catalogs:
        tables = load_tables(catalog)
        earlier = sorted(tables["files"].metadata.refs.keys() - {"main"})
        assert len(earlier) > 3
        for tag in earlier[::3]:
            assert list_differences(lake, int(tag.removeprefix("sync-")), read_all(tables, tag)) == [], tag
