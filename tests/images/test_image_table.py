"""The table `images` of the catalog: its rows, its descriptions, and what an update writes."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import duckdb

from pipeline.errors import ExitCode
from tests.images.image_harness import disagreements, rows_of, scene, stored
from tests.lake.operations import republish

if TYPE_CHECKING:
    from pathlib import Path

_COLUMNS = "file_id, upload_id, kind, state, sha256, bytes, width, epoch_us(taken_at), epoch_us(fetched_at), path"
_KEYS = ("file_id", "upload_id", "kind", "state", "sha256", "bytes", "width", "taken_at", "fetched_at", "path")


def _query(path: Path, sql: str) -> list[Any]:
    with closing(duckdb.connect(str(path), read_only=True)) as db:
        return db.execute(sql).fetchall()


def _published(lake: Path) -> list[Any]:
    return _query(lake / "catalog.duckdb", f"SELECT {_COLUMNS} FROM images ORDER BY ALL")


def _recorded(lake: Path) -> list[Any]:
    return sorted(tuple(row[name] for name in _KEYS) for row in rows_of(lake).values())


async def test_the_table_has_the_rows_of_the_ledger(tmp_path: Path) -> None:
    """After each run the published table equals the ledger, with later rows for earlier ones; snapshots have none."""
    async with scene(tmp_path, 20, html_ratio=0.2) as here:
        republish(here.lake)
        catalog = here.lake / "catalog.duckdb"
        tables = "SELECT DISTINCT table_name FROM duckdb_columns() WHERE table_name = 'images'"
        assert _query(catalog, tables) == []
        assert (await here.fetch()).code == ExitCode.REJECTS
        assert _published(here.lake) == _recorded(here.lake)
        here.host.set_options(html_ratio=0.0)
        assert (await here.fetch("--retry", "--thumbnails")).code == ExitCode.OK
        assert _published(here.lake) == _recorded(here.lake)
        assert {row[3] for row in _published(here.lake)} == {"stored"}
        assert (await here.run("sync")).code == ExitCode.OK
        assert _published(here.lake) == _recorded(here.lake)
        for snapshot in (here.lake / "snapshots").iterdir():
            assert _query(snapshot, tables) == []
        described = _query(catalog, "SELECT * FROM meta.data_dictionary WHERE table_name = 'images'")
        assert len(described) == 15
        assert all(row[3] for row in described)
        shown = await here.run("tables", "images")
        assert "SHA-256 of the picture" in shown.out


async def test_a_lost_ledger_gets_its_pictures_back_from_the_catalog(tmp_path: Path) -> None:
    """The rows of pictures are rebuilt from the catalog: nothing is fetched again."""
    async with scene(tmp_path, 10) as here:
        assert (await here.fetch()).code == ExitCode.OK
        before = _recorded(here.lake)
        for path in here.lake.glob("ledger.sqlite*"):
            path.unlink()
        calls = here.calls()
        again = await here.fetch()
        assert (again.code, again.json["stored"]) == (ExitCode.OK, 0)
        assert here.calls() == calls
        assert _recorded(here.lake) == before
        assert stored(here.lake) == set(here.truth())
        assert disagreements(here.lake, here.truth()) == []
