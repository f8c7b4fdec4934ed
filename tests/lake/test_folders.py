"""Folders of others: nothing in them is created or changed, and nothing is sent."""

from __future__ import annotations

import select
import shutil
import socket
import sqlite3
import stat
import subprocess
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.emulator import Emulator
from pipeline.errors import LakeCorruptedError, ScanlakeError, StorageError
from pipeline.lake.catalog.folder_checks import inspect_folder
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.folder import RESTORE_IN_PROGRESS, FolderKind
from pipeline.lake.ledger.format import APPLICATION_ID
from pipeline.lake.ledger.request_log import open_request_log
from pipeline.lake.storage.layout import LakeLayout
from tests.commands.cli_process import called, variables
from tests.constants import set_run_constants
from tests.lake.corruption import checked
from tests.lake.lake_builder import AT, commit, state
from tests.lake.operations import called as operated
from tests.lake.operations import told
from tests.lake_copies import copy_lake
from tests.rows import every
from tests.soaking import sample
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COMMANDS: Final = (
    *(("sync",), ("verify",), ("plan",), ("share", "REF1"), ("report", "--reference", "REF1", "--out", "pdfs")),
    *(("publish", "--to", "file:///nowhere/target"), ("repair",), ("purge", "1"), ("rebuild",)),
    *(("rollback", "1", "--yes"), ("backup", "copy")),
)
READING: Final = (("status",), ("tables",), ("query", "SELECT 1"), ("repair", "--dry-run"), ("snapshots",), ("serve",))


def make_lake(root: Path, **properties: Any) -> Path:
    """Make a published lake of two files."""
    with Lake(root, doing="test") as lake:
        commit(lake, {11: 1, 12: 1})
        lake.publish("", at=AT, complete=True, watermark=AT)
        lake.ledger.set_properties(**properties)
    return root


def contents(lake: Path) -> dict[str, bytes]:
    """Return the content of every file of a lake but the note of the last run that held it."""
    files = (path for path in lake.rglob("*") if path.is_file() and path.name != "LOCK")
    return {str(path): path.read_bytes() for path in files}


def test_a_linked_lake_is_written_by_nobody(tmp_path: Path) -> None:
    """A ledger with two names, as `cp -al` makes it, is refused by all that writes in both folders; readers go on.

    Without the copy, or with one by `cp -a`, the lake is written again.
    """
    lake, linked, copy = make_lake(tmp_path / "lake"), tmp_path / "linked", tmp_path / "copy"
    for option, target in (("-al", linked), ("-a", copy)):
        subprocess.run(["cp", option, lake, target], check=True)
    before = contents(lake)
    for folder in (lake, linked):
        for command in COMMANDS[5:]:
            answer = operated(folder, *command)
            assert (answer.code, "by a hard link" in answer.err, len(answer.lines)) == (2, True, 1), (command, answer)
        told(folder, "query", "FROM files")
    assert contents(lake) == before
    shutil.rmtree(linked)
    for folder in (lake, copy):
        told(folder, "purge", "11", "--yes")


