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

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.emulator import Emulator
from pipeline.errors import LakeCorruptedError, ScanlakeError
from pipeline.lake.catalog.folder_checks import inspect_folder
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.folder import FolderKind
from pipeline.lake.ledger.format import APPLICATION_ID
from pipeline.lake.storage.layout import LakeLayout
from tests.commands.cli_process import called, variables
from tests.constants import set_run_constants
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import called as operated
from tests.lake.operations import told
from tests.rows import every
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
            ("images", "export", "--out", new),
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
