"""Ledgers of earlier and later schema versions."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import duckdb
import pytest

from pipeline.cli import main
from pipeline.emulator import Emulator
from pipeline.errors import ExitCode, LakeCorruptedError, SettingsError
from pipeline.lake import migrations
from pipeline.lake.lake import Lake
from pipeline.lake.layout import LakeLayout
from pipeline.lake.ledger import Ledger
from pipeline.lake.migrations import SCHEMA_VERSION, migrate
from pipeline.lake.reader import open_ledger_readonly
from tests.lake.corruption import checked
from tests.lake.lake_builder import AT, commit
from tests.oracle import differences
from tests.sync.sync_harness import SEED, opened, synced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NEXT_COLUMNS = {
    "split INTEGER NOT NULL DEFAULT 0,": "split INTEGER NOT NULL DEFAULT 0, priority INTEGER NOT NULL DEFAULT 7,",
    "purged_by TEXT NOT NULL": "purged_by TEXT NOT NULL, ticket_url TEXT",
}
_NEXT_TABLE = """
CREATE TABLE invented (invented_id INTEGER PRIMARY KEY, invented_text TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX invented_by_text ON invented (invented_text);
CREATE INDEX purge_by_url ON purge (ticket_url);
"""


@contextmanager
def next_version() -> Iterator[None]:
    """Let this process be the next version of scanlake, whose ledger has more columns, a table and two indexes."""
    schema = migrations._SCHEMA
    for old, new in _NEXT_COLUMNS.items():
        assert old in schema
        schema = schema.replace(old, new)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "_SCHEMA", schema + _NEXT_TABLE)
        patch.setattr(migrations, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        yield


def read_schema(ledger: Path) -> set[tuple[str, ...]]:
    """Every table with its columns, every index, and the version."""
    with closing(sqlite3.connect(ledger)) as db:
        columns = db.execute(
            "SELECT m.name, c.name, c.type, c.\"notnull\", coalesce(c.dflt_value, ''), c.pk FROM sqlite_master AS m,"
            " pragma_table_info(m.name) AS c WHERE m.type = 'table'"
        ).fetchall()
        indexes = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL").fetchall()
        return {tuple(map(str, row)) for row in [*columns, *indexes, *db.execute("PRAGMA user_version")]}


def test_the_schema_version_is_one() -> None:
    """No lake exists outside of development: the first release begins with schema version 1."""
    assert SCHEMA_VERSION == 1


async def test_an_earlier_schema_is_migrated(tmp_path: Path) -> None:
    """A ledger without tables, columns and indexes of the next version gets them, keeps its rows, and syncs on."""
    lake = tmp_path / "lake"
    async with Emulator(20, seed=SEED) as emulator:
        await synced(emulator, lake)
        before = read_schema(lake / "ledger.sqlite")
        with closing(sqlite3.connect(lake / "ledger.sqlite")) as db, db:
            db.execute("INSERT INTO report_batch (job, batch, label) VALUES ('j', 1, 'a')")
        emulator.world.update(emulator.world.pick_random(5))
        with next_version():
            Ledger(tmp_path / "new.sqlite").close()
            await synced(emulator, lake)
            with opened(lake) as reader:
                assert differences(reader, emulator.truth()) == []
            assert checked(lake, read_data=True).damage == []
    migrated = read_schema(lake / "ledger.sqlite")
    assert migrated == read_schema(tmp_path / "new.sqlite")
    assert len(migrated - before) == len(_NEXT_COLUMNS) + 2 + 2 + 1  # columns, of which two new, indexes, version
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        assert db.execute("SELECT job, batch, label, priority FROM report_batch").fetchall() == [("j", 1, "a", 7)]


def test_all_or_nothing(tmp_path: Path) -> None:
    """A migration that fails half-way leaves the ledger as it was, and the next one is complete."""
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    before = read_schema(path)

    def forbid(action: int, name: str | None, *_: object) -> int:
        denied = action == sqlite3.SQLITE_CREATE_INDEX and name == "purge_by_url"
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    with closing(sqlite3.connect(path, isolation_level=None)) as db, next_version():
        db.set_authorizer(forbid)
        with pytest.raises(sqlite3.DatabaseError):
            migrate(db)
        db.set_authorizer(None)
        assert read_schema(path) == before
        migrate(db)
        Ledger(tmp_path / "new.sqlite").close()
    assert read_schema(path) == read_schema(tmp_path / "new.sqlite") != before


def test_a_newer_schema_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a newer scanlake wrote is refused with exit 2 and one line, and nothing in the folder changes."""
    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as open_lake:
        commit(open_lake, {1: 0})
        open_lake.publish("", at=AT, complete=True, watermark=None)
    (lake / "parts" / "uploads" / "empty.parquet").unlink()  # opening the lake would write it again
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = content(lake)
    with pytest.raises(SettingsError, match="newer scanlake"), Lake(lake, doing="test"):
        pass
    with pytest.raises(SettingsError, match="newer scanlake"):
        Ledger(lake / "ledger.sqlite")
    for command in ("compact", "publish", "check"):
        with pytest.raises(SystemExit) as ended:
            main([command, "--lake", str(lake)])
        assert ended.value.code == ExitCode.USAGE
        assert "this one changed nothing" in capsys.readouterr().err
    assert content(lake) == before
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as reader:
        assert reader.execute("SELECT files FROM meta.freshness").fetchall() == [(1,)]


def test_a_ledger_that_is_no_database_is_damage_for_readers(tmp_path: Path) -> None:
    """A ledger whose first page is damaged has no readable schema version: `doctor` and `plan` report damage."""
    layout = LakeLayout(tmp_path)
    layout.ledger.write_bytes(b"no database" * 1_000)
    with pytest.raises(LakeCorruptedError, match="not a database"), open_ledger_readonly(layout):
        pass


def content(folder: Path) -> dict[str, str]:
    """Every file below a folder, by its hash."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