def describe(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return mode, time of change and content of everything below a folder, and of the folder itself."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_size, content)
    return found


# Folders of others


def fill(folder: Path, entries: Mapping[str, bytes | None]) -> None:
    """Make the entries of a folder: files with their content, and folders, which have none."""
    for name, content in sorted(entries.items()):
        path = folder / name
        if path.exists() or any(parent.is_file() for parent in path.parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)


def _database(*statements: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in statements:
            db.execute(statement)
        return db.serialize()


FOLDERS: Final[dict[str, dict[str, bytes | None]]] = {
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
    "a folder of locks": {"LOCK": None},
    "an unfinished restore": {RESTORE_IN_PROGRESS: b""},
}


@contextmanager
def silent_service() -> Iterator[None]:
    """Listen as a service would, to which settings lead; nobody may have connected in the end."""
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCANLAKE_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        patch.setenv("SCANLAKE_TOKEN", "a-token")
        patch.setattr("pipeline.client.client.MAX_ATTEMPTS", 1)
        patch.setenv("SCANLAKE_REQUEST_TIMEOUT_SECONDS", "1")
        yield
        assert not select.select([server], [], [], 0)[0], "somebody connected"


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_others_is_refused_by_every_command(name: str, tmp_path: Path, two_files: Path) -> None:
    """Every command ends with one line that names the folder; nothing in it changes, nothing is sent."""
    folder = tmp_path / "folder"
    if name == "an unfinished restore":  # killed before it had its ledger
        shutil.copytree(two_files, folder, ignore=shutil.ignore_patterns("ledger.sqlite*", "*.duckdb"))
    else:
        folder.mkdir()
    fill(folder, FOLDERS[name])
    if name == "a database with a log":
        with closing(sqlite3.connect(tmp_path / "other.sqlite")) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE account (owner TEXT)")
            db.commit()
            for suffix in ("", "-wal"):
                copy = (f"{tmp_path}/other.sqlite{suffix}", f"{folder}/ledger.sqlite{suffix}")
                subprocess.run(["cp", *copy], check=True)
    if name == "a catalog":
        with duckdb.connect(str(folder / "catalog.duckdb")) as db:
            db.execute("CREATE SCHEMA meta; CREATE TABLE files AS SELECT 1 AS file_id")
    before = describe(folder)
    with silent_service():
        for command in (*COMMANDS, *(READING if (folder / "catalog.duckdb").exists() else ())):
            message = told(folder, *command, code=9 if name == "an unfinished restore" else 2)
            assert len(message.splitlines()) == 1, (command, message)
            assert str(folder) in message, (command, message)
    assert describe(folder) == before
    assert not (tmp_path / "pdfs").exists()
    assert not (tmp_path / "copy").exists()


def test_a_lake_inside_a_lake_is_refused(lake: Path, tmp_path: Path) -> None:
    """No lake begins in the folder of another one, whether the folder exists or a link leads there."""
    (lake / "inside").mkdir()
    (tmp_path / "link").symlink_to(lake)
    before = describe(lake)
    with silent_service():
        for root in (lake / "inside", lake / "inside/deep/er", tmp_path / "link/inside", tmp_path / "link/new"):
            for command in ("sync", "plan"):
                assert "is inside the lake" in told(root, command, code=2)
    assert describe(lake) == before


def _entries() -> st.SearchStrategy[dict[str, bytes | None]]:
    """Contents of a folder: names of ours and of others, as files with any bytes or as folders."""
    names = st.sampled_from(
        "LOCK ledger.sqlite ledger.sqlite-wal ledger.sqlite-shm catalog.duckdb catalog.duckdb.wal raw parts snapshots"
        " spill lost+found .git thesis.txt scanlake.toml tables/files tables/files/empty.parquet"
        " documents/000000000001-abcdef.parquet snapshots/000001.duckdb".split()
    )
    contents = st.none() | st.just(b"") | st.binary(max_size=40) | st.just(b"SQLite format 3\0" + bytes(84))
    return st.dictionaries(names, contents, max_size=6)


@example(entries={"ledger.sqlite": b"\0"})
@given(entries=_entries())
@example(entries={"ledger.sqlite": b"", "ledger.sqlite-wal": b"mine", "ledger.sqlite-shm": b""})
def test_whatever_a_folder_has_nothing_of_it_is_lost(entries: dict[str, bytes | None]) -> None:
    """A folder with any entries is refused unchanged, or becomes a lake that leaves every file with content alone."""
    with TemporaryDirectory() as name:
        root = Path(name)
        fill(root, entries)
        before, refusal = describe(root), None
        try:
            with Lake(root, doing="test") as lake:
                assert lake.ledger.next_commit_seq() == 1
        except ScanlakeError as error:
            refusal = error
        if refusal is not None:
            assert describe(root) == before, refusal
            assert refusal.exit_code in {2, 7, 9}  # 7: a folder has the name of a file
        else:
            assert not [path for path, facts in before.items() if facts[3]]


def test_what_is_left_of_a_first_run(tmp_path: Path) -> None:
    """A folder with what a killed first run leaves, or with an empty file system's folder, becomes a lake."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "LOCK").write_text('{"operation": "sync", "pid": 1, "host": "h", "since": "2026-01-01T00:00:00Z"}')
    (tmp_path / "ledger.sqlite").touch()
    make_lake(tmp_path)
    assert inspect_folder(LakeLayout(tmp_path)) == FolderKind.LAKE


@every("number", [0, 7])
def test_a_ledger_without_our_mark_is_of_others(number: int, lake: Path) -> None:
    """A database with our tables and another application id is refused."""
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        db.execute(f"PRAGMA application_id = {number}")
    with pytest.raises(LakeCorruptedError, match="not a ledger of scanlake"), Lake(lake, doing="test"):
        pass
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as db:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def test_a_lock_that_is_a_link_is_not_followed(lake: Path, tmp_path: Path) -> None:
    """A LOCK that is a link ends a run with exit 7 and its path; the file behind it keeps its content."""
    (tmp_path / "somebody.txt").write_text("my diary")
    for target in ("somebody.txt", "missing.txt"):
        (lake / "LOCK").unlink()
        (lake / "LOCK").symlink_to(tmp_path / target)
        before = describe(tmp_path)
        with pytest.raises(StorageError, match="LOCK: Not a lock of scanlake") as error, Lake(lake, doing="test"):
            pass
        assert error.value.hint == f"Move {lake / 'LOCK'} away, then run again."
        assert describe(tmp_path) == before
    (lake / "LOCK").unlink()
    assert told(lake, "repair").startswith("ok: ")


def _put_stranger(lake: Path, kind: str, name: str) -> None:
    """Put a thing of others under a name. A folder of the lake is moved out; a link leads to it."""
    path, elsewhere = lake / name, lake.with_name("elsewhere")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        path.rename(elsewhere)
    else:
        path.unlink(missing_ok=True)
    if kind == "link":
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
    if elsewhere.exists() and any(elsewhere.iterdir()):  # a folder of the lake
        elsewhere.rename(path)


_IN_THE_WAY: Final = [
    (kind, name)
    for kind, names in {
        "link": "tables/files images images/ab spill",
        "text": "LOCK ledger.sqlite-wal ledger.sqlite-shm ledger.sqlite-journal snapshots/000099.duckdb spill snapshots"
        " tables documents tables/files",
        "duckdb": "snapshots/000003.duckdb catalog.duckdb",
        "folder": "LOCK catalog.duckdb catalog.duckdb.wal ledger.sqlite ledger.sqlite-wal ledger.sqlite-shm"
        " ledger.sqlite-journal snapshots/000001.duckdb snapshots/000002.duckdb.wal",
    }.items()
    for name in names.split()
]
_REMOVED: Final = sample(_IN_THE_WAY, 4)


@every("kind, name", _IN_THE_WAY)
def test_what_has_a_name_of_the_lake_stops_a_run(kind: str, name: str, two_files: Path, tmp_path: Path) -> None:
    """A thing of others that a run would write to or replace is named, and stays; without it a repair leads out."""
    lake = copy_lake(two_files, tmp_path / f"{kind} {name.replace('/', ' ')}" / "lake")
    _put_stranger(lake, kind, name)
    watched = [path for path in (lake / name, lake.with_name("elsewhere")) if path.exists()]
    before = (state(lake), [describe(path) for path in watched])
    if kind == "text" and name.startswith("ledger.sqlite"):
        with pytest.raises(StorageError, match="Not of scanlake"), open_request_log(LakeLayout(lake)):
            pass
    for arguments in (("repair",), ("publish", "--to", "file:///nowhere"))[: 1 + ((kind, name) in _REMOVED)]:
        message = told(lake, *arguments, code=7)
        assert message.endswith(f" Move {lake / name} away, then run again.\n")
        assert message.count("\n") == 1
    assert (state(lake), [describe(path) for path in watched]) == before
    if (kind, name) in _REMOVED:
        _remove_stranger(lake, name)
        checked(lake)
        assert checked(lake, mend=False).damage == []
        with opened(lake) as db:
            assert db.execute("SELECT count(*) FROM files").fetchone() == (2,)


def test_what_is_not_in_the_way_stays(lake: Path) -> None:
    """Files of others under names of parts, temporary and damaged files, and in folders that a run empties, stay."""
    name, stamp = "000000000099-abcdef.parquet", "damaged-20261121T000000000000Z"
    others = [
        *(
            f"tables/files/{name}",
            f"tables/others/{name}",
            f"documents/{name}",
            "tables/files/.a.12-0a1b2c3d4e5f6071.tmp",
        ),
        *(".a.12-0a1b2c3d4e5f6071.tmp", "spill/publish/thesis", "spill/duckdb_temp_storage_DEFAULT-0.tmp"),
        *(f"ledger.sqlite.{stamp}", f"ledger.sqlite.{stamp}-0a1b2c3d", "RESTORE_IN_PROGRESS"),
    ]
    for path in others:
        _put_stranger(lake, "text", path)
    before = {path: (lake / path).lstat().st_mtime_ns for path in others}
    for command in (("repair",), ("rebuild",), ("purge", "11", "--yes"), ("backup", f"{lake}-backup")):
        told(lake, *command)
    assert {path: (lake / path).lstat().st_mtime_ns for path in others} == before
    unknown = told(lake, "check").replace("\n", " ")
    assert all(f" {path}: unknown file" in unknown for path in others), unknown


# Outputs


def test_no_output_goes_into_a_lake(lake: Path, two_files: Path, tmp_path: Path) -> None:
    """Exports, backups, reports and the results of queries are refused in the own and in any other lake."""
    other = Path(shutil.copytree(two_files, tmp_path / "other"))
    (tmp_path / "link").symlink_to(other)
    Path("ids").write_text("11\n")
    before = describe(other)
    for folder in (lake, lake / "documents", other, other / "documents", tmp_path / "link"):
        new, file, which = (
            str(folder / "new"),
            str(folder / "out.csv"),
            "the" if lake in (folder, *folder.parents) else "another",
        )
        environment = {"SCANLAKE_BASE_URL": "http://127.0.0.1:9", "SCANLAKE_TOKEN": "a-token"}
        for arguments in (
            ("export", new, "--format", "csv"),
            ("backup", new),
            ("report", "--ids", "ids", "--out", new),
            ("query", "SELECT 1", "--out", file, "--format", "csv"),
            ("serve", "--write", file),
        ):
            message = told(lake, *arguments, code=2, **environment)
            assert f"is in {which} lake. Use a path outside" in message, arguments
    assert describe(other) == before
    names = [{path.name for path in folder.iterdir()} - {"spill"} for folder in (lake, other)]  # empty between sorts
    assert names[0] == names[1]


# The service of a lake


def test_nothing_is_sent_to_the_service_of_another_lake(lake: Path) -> None:
    """With another service's lake every command ends with exit 2, names both services and makes no connection."""
    with Lake(lake, doing="test") as held:
        held.ledger.set_properties(source="https://other.example")
    Path("ids").write_text("11\n")
    report = ("report", "--ids", "ids", "--out", "pdfs")
    with silent_service():
        for arguments in (("plan",), ("share", "ref 11"), report, ("sync",), ("verify",)):
            message = told(lake, *arguments, code=2)
            assert "The lake contains the files of https://other.example, not of http://127.0.0.1:" in message


@pytest.mark.parametrize("option", [(), ("--accept-new-base-url",)])
async def test_a_mistyped_address_binds_no_lake(tmp_path: Path, option: tuple[str, ...]) -> None:
    """After attempts at a wrong address the right one works without a word, in a new lake and in a moved one."""
    async with Emulator(4, seed=3) as wrong, Emulator(4, seed=3) as emulator:
        if option:
            await synced(emulator, tmp_path / "lake")
        mistyped = {"SCANLAKE_TOKEN": "a-token", **set_run_constants(max_attempts=1)}
        for address in ("http://127.0.0.1:9", f"{emulator.base_url}/wrong"):
            answer = await called(tmp_path, "sync", *option, SCANLAKE_BASE_URL=address, **mistyped)
            assert answer.code != 0
        answer = await called(tmp_path, "sync", **variables(emulator))
        assert answer.code == 0, answer.err
        with opened(tmp_path / "lake") as db:
            assert db.execute("SELECT count(*) FROM files").fetchone() == (4,)
        answer = await called(tmp_path, "sync", **variables(wrong))
        assert answer.code == 2
        assert f"The lake contains the files of {emulator.base_url}" in answer.err
