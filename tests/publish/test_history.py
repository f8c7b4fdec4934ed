"""Every state of a lake, as a mirror and as Iceberg tables, equals the lake's snapshot row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.lake.storage.layout import LakeLayout, list_snapshots
from pipeline.publish import iceberg_format, iceberg_publish
from pipeline.publish.iceberg_publish import publish_iceberg
from pipeline.publish.stores import open_store
from tests.publish.iceberg_reading import connect_sql, load_tables, reader
from tests.publish.lake_history import LAKE_ID, list_differences, live_history
from tests.publish.target_reading import differing, published
from tests.soaking import SOAKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from pipeline.publish.iceberg_catalogs import IcebergCatalog

_SYNCS_AFTER_PURGE: Final = 10 if SOAKING else 1


def check_tables(catalog: IcebergCatalog, lake: Path, number: int) -> None:
    """Publish Iceberg tables; compare all of them with the snapshot, and their tags with the kept snapshots."""
    result = publish_iceberg(catalog, LakeLayout(lake), number, lake_id=LAKE_ID)
    assert (result.snapshot, result.tag) == (number, f"sync-{number}")
    assert list_differences(lake, number, reader(catalog)) == []
    kept = {f"sync-{snapshot}" for snapshot, _ in list_snapshots(LakeLayout(lake))}
    for table in load_tables(catalog).values():
        refs = table.metadata.refs
        assert refs.keys() == (kept & refs.keys()) | {"main"}
        assert refs[result.tag].snapshot_id == table.metadata.current_snapshot_id
        named = {ref.snapshot_id for ref in refs.values()}
        assert named == {snapshot.snapshot_id for snapshot in table.metadata.snapshots}


def test_every_snapshot_is_published_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every step the tables equal the snapshot, also by its tag, and a mirror does; earlier tags stay."""
    if not SOAKING:  # this history is too short for the real limits
        monkeypatch.setattr(iceberg_publish, "_MAX_DELETE_FILES", 3)
        monkeypatch.setattr(iceberg_format, "_MAX_MANIFESTS", 3)
    lake, mirror, catalog = tmp_path / "lake", open_store(f"file://{tmp_path}/mirror"), connect_sql(tmp_path)
    for name, number in live_history(lake, syncs_after_purge=_SYNCS_AFTER_PURGE):
        check_tables(catalog, lake, number)
        if SOAKING or name in {"deleted", "changed after a rollback", "changed after another rollback"}:
            result = published(lake, mirror)
            assert (result.changed, result.snapshot) == (True, number), name
            assert differing(lake, mirror, tmp_path / "copy") == [], name
    earlier = sorted(load_tables(catalog)["files"].metadata.refs.keys() - {"main"})
    assert len(earlier) > 3
    for tag in earlier[::3]:
        assert list_differences(lake, int(tag.removeprefix("sync-")), reader(catalog, tag)) == [], tag
