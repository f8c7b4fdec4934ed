"""The tables that scanlake keeps in a catalog for itself are apart from the data, also for catalogs written before."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import duckdb

from pipeline.dashboard.queries import load_dashboard_data
from pipeline.lake.catalog_options import CatalogOptions
from pipeline.lake.lake import Lake
from pipeline.lake.models import RunRecord
from pipeline.lake.snapshots import diff_snapshots, read_snapshot, roll_back
from pipeline.maintenance.union import write_union
from schemas.tables import TABLES
from tests.lake.lake_builder import AT, commit

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.lake.models import SnapshotRecord

_FORMER = {"physical.superseded_versions": "main._superseded_versions", "physical.parts": "main._parts"}
_FORMER["physical.ledger"] = "main._ledger"


def _publish(lake: Lake, stamp: int) -> SnapshotRecord:
    return lake.publish("run", at=AT + stamp, complete=True, watermark=AT + stamp)


def _fill(folder: Path, options: CatalogOptions) -> None:
    """Publish two snapshots: files 1 to 4, then 3 changed, 5 added and 1 deleted."""
    with Lake(folder, doing="test", options=options) as lake:
        commit(lake, dict.fromkeys(range(1, 5), 1))
        _publish(lake, 1)
        commit(lake, {3: 2, 5: 1}, gone=[1], stamp=2)
        _publish(lake, 2)


def _give_former_layout(path: Path) -> None:
    """Move the tables of a catalog to where earlier versions had them."""
    path.chmod(0o600)
    with duckdb.connect(str(path)) as db:
        views = db.execute(
            "SELECT sql FROM duckdb_views() WHERE NOT internal AND contains(sql, 'physical.')"
        ).fetchall()
        for name, former in _FORMER.items():
            db.execute(f"CREATE TABLE {former} AS FROM {name}")
        for (sql,) in views:
            changed = sql.replace("physical.superseded_versions", "main._superseded_versions")
            db.execute(changed.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1))
        db.execute("DROP SCHEMA physical CASCADE")


def _files(path: Path, table: str = "files") -> list[int]:
    with duckdb.connect(str(path), read_only=True) as db:
        return [row[0] for row in db.execute(f"SELECT file_id FROM {table} ORDER BY 1").fetchall()]


def test_the_tables_of_the_data_come_first(tmp_path: Path) -> None:
    """What lists the tables of a catalog shows those of the data: scanlake's own are in the last schema."""
    _fill(tmp_path / "lake", CatalogOptions(form="tables"))
    with duckdb.connect(str(tmp_path / "lake" / "catalog.duckdb"), read_only=True) as db:
        listed = db.execute("SELECT schema_name, table_name FROM duckdb_tables() ORDER BY ALL").fetchall()
        shown = [name for (name,) in db.execute("SHOW TABLES").fetchall()]
    expected = sorted(table.name for table in TABLES if table.schema == "main")
    assert [name for schema, name in listed if schema == "main"] == expected
    assert listed[: len(expected)] == [("main", name) for name in expected]
    assert [row for row in listed if row[0] == "physical"] == listed[-3:]
    assert not [name for name in shown if name.startswith("_")]


def test_a_lake_of_an_earlier_version_stays_readable(tmp_path: Path) -> None:
    """Catalogs and snapshots with these tables in main are queried, compared, restored, united and published again."""
    for form in ("tables", "views"):
        options = CatalogOptions(form=form)
        folder = tmp_path / form
        _fill(folder, options)
        catalog, snapshots = folder / "catalog.duckdb", sorted((folder / "snapshots").glob("*.duckdb"))
        for path in (catalog, *snapshots):
            _give_former_layout(path)
        assert _files(catalog) == [2, 3, 4, 5]
        with duckdb.connect(str(catalog), read_only=True) as db:
            sizes = load_dashboard_data(db, "lake", datetime(2026, 11, 21)).table_sizes  # noqa: DTZ001 - as the dashboard has it
            assert {size.table_name for size in sizes} >= {"files", "raw"}
        with Lake(folder, doing="test", options=options) as lake:
            before, later = map(read_snapshot, snapshots)
            changes = [(change.change, change.file_id) for change in diff_snapshots(lake.layout, before, later)]
            assert changes == [("deleted", 1), ("changed", 3), ("added", 5)]
        union = tmp_path / f"{form}.duckdb"
        write_union({"east": folder}, union)
        assert _files(union) == [2, 3, 4, 5]
        (folder / "ledger.sqlite").unlink()
        with Lake(folder, doing="test", options=options) as lake:
            assert lake.ledger.count_files() == 4
            commit(lake, {6: 1}, stamp=3)
            _publish(lake, 3)
            assert _files(catalog) == [2, 3, 4, 5, 6]
            roll_back(lake, 1, run=RunRecord("r-9", "rollback", "0", AT, state="done"))
        assert _files(catalog) == [1, 2, 3, 4]
        with duckdb.connect(str(catalog), read_only=True) as db:
            assert db.execute("SELECT count(*) FROM physical.parts").fetchall() != [(0,)]


def test_a_union_of_both_layouts(tmp_path: Path) -> None:
    """A union reads catalogs of this version and of earlier ones side by side."""
    lakes = {"east": tmp_path / "east", "west": tmp_path / "west"}
    for folder in lakes.values():
        _fill(folder, CatalogOptions(form="views"))
    _give_former_layout(lakes["west"] / "catalog.duckdb")
    write_union(lakes, tmp_path / "union.duckdb")
    assert _files(tmp_path / "union.duckdb") == [2, 2, 3, 3, 4, 4, 5, 5]
