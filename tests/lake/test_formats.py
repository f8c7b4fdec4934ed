"""Ledgers of earlier and later formats."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import duckdb
import pytest

from pipeline.cli import main
from pipeline.emulator import Emulator
from pipeline.errors import Exit, SettingsError
from pipeline.lake.formats import FORMAT, bring_up
from pipeline.lake.lake import Lake
from pipeline.lake.ledger import Ledger
from tests.lake.damaging import checked
from tests.lake.made import AT, commit
from tests.oracle import differences
from tests.sync.running import SEED, opened, synced

if TYPE_CHECKING:
    from pathlib import Path

_AGED = """
DROP TABLE wide_name; DROP TABLE owed; DROP TABLE purge; DROP TABLE shape; DROP TABLE verification;
DROP INDEX file_deleted; DROP INDEX file_unsettled; DROP TABLE share;
ALTER TABLE file_version DROP COLUMN instance;
ALTER TABLE snapshot DROP COLUMN sha256; ALTER TABLE report_batch DROP COLUMN split;
INSERT INTO report_batch (job, batch, label) VALUES ('j', 1, 'a');
PRAGMA user_version = 1;
"""


def shape(ledger: Path) -> set[tuple[str, ...]]:
    """Every table with its columns, and every index."""
    with closing(sqlite3.connect(ledger)) as db:
        columns = db.execute(
            "SELECT m.name, c.name, c.type, c.\"notnull\", coalesce(c.dflt_value, ''), c.pk FROM sqlite_master AS m,"
            " pragma_table_info(m.name) AS c WHERE m.type = 'table'"
        ).fetchall()
        indexes = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL").fetchall()
        return {tuple(map(str, row)) for row in [*columns, *indexes, *db.execute("PRAGMA user_version")]}


async def test_an_earlier_format_is_brought_up(tmp_path: Path) -> None:
    """A ledger that lacks tables, columns and indexes gets them when it is opened, keeps its rows, and syncs on."""
    lake = tmp_path / "lake"
    async with Emulator(20, seed=SEED) as emulator:
        await synced(emulator, lake)
        wanted = shape(lake / "ledger.sqlite")
        with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
            db.executescript(_AGED)
        assert len(shape(lake / "ledger.sqlite")) < len(wanted) - 30
        emulator.world.update(emulator.world.some(5))
        await synced(emulator, lake)
        with opened(lake) as reader:
            assert differences(reader, emulator.truth()) == []
    assert shape(lake / "ledger.sqlite") == wanted
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        assert db.execute("SELECT job, batch, label, split FROM report_batch").fetchall() == [("j", 1, "a", 0)]
    assert checked(lake, read_data=True).damage == []


def test_all_or_nothing(tmp_path: Path) -> None:
    """A migration that fails half-way leaves the ledger as it was, and the next one is whole."""
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    wanted = shape(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(_AGED)
        aged = shape(path)

        def forbid(action: int, name: str | None, *_: object) -> int:
            denied = action == sqlite3.SQLITE_CREATE_INDEX and name == "file_deleted"
            return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

        db.set_authorizer(forbid)
        with pytest.raises(sqlite3.DatabaseError):
            bring_up(db)
        db.set_authorizer(None)
        assert shape(path) == aged
        bring_up(db)
    assert shape(path) == wanted


def test_a_newer_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a newer scanlake wrote is refused with exit 2 and one line, and nothing in the folder changes."""
    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as made:
        commit(made, {1: 0})
        made.publish("", at=AT, complete=True, horizon=None)
    (lake / "parts" / "uploads" / "empty.parquet").unlink()  # opening the lake would write it anew
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        db.execute(f"PRAGMA user_version = {FORMAT + 1}")
    before = content(lake)
    with pytest.raises(SettingsError, match="newer scanlake"), Lake(lake, doing="test"):
        pass
    with pytest.raises(SettingsError, match="newer scanlake"):
        Ledger(lake / "ledger.sqlite")
    for verb in ("compact", "publish", "check"):
        with pytest.raises(SystemExit) as ended:
            main([verb, "--lake", str(lake)])
        assert ended.value.code == Exit.USAGE
        assert "nothing was touched" in capsys.readouterr().err
    assert content(lake) == before
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as reader:
        assert reader.execute("SELECT files FROM meta.freshness").fetchall() == [(1,)]


def content(folder: Path) -> dict[str, str]:
    """Every file below a folder, by its hash."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
