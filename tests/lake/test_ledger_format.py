"""Lakes of another format are refused in one line; nothing in them changes."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from pipeline import __version__
from pipeline.errors import ExitCode, SettingsError
from pipeline.lake.lake import Lake, Opening
from pipeline.lake.ledger.format import FORMAT, create_tables, require_format
from pipeline.lake.ledger.ledger import Ledger
from schemas.tables import SCHEMA_VERSION
from tests.lake.lake_builder import AT, publish_files
from tests.lake.operations import called, told

ROOT = Path(__file__).resolve().parents[2]

_COMMANDS = (
    "status",
    "snapshots",
    "tables",
    "changes --since 1",
    "export out --format csv",
    "publish --to file:///nowhere",
    "backup backup",
    "serve",
    "repair",
    "rebuild",
    "rollback 1 --yes",
    "purge 1 --yes",
)


def publish_one_file(lake: Path) -> None:
    """Make a lake with one file."""
    publish_files(lake, {1: 0})


@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lake of an earlier or later format ends every command with exit 2, one line."""
    monkeypatch.chdir(tmp_path)
    lake = tmp_path / "lake"
    publish_one_file(lake)
    (lake / "tables" / "uploads").rmdir()  # opening the lake would make it again
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        db.execute(f"PRAGMA user_version = {number}")
        db.execute("INSERT INTO run (run_id, command, version, started_at, state) VALUES ('r', 'sync', '0.0.7', 1, '')")
        db.commit()
        with pytest.raises(SettingsError, match=f"format {number} of version 0.0.7; this"):
            require_format(number, db)
        db.execute("UPDATE run SET version = ?", (__version__,))  # it would name this program
        with pytest.raises(SettingsError, match=f"format {number}; this"):
            require_format(number, db)
        db.rollback()
    before = content(lake)
    with pytest.raises(SettingsError, match=f"format {number}"), Lake(lake, doing="test"):
        pass
    with pytest.raises(SettingsError, match=f"format {number}"):
        Ledger(lake / "ledger.sqlite")
    for command in (*_COMMANDS, "query 'FROM files'"):
        (line,) = told(lake, *shlex.split(command), code=ExitCode.USAGE).splitlines()
        assert "Nothing was changed" in line, command
        assert f"format {number} of version 0.0.7; this scanlake ({__version__}) reads format {FORMAT}." in line
        assert "copy only its documents/ into a new --lake" in line
    assert content(lake) == before
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as reader:
        assert reader.execute("SELECT files FROM meta.freshness").fetchall() == [(1,)]


def test_an_older_scanlake_writes_to_no_newer_lake(tmp_path: Path) -> None:
    """A lake that a program with more columns has written is refused by all that writes, and read by the rest.

    A rebuilt ledger knows it, too.
    """
    lake = tmp_path / "lake"
    publish_one_file(lake)
    with Lake(lake, doing="test") as newer:
        assert newer.ledger.properties.schema == SCHEMA_VERSION
        newer.ledger.set_properties(schema=SCHEMA_VERSION + 1)
        newer.republish(at=AT)
    before, note = content(lake), (lake / "LOCK").read_bytes()
    writing = (
        "repair",
        "rebuild",
        "rollback 1 --yes",
        "purge 1 --yes",
        "backup backup",
        f"publish --to file://{tmp_path}/t",
    )
    for command in writing:
        answer = called(lake, *command.split())
        assert (answer.code, len(answer.lines)) == (ExitCode.USAGE, 1), (command, answer)
        assert "The lake has columns of a newer scanlake, which this one" in answer.err
    for command in ("status", "tables", "snapshots", "repair --dry-run", "query 'FROM files'"):
        assert called(lake, *shlex.split(command)).code == ExitCode.OK, command
    (lake / "LOCK").write_bytes(note)
    assert content(lake) == before
    (lake / "ledger.sqlite").unlink()
    assert called(lake, "repair").code == ExitCode.USAGE


def test_the_lake_of_each_release_is_opened(tmp_path: Path) -> None:
    """Each release has a lake of its version in `tests/lake/released`, which is opened, published and whole."""
    released = Path(__file__).with_name("released")
    versions = re.findall(r"^## \[(.+?)\] - \d", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(path.name for path in released.glob("*")) == sorted(versions)
    for version in versions:
        lake = shutil.copytree(released / version, tmp_path / version)
        with Lake(lake, doing="test", opening=Opening.EXISTING) as held:
            held.republish(at=AT)
        assert called(lake, "check").code == ExitCode.OK, version


def test_a_ledger_is_created_whole_or_not_at_all(tmp_path: Path) -> None:
    """A ledger whose creation fails half-way has no table, no id and no format; the next attempt makes it."""

    def forbid(action: int, name: str | None, *_: object) -> int:
        is_denied = action == sqlite3.SQLITE_CREATE_INDEX and name == "image_change"
        return sqlite3.SQLITE_DENY if is_denied else sqlite3.SQLITE_OK

    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.set_authorizer(forbid)
        with pytest.raises(sqlite3.DatabaseError):
            create_tables(db)
        db.set_authorizer(None)
        assert db.execute("SELECT count(*) FROM sqlite_master").fetchall() == [(0,)]
        assert db.execute("PRAGMA application_id").fetchall() == [(0,)]
    Ledger(path).close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchall() == [(FORMAT,)]


def content(folder: Path) -> dict[str, str]:
    """Every file below a folder, by its hash."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
