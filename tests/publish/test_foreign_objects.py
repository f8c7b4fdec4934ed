"""Places of others are refused, scanlake deletes only what it wrote, and a hostile backup becomes no lake."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import duckdb
import pytest

from pipeline.lake.ledger.folder import RESTORE_IN_PROGRESS, RESTORE_MARK
from pipeline.lake.storage.atomic_files import sha256_file
from pipeline.publish.stores import LocalStore
from pipeline.publish.target import LATEST
from tests.lake.operations import called, told
from tests.lake.test_folders import describe, make_lake
from tests.lake_copies import copy_lake
from tests.sync.sync_harness import tampered

if TYPE_CHECKING:
    from tests.images.image_harness import PicturedLakes

_PART: Final = "tables/files/000000000099-abcdef.parquet"
_OBJECT: Final = "tables/files/data/000000000099-abcdef-0123456789ab.parquet"
_IMAGE: Final = f"images/ab/{'c' * 62}.jpg"
_WITH_IMAGES: Final = {"backup": ("--with-images",), "publish": ("--set", "publish_images=true")}


@pytest.fixture(scope="module")
def made(pictured: PicturedLakes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lake, which commands that are refused do not change, and its backup."""
    folder = tmp_path_factory.mktemp("foreign")
    told(copy_lake(pictured.half, folder / "lake"), "backup", str(folder / "backup"), "--with-images")
    return folder


@pytest.fixture
def lake(tmp_path: Path, made: Path) -> Path:
    """A copy of the lake."""
    return copy_lake(made / "lake", tmp_path / "lake")


@pytest.fixture
def backup(tmp_path: Path, made: Path) -> Path:
    """A copy of the backup."""
    return Path(shutil.copytree(made / "backup", tmp_path / "backup"))


