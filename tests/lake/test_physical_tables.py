"""The tables that scanlake keeps in a catalog for itself are apart from the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

from pipeline.lake.lake import Lake
from schemas.tables import TABLES
from tests.lake.lake_builder import AT, commit

if TYPE_CHECKING:
    from pathlib import Path


def test_the_tables_of_the_data_come_first(tmp_path: Path) -> None:
    """What lists the tables of a catalog shows those of the data: scanlake's own are in the last schema."""
    with Lake(tmp_path / "lake", doing="test") as lake:
        commit(lake, dict.fromkeys(range(1, 5), 1))
        lake.publish("run", at=AT, complete=True, watermark=AT)
    with duckdb.connect(str(tmp_path / "lake" / "catalog.duckdb"), read_only=True) as db:
        listed = db.execute("SELECT schema_name, table_name FROM duckdb_tables() ORDER BY ALL").fetchall()
        shown = [name for (name,) in db.execute("SHOW TABLES").fetchall()]
    expected = sorted(table.name for table in TABLES if table.schema == "main")
    assert [name for schema, name in listed if schema == "main"] == expected
    assert listed[: len(expected)] == [("main", name) for name in expected]
    assert [row for row in listed if row[0] == "physical"] == listed[-3:]
    assert not [name for name in shown if name.startswith("_")]
