"""`scanlake query --all`: the newest snapshots of all sources as one database that cannot be written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from pipeline.emulator import Emulator, make_quirks
from pipeline.lake.lake import Lake
from pipeline.query.reader import open_all_catalogs
from tests.lake.lake_builder import AT, commit
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Scanlake


def rows(db: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    return db.execute(sql).fetchall()


async def test_every_table_has_the_rows_of_all_sources(tmp_path: Path) -> None:
    """Tables and views have a first column `source`, deltas count once, sources have own names, nothing is written."""
    lakes = {name: tmp_path / name for name in ("north", "south")}
    quirks = make_quirks("seen", {"decimals": "comma"})
    async with Emulator(30, seed=1, quirks=quirks) as first, Emulator(20, seed=2) as second:
        await synced(first, lakes["north"])
        await synced(second, lakes["south"])
        first.world.update(first.world.pick_random(10))
        await synced(first, lakes["north"])  # now with former versions
    (tmp_path / "secret").write_text("x")
    with open_all_catalogs(lakes, memory=1 << 30) as db:
        counted = "SELECT source, count(*), count(DISTINCT file_id) FROM files GROUP BY ALL ORDER BY ALL"
        assert rows(db, counted) == [("north", 30, 30), ("south", 20, 20)]
        for view in ("fields_wide", "workflow_progress", "damage_by_month", "workflow_steps"):
            assert rows(db, f"FROM {view} LIMIT 5")
        assert rows(db, "SELECT source, snapshot FROM meta.freshness ORDER BY 1") == [("north", 2), ("south", 1)]
        utc_now = "SELECT abs(epoch(utc_now()) - epoch(now())) < 5, typeof(utc_now())"
        assert rows(db, utc_now) == [(True, "TIMESTAMP")]
        for name, lake in lakes.items():
            with opened(lake) as own:
                own.execute("SET TimeZone = 'America/Los_Angeles'")  # utc_now() is UTC in every session
                assert rows(own, utc_now) == [(True, "TIMESTAMP")]
                for table in ("uploads", "meta.misfits", "form_answers_wide"):
                    question = f"SELECT count(*), sum(file_id % 97) FROM {table}"
                    expected = rows(own, question)
                    assert rows(db, f"{question} WHERE source = '{name}'") == expected
                    assert rows(db, question.replace(table, f"{name}.{table}")) == expected
        firsts = "SELECT DISTINCT column_name FROM duckdb_columns() WHERE database_name = 'memory' AND column_index = 1"
        assert rows(db, firsts) == [("source",)]
        for statement in (  # what DuckDB itself refuses when a query gets past the check
            f"FROM read_text('{tmp_path}/secret')",
            f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
            "DELETE FROM north.files",
            "SET enable_external_access = true",
            "SET lock_configuration = false",
        ):
            with pytest.raises(duckdb.Error, match=r"disabled|read-only|locked"):
                db.execute(statement)
    assert not (tmp_path / "out.csv").exists()


def test_a_query_asks_all_sources(tmp_path: Path, main: Scanlake) -> None:
    """The command answers from all sources, confined as ever, leaves no file, and names a source with a fault."""

    def make(name: str, field: str) -> None:
        with Lake(tmp_path / "lake" / name, doing="test") as lake:
            commit(lake, {1: 1}, {"fields": [{"file_id": 1, "position": 0, "name": field, "value": "web"}]})
            lake.publish("run", at=AT, complete=True, watermark=AT)

    config = tmp_path / "scanlake.toml"
    config.write_text(tables := "[sources.s0]\n[sources.s1]\n")
    make("s0", "Source")
    missing = main("query", "--all", "FROM files")
    assert (missing.code, missing.out) == (2, "")
    assert "Source s1 has no lake at" in missing.err
    assert "scanlake sync --source s1" in missing.err
    make("s1", "Other")
    answer = main("query", "--all", 'SELECT source, "source (2)" AS own, Other FROM fields_wide ORDER BY 1', "--json")
    assert answer.json["rows"] == [
        {"source": "s0", "own": "web", "Other": None},  # a custom field called Source beside the source of the row
        {"source": "s1", "own": None, "Other": "web"},
    ]
    assert main("query", "--all", "FROM files", "-o", "all.csv").code == 0
    assert (tmp_path / "all.csv").read_text().startswith('"source",')
    assert sorted(path.name for path in (tmp_path / "lake").iterdir()) == ["s0", "s1"]
    for refused, reason in (
        (("FROM read_text('scanlake.toml')",), "a query reads tables only"),
        (("ATTACH 'lake/s0/catalog.duckdb' AS more",), "a query reads tables only"),
        (("SELECT 1", "--source", "s0"), "--all and --source exclude each other"),
        (("SELECT 1", "--lake", "lake/s0"), "--all and --lake exclude each other"),
        (("SELECT 1", "-o", "lake/s1/x.csv"), "Use a path outside the lake"),
    ):
        answer = main("query", "--all", *refused)
        assert (answer.code, reason in answer.err) == (2, True), answer.err
    config.write_text("")
    assert "has no sources" in main("query", "--all", "SELECT 1").err
    config.write_text(tables)
    catalog = tmp_path / "lake" / "s1" / "catalog.duckdb"
    catalog.chmod(0o600)
    with duckdb.connect(str(catalog)) as db:
        db.execute("UPDATE meta._freshness SET complete = false")
    answer = main("query", "--all", "SELECT 1")
    assert (answer.code, "Snapshot 1 of s1 was published during a run" in answer.err) == (0, True)
    catalog.write_text("junk")
    answer = main("query", "--all", "SELECT 1")
    assert (answer.code, "s1: the catalog cannot be opened" in answer.err) == (9, True), answer.err
