"""One matrix: what others have where a command would write is refused in one line or left, byte for byte."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb
import pytest

from pipeline.errors import StorageError
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.folder import RESTORE_IN_PROGRESS
from pipeline.lake.ledger.request_log import open_request_log
from pipeline.lake.storage.layout import LakeLayout
from tests.lake.corruption import checked
from tests.lake.lake_builder import commit, made_in, state
from tests.lake.operations import called, told
from tests.lake.test_folders import COMMANDS, READING, describe, fill, silent_service
from tests.lake_copies import copy_lake
from tests.rows import every
from tests.soaking import sample
from tests.sync.sync_harness import opened

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.images.image_harness import PicturedLakes

_OBJECT: Final = "tables/files/data/000000000099-abcdef-0123456789ab.parquet"
_IMAGE: Final = f"images/ab/{'c' * 62}.jpg"


@pytest.fixture(scope="module")
def made(pictured: PicturedLakes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lake, which commands that are refused do not change, its copies, and a lake of two files."""
    folder = tmp_path_factory.mktemp("foreign")
    lake = copy_lake(pictured.half, folder / "lake")
    for place in ("backup", "target"):
        told(lake, *_WRITING[place](folder / place))
    made_in(folder / "two")
    return folder


_WRITING: Final[dict[str, Callable[[Path], tuple[str, ...]]]] = {
    "backup": lambda place: ("backup", str(place), "--with-images"),
    "target": lambda place: ("publish", "--to", place.as_uri(), "--set", "publish_images=true"),
    "bare-backup": lambda place: ("backup", str(place)),
    "bare-target": lambda place: ("publish", "--to", place.as_uri()),
    "tables": lambda place: ("publish", "--iceberg", "--set", f"iceberg_location={place.as_uri()}"),
    "export": lambda place: ("export", str(place)),
    "images": lambda place: ("images", "export", "--out", str(place)),
}
"""Commands that write to a place outside of their lake."""


# A whole place


