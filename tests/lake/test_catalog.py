"""The catalog, whose tables are updated from publish to publish, and the snapshots, which are views over the parts."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import duckdb
import pytest

from pipeline.lake import catalog, catalog_tables
from pipeline.lake.catalog import is_rebuild_due
from pipeline.lake.catalog_integrity import find_damaged_catalogs
from pipeline.lake.kept_snapshots import RetentionRules
from pipeline.lake.lake import Lake
from pipeline.lake.retention import expire_snapshots
from pipeline.maintenance.compact import is_compaction_due, run_compaction
from pipeline.settings import Settings
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import compact_all

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.lake.models import DeltaBase

_HOSTILE: Final = ("DELETE FROM files WHERE file_id = 1", "UPDATE files SET snap_count = 7 WHERE file_id = 2")


def _open(root: Path) -> Lake:
    return Lake(root, doing="test")


def _fill(lake: Lake, *, files: int = 40, stamp: int = 1, first_upload: int = 0) -> None:
    uploads = [{"file_id": key, "id": first_upload + key, "position": 0} for key in range(1, files + 1)]
    commit(lake, dict.fromkeys(range(1, files + 1), 1), {"uploads": uploads}, stamp=stamp)


def _publish(lake: Lake, stamp: int = 1) -> None:
    lake.publish("run", at=AT + stamp, complete=True, watermark=AT + stamp)


def _base(lake: Lake) -> DeltaBase:
    base = lake.ledger.properties.delta_base
    assert base is not None
    return base


def _rows(path: Path) -> dict[str, Counter[str]]:
    """Return the rows of every table and view of a catalog, but those whose contents are about the publish."""
    with duckdb.connect(str(path), read_only=True) as db:
        names = db.execute(
            "SELECT DISTINCT table_schema || '.' || table_name FROM information_schema.tables"
            " WHERE table_name NOT IN ('freshness', '_freshness', 'ledger', 'runs', 'open_workflow_runs') ORDER BY 1"
        ).fetchall()
        return {name: Counter(map(repr, db.execute(f"FROM {name}").fetchall())) for (name,) in names}


def _columns(path: Path) -> list[tuple[object, ...]]:
    with duckdb.connect(str(path), read_only=True) as db:
        return db.execute(
            "SELECT schema_name, table_name, column_name, data_type, comment FROM duckdb_columns() WHERE NOT internal"
            " ORDER BY ALL"
        ).fetchall()


def test_catalog_and_snapshot_show_the_same(tmp_path: Path) -> None:
    """Tables and views have the same names, columns and rows; a snapshot has no comments."""
    with _open(tmp_path) as lake:
        _fill(lake)
        commit(lake, {3: 0, 4: 2}, gone=[7, 8], stamp=2)
        _publish(lake)
    catalog, snapshot = tmp_path / "catalog.duckdb", tmp_path / "snapshots" / "000001.duckdb"
    assert _columns(snapshot) == [(*row[:-1], None) for row in _columns(catalog)]
    assert _rows(snapshot) == _rows(catalog)


def test_an_update_changes_the_rows_of_changed_files_only(tmp_path: Path) -> None:
    """A publish after a few changes updates a copy of the catalog, and shows the rows that a new one would show."""
    with _open(tmp_path / "lake") as lake:
        _fill(lake)
        _publish(lake)
        assert _base(lake)["replaced_rows"] == 0
        commit(lake, {3: 0, 4: 2, 99: 1}, {"uploads": [{"file_id": 99, "id": 5, "position": 0}]}, gone=[7], stamp=2)
        _publish(lake, 2)
        # Deleted: a file and the uploads of three. Inserted: a file, its upload, a deleted file. Updated: two files.
        assert _base(lake)["replaced_rows"] == 4 + 3
        shown, snapshot = (_rows(tmp_path / "lake" / name) for name in ("catalog.duckdb", "snapshots/000002.duckdb"))
        assert shown == snapshot
        assert shown["main.files"].total() == 40


def test_a_catalog_needs_nothing_beside_it(tmp_path: Path) -> None:
    """A copy of the catalog answers from another folder, after the lake is gone, without access to any other file."""
    with _open(tmp_path / "lake") as lake:
        _fill(lake)
        _publish(lake)
    expected = _rows(tmp_path / "lake" / "catalog.duckdb")
    shutil.copyfile(tmp_path / "lake" / "catalog.duckdb", tmp_path / "copy.duckdb")
    shutil.rmtree(tmp_path / "lake")
    with duckdb.connect(str(tmp_path / "copy.duckdb"), read_only=True) as db:
        db.execute("SET enable_external_access = false")
        of_documents = {"main.file_history", "main.file_versions", "main.file_events"}
        for name in sorted(expected.keys() - of_documents):
            assert Counter(map(repr, db.execute(f"FROM {name}").fetchall())) == expected[name]


@pytest.mark.parametrize("statement", _HOSTILE)
def test_a_catalog_that_somebody_changed_is_not_updated(tmp_path: Path, statement: str) -> None:
    """What a session wrote to the catalog is found by check, and is gone after the next publish."""
    with _open(tmp_path / "lake") as lake:
        _fill(lake)
        _publish(lake)
        path = lake.layout.catalog
        path.chmod(0o600)
        with duckdb.connect(str(path)) as db:
            db.execute(statement)
        assert [issue.problem for issue in find_damaged_catalogs(lake.layout, lake.ledger)] == [
            "files has other rows than the parts"
        ]
        commit(lake, {3: 5}, stamp=2)
        _publish(lake, 2)
        assert _base(lake)["replaced_rows"] == 0
        assert _rows(path) == _rows(lake.layout.snapshot_path(2))


@pytest.mark.parametrize("change", ["bytes", "lost", "format", "older"])
def test_a_catalog_that_cannot_be_updated_is_built(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged or lost catalog, one of another format or an older one is replaced by one from the parts."""
    with _open(tmp_path / "lake") as lake:
        _fill(lake, files=3_000)
        _publish(lake)
        path = lake.layout.catalog
        if change == "bytes":  # in every block but the headers; the file looks untouched
            status, content = path.stat(), bytearray(path.read_bytes())
            content[12_288 + 100 :: 4_096] = bytes(len(content[12_288 + 100 :: 4_096]))
            path.chmod(0o600)
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        elif change == "lost":
            path.unlink()
        elif change == "format":
            monkeypatch.setattr(catalog_tables, "_FORMAT", 0)
        else:
            shutil.copy2(path, tmp_path / "older")
            commit(lake, {5: 5}, stamp=2)
            _publish(lake, 2)
            (tmp_path / "older").rename(path)
        commit(lake, {3: 5}, stamp=3)
        _publish(lake, 3)
        assert _base(lake)["replaced_rows"] == 0
        assert _rows(path) == _rows(max(lake.layout.root.glob("snapshots/*")))