def put(folder: Path, name: str) -> Path:
    """Put a thing of others into a folder: a file, or by its name a database, a link or a pipe."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "catalog.duckdb":
        with duckdb.connect(str(path)) as db:
            db.execute("CREATE TABLE thesis (page TEXT)")
    elif name == "tables":
        path.symlink_to(folder.parent)
    elif name == "images":
        os.mkfifo(path)
    else:
        path.write_text("mine")
    return path


def test_a_forgotten_run_makes_no_foreign_catalog_ours(lake: Path, tmp_path: Path) -> None:
    """A ledger that was rebuilt has no run of some snapshots: a database without any run is of others all the same."""
    with tampered(lake) as ledger:
        ledger.execute("UPDATE snapshot SET run_id = ''")
    target = tmp_path / "target"
    before = put(target, "catalog.duckdb").read_bytes()
    answer = called(lake, "publish", "--to", f"file://{target}")
    assert (answer.code, "has other objects" in answer.err) == (2, True)
    assert (target / "catalog.duckdb").read_bytes() == before


def test_a_state_that_nobody_wrote_is_damage(lake: Path) -> None:
    """A ledger of others with an unknown state of a picture is named in one line, and is no bug."""
    with tampered(lake) as ledger:
        ledger.execute("UPDATE image SET state = 'painted'")
    answer = called(lake, "check")
    assert (answer.code, "has an unknown value: 'painted'" in answer.out) == (9, True), answer


_TAMPERINGS: dict[str, Any] = {
    "a trigger": "CREATE TRIGGER more AFTER INSERT ON run BEGIN DELETE FROM part; END;",
    "a further table": "CREATE TABLE more (page TEXT);",
    "a view for a table": "ALTER TABLE share RENAME TO more; CREATE VIEW share AS SELECT * FROM more;",
    "a property that is no JSON": "UPDATE lake_property SET value = 'more';",
    "a property of another kind": "UPDATE lake_property SET value = '5';",
    "a size that is a text": "UPDATE part SET bytes = 'more';",
    "a name that is no text": "UPDATE part SET name = CAST(name AS BLOB);",
    "a part elsewhere": "UPDATE part SET name = 'tables/../../' || substr(name, 8) WHERE name LIKE 'tables/uploads/%';",
    "an image elsewhere": "UPDATE image SET path = '../../mine' WHERE path = (SELECT min(path) FROM image);",
    "a purged image elsewhere": "INSERT INTO lake_property VALUES ('purge_in_progress', '[1]'),"
    """ ('purged_pictures', '["../../mine"]');""",
    "a PDF elsewhere": "INSERT INTO report_order (job, batch, attempt, name, state, files, intended_at, pdf)"
    " VALUES ('job', 1, 1, 'name', 'saved', 1, 1, '../mine');",
    "a text that is not UTF-8": "INSERT INTO run (run_id, command, version, started_at, state, error)"
    " VALUES ('a', 'b', 'c', 1, 'done', CAST(x'ff' AS TEXT));",
}
"""Scripts for the ledger."""
_RECORDS: dict[str, Any] = {
    "a ledger elsewhere": {"sha256": "../../victim/file"},
    "a ledger that is not there": {"sha256": "0" * 64},
    "a hash that is too short": {"sha256": "0" * 63},
    "a hash with NUL": {"sha256": "\0"},
    "no JSON": b"\0\0\0",
    "no text": b'{"lake_id": "\xff"}',
    "nothing": b"",
}
"""Keys of the record, or the whole record."""


def tamper(backup: Path, change: Any) -> None:
    """Change the record of a backup, or its ledger, whose hash, name and size are then right, without images."""
    record = json.loads((backup / LATEST).read_text())
    if isinstance(change, str):
        ledger = backup / "ledgers" / f"{record['ledger']['sha256']}.sqlite"
        ledger.chmod(0o600)
        with closing(sqlite3.connect(ledger)) as db, db:
            db.executescript(change)
        record["ledger"] = {"sha256": sha256_file(ledger), "bytes": ledger.stat().st_size}
        ledger.rename(ledger.with_stem(record["ledger"]["sha256"]))
        record["images"] = None  # with images a restore reads their names once more
    elif isinstance(change, dict):
        record["ledger"] |= change
    (backup / LATEST).chmod(0o600)
    (backup / LATEST).write_bytes(change if isinstance(change, bytes) else json.dumps(record).encode())


def test_a_hostile_backup_becomes_no_lake(made: Path, tmp_path: Path) -> None:
    """Ledgers that scanlake has not written are damage: exit code 9, one line, and no file anywhere."""
    wrong, below, mine = {}, tmp_path / "below", put(tmp_path, "mine")
    below.mkdir()
    for number, (name, change) in enumerate(_TAMPERINGS.items()):
        backup = Path(shutil.copytree(made / "backup", tmp_path / str(number)))
        tamper(backup, change)
        answer = called(tmp_path, "restore", str(backup), str(below / "restored"))
        is_hinted = "Use another backup; nothing was restored." in answer.err
        if (answer.code, len(answer.lines), is_hinted, list(below.iterdir())) != (9, 1, True, []) or not mine.exists():
            wrong[name] = answer
    assert wrong == {}


def test_a_record_that_leads_to_no_ledger_costs_the_ledger(made: Path, tmp_path: Path) -> None:
    """Whatever a damaged or hostile record names, the documents come back, and nothing from elsewhere."""
    expected = sorted(path.name for path in (made / "lake" / "documents").iterdir())
    put(tmp_path, "victim/file")
    for number, change in enumerate(_RECORDS.values()):
        backup = Path(shutil.copytree(made / "backup", tmp_path / f"backup-{number}"))
        tamper(backup, change)
        restored = tmp_path / f"restored-{number}"
        answer = called(tmp_path, "restore", str(backup), str(restored))
        assert (answer.code, answer.out.startswith("documents restored to ")) == (9, True), answer
        files = sorted(path.name for path in restored.rglob("*") if path.is_file())
        assert files == expected, change


def test_a_ledger_leads_to_no_file_of_others(lake: Path, tmp_path: Path) -> None:
    """A ledger from elsewhere names a file outside of the lake as an image: no command reads or changes that file."""
    mine = put(tmp_path, "victim/mine")
    first = "(SELECT min(file_id) FROM image WHERE path IS NOT NULL)"

    def change_ledger(path: str | None) -> int:
        with closing(sqlite3.connect(lake / "ledger.sqlite")) as db, db:
            db.execute(f"UPDATE image SET path = ?, bytes = 4 WHERE file_id = {first}", (path,))
            property_row = ("purged_pictures", json.dumps([str(mine)]))
            db.execute("INSERT OR REPLACE INTO lake_property VALUES (?, ?)", property_row)
            return int(db.execute(f"SELECT {first}").fetchone()[0])

    for path in ("../victim/mine", str(mine), None):
        change_ledger(path)
        assert f"{path or ''}: not the name of an image" in told(lake, "check", code=9)
        if path:
            publish = ("publish", "--to", f"file://{tmp_path}/target", *_WITH_IMAGES["publish"])
            assert "names a file that is not an image" in told(lake, *publish, code=9)
        told(lake, "repair", code=4)
        assert (lake.is_dir(), mine.read_text()) == (True, "mine")
        told(lake, "check")
    told(lake, "purge", str(change_ledger("../victim/mine")), "--yes")
    assert [path.name for path in mine.parent.iterdir()] == ["mine"]


def test_a_part_larger_than_recorded_is_not_copied(backup: Path, tmp_path: Path) -> None:
    """The recorded size is a bound: a part of a terabyte, or a link to an endless device, costs no disk."""
    restored = tmp_path / "restored"
    part = next((backup / "tables" / "files" / "data").iterdir())
    part.chmod(0o600)
    os.truncate(part, 10**12)
    assert f"{part.name}: damaged\n" in told(tmp_path, "restore", str(backup), str(restored), code=9)
    assert not list((restored / "tables" / "files").iterdir())
    shutil.rmtree(restored)
    part.unlink()
    part.symlink_to("/dev/zero")
    assert "leads out of the folder" in told(tmp_path, "restore", str(backup), str(restored), code=8)
    assert not restored.exists()


def test_a_record_of_gigabytes_is_not_read(lake: Path, backup: Path, tmp_path: Path) -> None:
    """A record larger than any of scanlake is damage, before it fills the memory."""
    record = backup / LATEST
    record.chmod(0o600)
    os.truncate(record, 3 * 10**9)
    with patch.object(LocalStore, "read_versioned", side_effect=AssertionError):
        problem = f"{backup}/latest.json is damaged: it has 3,000,000,000 bytes."
        assert problem in told(lake, "backup", str(backup), code=9)
        assert "latest.json: damaged\n" in told(lake, "restore", str(backup), str(tmp_path / "restored"), code=9)


def test_only_files_of_a_restore_are_replaced(backup: Path, tmp_path: Path) -> None:
    """A killed restore is known by its mark and its names alone; with any other file its folder is refused."""
    folder = tmp_path / "restored"
    for mark, name in ((b"mine", _PART), (b"", _PART), (RESTORE_MARK, "tables/files/thesis"), (RESTORE_MARK, "notes")):
        path = put(folder, name)
        (folder / RESTORE_IN_PROGRESS).write_bytes(mark)
        before = describe(folder)
        assert "is not an empty folder" in told(tmp_path, "restore", str(backup), str(folder), code=2)
        assert describe(folder) == before
        path.unlink()
    left = [put(folder, name) for name in (_PART, _IMAGE)]
    told(tmp_path, "restore", str(backup), str(folder))
    assert not any(path.exists() for path in left)


def test_a_lake_and_a_backup_are_for_others_to_read_only(tmp_path: Path) -> None:
    """Whatever the umask, only the owner can write to a file of a lake, of a backup or of a target."""
    former = os.umask(0)
    try:
        lake = make_lake(tmp_path / "lake")
        told(lake, "backup", str(tmp_path / "backup"))
        told(lake, "publish", "--to", f"file://{tmp_path}/target")
    finally:
        os.umask(former)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if path.stat().st_mode & 0o022] == []
    assert len(files) > 10


def test_places_of_one_lake_can_be_inside_each_other(lake: Path, tmp_path: Path) -> None:
    """Tables and a backup of the same lake below a place are no objects of others; those of another lake are."""
    target = tmp_path / "target"
    told(lake, "publish", "--iceberg", "--set", f"iceberg_location=file://{target}/tables")
    told(lake, "backup", str(target / "backup"))
    told(lake, "publish", "--to", f"file://{target}")
    other = make_lake(tmp_path / "other")
    (target / "latest.json").unlink()
    before = describe(target)
    assert "of another lake" in told(other, "publish", "--to", f"file://{target}", code=2)
    assert "of another lake" in told(other, "backup", str(target), code=2)
    assert "the copy of another lake" in told(other, "backup", str(target / "backup"), code=2)
    assert describe(target) == before