def _database(*statements: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in statements:
            db.execute(statement)
        return db.serialize()


_FOLDERS: Final[dict[str, dict[str, bytes | None]]] = {
    "a home folder": {"Documents": None, ".profile": b"export A=1\n"},
    "a checkout": {".git/refs": None, ".git/HEAD": b"ref: refs/heads/main\n"},
    "a database": {"ledger.sqlite": _database("CREATE TABLE account (owner TEXT)")},
    "a database with a log": {},
    "a database with a mark": {"ledger.sqlite": _database("PRAGMA application_id = 252006673")},
    "our names by chance": {
        "tables": None,
        "snapshots": None,
        "documents/holiday": b"\x01",
        "LOCK": b"by my editor",
    },
    "a catalog": {"documents": None},
    "no catalog": {"catalog.duckdb": b"no database" * 1_000},
    "a folder of locks": {"LOCK/key": b"mine"},
    "an unfinished restore": {RESTORE_IN_PROGRESS: b""},
}
_OBJECTS: Final = ("catalog.duckdb", "snapshots/000099.duckdb", "probe/notes", "tables", "images", _IMAGE)


def _make_place(folder: Path, name: str, lake: Path) -> None:
    """Make a folder of others."""
    if name == "an unfinished restore":  # killed before it had its ledger
        shutil.copytree(lake, folder, ignore=shutil.ignore_patterns("ledger.sqlite*", "*.duckdb"))
    folder.mkdir(parents=True, exist_ok=True)
    fill(folder, _FOLDERS.get(name, {}))
    if name == "a database with a log":
        with closing(sqlite3.connect(folder.with_name("other.sqlite"))) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE account (owner TEXT)")
            db.commit()
            for suffix in ("", "-wal"):
                copy = (f"{folder.with_name('other.sqlite')}{suffix}", f"{folder}/ledger.sqlite{suffix}")
                subprocess.run(["cp", *copy], check=True)
    elif name in {"a catalog", "catalog.duckdb"}:
        with duckdb.connect(str(folder / "catalog.duckdb")) as db:
            db.execute("CREATE SCHEMA meta; CREATE TABLE files AS SELECT 1 AS file_id")
    elif name in _OBJECTS:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "tables":
            path.symlink_to(folder.parent)
        elif name == "images":
            os.mkfifo(path)
        else:
            path.write_text("mine")


@pytest.mark.parametrize("name", [*_FOLDERS, *_OBJECTS])
def test_a_place_of_others_is_refused(name: str, made: Path, tmp_path: Path) -> None:
    """Each command ends with one line that names the folder; nothing in it changes, nothing is sent or written."""
    folder = tmp_path / "place"
    _make_place(folder, name, made / "two")
    before, cases = describe(folder), list[tuple[Path, tuple[str, ...]]]()
    if name in _FOLDERS:
        commands = (*COMMANDS, *(READING if (folder / "catalog.duckdb").exists() else ()))
        cases += [(folder, command) for command in commands]
    if name in {*_OBJECTS, "a home folder", "an unfinished restore"}:
        cases += [(made / "lake", write_to(folder)) for write_to in _WRITING.values()]
        cases.append((tmp_path, ("restore", str(made / "backup"), str(folder))))
    with silent_service():
        for lake, command in cases:
            answer = called(lake, *command)
            code = 9 if name == "an unfinished restore" and lake == folder else 2
            facts = (answer.code, len(answer.lines), str(folder) in answer.err, describe(folder) == before)
            assert facts == (code, 1, True, True), (command, answer)
            is_of_images = name == _IMAGE and command[:2] in {("backup", str(folder)), ("publish", "--to")}
            assert ("has images of another lake" in answer.err) is is_of_images, (command, answer)
    assert {path.name for path in tmp_path.iterdir()} <= {"place", "other.sqlite"}


# One thing


def _put_stranger(lake: Path, kind: str, name: str) -> None:
    """Put a thing of others under a name. A folder of the lake is moved out; a link leads to it."""
    path, elsewhere = lake / name, lake.with_name("elsewhere")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        path.rename(elsewhere)
    else:
        path.unlink(missing_ok=True)
    if kind.endswith("link"):
        if kind == "link" and name == "LOCK":
            elsewhere.write_text("my diary")
        elif kind == "link":
            elsewhere.mkdir(exist_ok=True)
        path.symlink_to(elsewhere)
    elif kind == "folder":
        path.mkdir()
        (path / "thesis").write_text("mine")
    elif kind == "duckdb":
        with duckdb.connect(str(path)) as db:
            db.execute("CREATE TABLE thesis (page TEXT)")
    else:
        path.write_text("mine")


def _remove_stranger(lake: Path, name: str) -> None:
    path, elsewhere = lake / name, lake.with_name("elsewhere")
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    if elsewhere.is_dir() and any(elsewhere.iterdir()):  # a folder of the lake
        elsewhere.rename(path)


_IN_THE_WAY: Final = [
    (place, kind, name)
    for (place, kind), names in {
        ("lake", "link"): "tables/files images images/ab spill LOCK",
        ("lake", "dangling-link"): "LOCK",
        ("lake", "text"): "LOCK ledger.sqlite-wal ledger.sqlite-shm ledger.sqlite-journal snapshots/000099.duckdb spill"
        " snapshots tables documents tables/files",
        ("lake", "duckdb"): "snapshots/000003.duckdb catalog.duckdb",
        ("lake", "folder"): "LOCK catalog.duckdb catalog.duckdb.wal ledger.sqlite ledger.sqlite-wal ledger.sqlite-shm"
        " ledger.sqlite-journal snapshots/000001.duckdb snapshots/000002.duckdb.wal",
        ("backup", "link"): "ledgers documents tables tables/uploads/data images",
        ("target", "link"): "tables images",
    }.items()
    for name in names.split()
]
_REMOVED: Final = sample([row for row in _IN_THE_WAY if row[0] == "lake"], 4)


@every("place, kind, name", _IN_THE_WAY)
def test_what_is_in_the_way_is_named(place: str, kind: str, name: str, made: Path, tmp_path: Path) -> None:
    """A thing of others that a command would write to, or through, or replace is named, and stays; then all goes on."""
    folder = tmp_path / f"{place}-{kind}-{name.replace('/', '-')}"
    lake = copy_lake(made / ("two" if place == "lake" else "lake"), folder / "lake")
    root: Path = lake
    command: tuple[str, ...] = ("repair",)
    if place != "lake":
        root = Path(shutil.copytree(made / place, folder / place))
        command = _WRITING[place](root)
        with Lake(lake, doing="sync") as held:
            commit(held, {901: 1}, {"uploads": [{"file_id": 901, "id": 1, "position": 0}]})
    _put_stranger(root, kind, name)
    watched = [path for path in (root / name, root.with_name("elsewhere")) if os.path.lexists(path)]
    before = ([describe(path) for path in watched], state(lake) if root == lake else None)
    if kind == "text" and name.startswith("ledger.sqlite"):
        with pytest.raises(StorageError, match="Not of scanlake"), open_request_log(LakeLayout(lake)):
            pass
    is_removed = (place, kind, name) in _REMOVED
    for arguments in (command, *([("publish", "--to", "file:///nowhere")] if is_removed else [])):
        message = told(lake, *arguments, code=7 if root == lake else 8)
        hint = f" Move {root / name} away, then run again.\n" if root == lake else "leads out of the folder"
        assert (message.count("\n"), hint in message) == (1, True), message
    assert ([describe(path) for path in watched], state(lake) if root == lake else None) == before
    if root != lake or is_removed:
        _remove_stranger(root, name)
        told(lake, *command) if root != lake else checked(lake)
        if root == lake:
            assert checked(lake, mend=False).damage == []
            with opened(lake) as db:
                assert db.execute("SELECT count(*) FROM files").fetchone() == (2,)


@every("place", ["bare-backup", "bare-target"])
def test_a_folder_of_others_gets_no_images(place: str, made: Path, tmp_path: Path) -> None:
    """Where a place of scanlake's own has no images yet, a folder of others with that name is refused in one line."""
    lake, root = copy_lake(made / "lake", tmp_path / place / "lake"), tmp_path / place / "root"
    told(lake, *_WRITING[place](root))
    mine, with_images = root / "images" / "thesis", _WRITING[place.removeprefix("bare-")](root)
    mine.parent.mkdir()
    mine.write_text("mine")
    message = told(lake, *with_images, code=2)
    assert message.count("\n") == 1
    assert "has other objects, such as images/thesis. Move images away" in message
    assert [path.name for path in mine.parent.iterdir()] == ["thesis"]
    mine.unlink()
    told(lake, *with_images)


# Beside what is ours

_NAME: Final = "000000000099-abcdef.parquet"
_STAMP: Final = "damaged-20261121T000000000000Z"
_TEMPORARY: Final = ".a.12-0a1b2c3d4e5f6071.tmp"  # its end is no hash of its beginning
_BESIDE: Final = {
    "lake": f"""tables/files/{_NAME} tables/others/{_NAME} documents/{_NAME} tables/files/{_TEMPORARY} {_TEMPORARY}
        spill/publish/thesis spill/duckdb_temp_storage_DEFAULT-0.tmp ledger.sqlite.{_STAMP}
        ledger.sqlite.{_STAMP}-0a1b2c3d RESTORE_IN_PROGRESS images/incoming/11.txt images/ab/notes.txt""",
    "backup": f"""ledgers/{"0" * 64}.sqlite probe/{"0" * 32} {_OBJECT} {_IMAGE} ledgers/notes thesis.txt""",
    "target": f"""{_OBJECT} {_IMAGE} documents/{_NAME} probe/thesis tables/files/data/thesis.parquet {_TEMPORARY}
        documents/000000000001-aaaaaa-0123456789ab.parquet tables/files/metadata/x.avro notes/{_TEMPORARY}""",
    "": "out.tmp/thesis .out.tmp/thesis .scanlake-export-mythesis/thesis",
}


def test_what_is_not_in_the_way_stays(made: Path, tmp_path: Path) -> None:
    """Files of others under names like ours, in every place, stay and are named; links lead nowhere.

    They are old: what scanlake takes for its own and no longer needs, it deletes.
    """
    lake, victim = copy_lake(made / "lake", tmp_path / "lake"), tmp_path / "victim"
    commands = [write_to(tmp_path / place) for place, write_to in _WRITING.items() if place in {"backup", "target"}]
    tables = _WRITING["tables"](tmp_path / "target")
    for command in (*commands, tables):
        told(lake, *command)
    others = [tmp_path / place / name for place, names in _BESIDE.items() for name in names.split()]
    for path in (*others, victim / f"{'c' * 62}.jpg"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        os.utime(path, (10**9, 10**9))
    (tmp_path / "backup" / "images" / "zz").symlink_to(victim)
    before = [path.lstat().st_mtime_ns for path in others]
    told(lake, *_WRITING["export"](tmp_path / "out"))
    purge = ("purge", str(_first_id(lake)), "--yes")
    for command in (("repair",), ("rebuild",), purge, *commands, tables, *commands):
        answer = called(lake, *command, SCANLAKE_RETENTION_HOURS="0")
        assert answer.code in {0, 8 * (command == purge)}, answer  # what it cannot read may still have the file
    assert "objects.left" in called(lake, *commands[0]).err
    assert [path.lstat().st_mtime_ns for path in others] == before
    assert {path.read_text() for path in (*others, *victim.iterdir())} == {"mine"}
    unknown = told(lake, "check").replace("\n", " ")
    assert [name for name in _BESIDE["lake"].split() if f" {name}: unknown file" not in unknown] == []
    plain = tmp_path / "plain"
    plain.mkdir()
    assert (tmp_path / "out").stat().st_mode == plain.stat().st_mode


def _first_id(lake: Path) -> int:
    with opened(lake) as db:
        return int(db.execute("SELECT min(file_id) FROM files").fetchall()[0][0])