def test_waste_is_removed(tmp_path: Path) -> None:
    """When updates have deleted or inserted a fifth of the rows, a compaction is due, which builds the tables again."""
    with _open(tmp_path / "lake") as lake:
        settings = Settings(lake=tmp_path / "lake")
        _fill(lake, files=12_000)
        _publish(lake)
        assert not is_compaction_due(lake)
        _fill(lake, files=3_000, stamp=2)
        _publish(lake, 2)
        assert _base(lake)["replaced_rows"] == 0, "changed rows keep their place"
        for stamp in range(3, 6):
            _fill(lake, files=3_000, stamp=stamp, first_upload=stamp * 100_000)
            _publish(lake, stamp)
        assert is_rebuild_due(lake.layout, lake.ledger)
        run_compaction(lake, settings)
        assert not is_compaction_due(lake)
        assert (_base(lake)["replaced_rows"], _base(lake)["built_rows"]) == (0, 24_000)


def test_free_blocks_are_no_waste(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update leaves free blocks, which the next one writes to: however many follow, no rebuild is due for them."""
    monkeypatch.setattr(catalog, "_MAX_GROWTH", 1.7)
    monkeypatch.setattr(catalog, "_MIN_WASTE", 0)
    with _open(tmp_path / "lake") as lake:
        _fill(lake, files=12_000)
        _publish(lake)
        sizes = []
        for stamp in range(2, 12):
            _fill(lake, files=100, stamp=stamp)
            _publish(lake, stamp)
            sizes.append(lake.layout.catalog.stat().st_size)
            assert not is_rebuild_due(lake.layout, lake.ledger)
        built = _base(lake)["built_bytes"]
        assert max(sizes) > 1.7 * built, "there was nothing to excuse"
        assert sizes[-1] <= max(sizes[:3])


# How often a catalog is published


def _snapshots(lake: Lake) -> list[str]:
    return sorted(path.stem for path in lake.layout.root.glob("snapshots/*.duckdb"))


def _freshness(lake: Lake) -> tuple[object, ...]:
    with duckdb.connect(str(lake.layout.catalog), read_only=True) as db:
        return db.execute("SELECT snapshot, complete, epoch_us(watermark) FROM meta.freshness").fetchall()[0]


def test_a_later_watermark_makes_no_snapshot(tmp_path: Path) -> None:
    """A publish without new rows renews the newest snapshot; so does one after a compaction. None is pushed out."""
    with _open(tmp_path / "lake") as lake:
        settings = Settings(lake=tmp_path / "lake", keep_snapshots=1, retention_hours=0)
        _fill(lake)
        lake.publish("run", at=AT, complete=False, watermark=None)
        assert _freshness(lake) == (1, False, None)
        _publish(lake, 5)
        assert (_freshness(lake), _snapshots(lake)) == ((1, True, AT + 5), ["000001"])
        commit(lake, {3: 0}, stamp=2)
        _publish(lake, 6)
        compact_all(lake, settings)
        _publish(lake, 7)
        assert (_freshness(lake), _snapshots(lake)) == ((2, True, AT + 7), ["000002"])
        assert not list(find_damaged_catalogs(lake.layout, lake.ledger))
        expire_snapshots(lake.layout, lake.ledger, RetentionRules(newest=1, seconds=0), now=time.time() + 1)
        assert not lake.ledger.retired_parts(), "parts that no snapshot names"
        assert _rows(lake.layout.catalog) == _rows(lake.layout.snapshot_path(2))


def test_a_killed_renewal_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publish that ends between a snapshot's renewal and its record leaves a whole lake, and the next one ends it."""
    with _open(tmp_path / "lake") as lake:
        _fill(lake)
        _publish(lake)
        with monkeypatch.context() as patch:
            patch.setattr(catalog, "write_catalog", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                _publish(lake, 9)
        assert _freshness(lake) == (1, True, AT + 1)
        assert not list(find_damaged_catalogs(lake.layout, lake.ledger))
        _publish(lake, 9)
        assert _freshness(lake) == (1, True, AT + 9)


def test_records_are_published_with_their_time(tmp_path: Path) -> None:
    """A publish of records alone takes no snapshot, and readers see when it was."""
    with _open(tmp_path / "lake") as lake:
        _fill(lake)
        _publish(lake)
        lake.republish_records(at=AT + 2)
        with duckdb.connect(str(lake.layout.catalog), read_only=True) as db:
            shown = db.execute("SELECT snapshot, epoch_us(published_at) FROM meta.freshness").fetchall()
        assert shown == [(1, AT + 2)]
        assert not list(find_damaged_catalogs(lake.layout, lake.ledger))


def test_a_built_catalog_is_clustered_by_file(tmp_path: Path) -> None:
    """The rows of each table lie in the order of the files, whatever the order of the commits."""
    with _open(tmp_path / "lake") as lake:
        for stamp, low in enumerate((3_000, 1, 1_500), 1):
            ids = range(low, low + 1_500)
            uploads = [{"file_id": key, "id": key, "position": place} for key in reversed(ids) for place in (1, 0)]
            commit(lake, dict.fromkeys(reversed(ids), 2), {"uploads": uploads}, stamp=stamp)
        _publish(lake)
    with duckdb.connect(str(tmp_path / "lake" / "catalog.duckdb"), read_only=True) as db:
        rows = db.execute("SELECT file_id, position FROM uploads ORDER BY rowid").fetchall()
        assert rows == [(key, place) for key in range(1, 4_500) for place in (0, 1)]


def test_a_catalog_of_mostly_new_rows_is_built(tmp_path: Path) -> None:
    """A lake that was published empty, as every first sync does, is built with its files: nothing is to be rebuilt."""
    with _open(tmp_path / "lake") as lake:
        _publish(lake)
        _fill(lake, files=3_000)
        _publish(lake, 2)
        assert not is_compaction_due(lake)
        assert _base(lake)["replaced_rows"] == 0
        commit(lake, dict.fromkeys(range(1, 100), 1), stamp=3)
        _publish(lake, 3)
        assert _base(lake)["replaced_rows"] > 0, "few new rows are an update"


def test_an_update_of_a_large_catalog_only_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a size no row group is written again to merge it with those of later updates."""
    monkeypatch.setattr(catalog_tables, "_MAX_MERGED_BYTES", 0)
    groups = []
    with _open(tmp_path / "lake") as lake:
        _fill(lake)
        for stamp in range(1, 7):
            commit(lake, {100 + stamp: 0}, stamp=stamp)
            _publish(lake, stamp)
            with duckdb.connect(str(lake.layout.catalog), read_only=True) as db:
                count = "SELECT count(DISTINCT row_group_id) FROM pragma_storage_info('files')"
                groups += db.execute(count).fetchall()
    assert groups == [(number,) for number in range(1, 7)]
