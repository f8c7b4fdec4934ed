"""After the fault is gone: the next run or `repair` leads out, and the next check is clean."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.errors import LakeCorruptedError
from pipeline.lake.lake import Lake
from pipeline.lake.ledger import Ledger
from pipeline.settings import Settings
from tests.conftest import ROOT
from tests.forkserver import run_command
from tests.lake.corruption import checked, grown
from tests.lake.lake_builder import AT, commit, state
from tests.lake.operations import compact_all, told
from tests.lake.test_folders import describe
from tests.lake_copies import copy_lake
from tests.oracle import differences
from tests.processes import NOBODY, why_not_as_nobody
from tests.soaking import sample, unmeasured
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from collections.abc import Iterator

_FILES: Final = (
    *("catalog.duckdb", "catalog.duckdb.wal", "ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"),
    *("ledger.sqlite-journal", "snapshots/000001.duckdb", "snapshots/000002.duckdb", "snapshots/000002.duckdb.wal"),
    *("spill", "snapshots"),
)
_WRITE: Final = """
import sys
from pathlib import Path
from pipeline.errors import to_scanlake_error
from pipeline.lake.lake import Lake
from tests.lake.lake_builder import AT, commit, state
try:
    with Lake(Path(sys.argv[1]), doing="test") as lake:
        commit(lake, {13: 1}, {"uploads": [{"file_id": 13, "position": 0}]})
        lake.publish("", at=AT, complete=True, watermark=AT)
except BaseException as error:
    failure = to_scanlake_error(error)
    print(failure.message, failure.hint)
    sys.exit(failure.exit_code)
"""
_WRITERS: Final = (("repair",), ("publish", "--to", "file:///nowhere"))


def kill_with_log(lake: Path) -> None:
    """Leave the ledger's log as a killed run does."""
    code = (
        "import os, sys; from pathlib import Path; from pipeline.lake.ledger import Ledger\n"
        "Ledger(Path(sys.argv[1])).set_properties(deep_position=3); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(lake / "ledger.sqlite")], check=False)
    assert (lake / "ledger.sqlite-wal").stat().st_size


@pytest.mark.parametrize("name", sample(_FILES, 3))
def test_a_folder_where_a_file_should_be(lake: Path, name: str) -> None:
    """A run, `check` and `repair` name it and touch nothing; when it is away a repair leads out."""
    path = lake / name
    if is_folder := path.is_dir() or name == "spill":
        shutil.rmtree(path, ignore_errors=True)
        path.write_text("mine")
    else:
        path.unlink(missing_ok=True)
        path.mkdir()
        (path / "thesis").write_text("mine")
    before = state(lake)
    for arguments in _WRITERS:
        assert f"Move {path} away, then run again." in told(lake, *arguments, code=7)
    if name != "ledger.sqlite":  # `check` takes that for a lost ledger
        assert str(path) in told(lake, "check", code=7)
    assert state(lake) == before
    if is_folder:
        path.unlink()
    else:
        shutil.rmtree(path)
    checked(lake)
    assert checked(lake, mend=False).damage == []
    with opened(lake) as db:
        assert db.execute("SELECT count(*) FROM files").fetchone() == (2,)


def test_a_file_where_a_folder_of_parts_should_be(lake: Path) -> None:
    """A run and `repair` end with exit 7 and name it, or a folder in the place of the lock; then a repair leads out."""
    (lake / "LOCK").unlink()
    (lake / "LOCK").mkdir()
    for arguments in (*_WRITERS, ("repair", "--dry-run"), ("purge", "11", "--yes")):
        assert f"Move {lake / 'LOCK'} away, then run again." in told(lake, *arguments, code=7)
    (lake / "LOCK").rmdir()
    for name in ("tables", "documents", "tables/files"):
        (lake / name).rename(lake.with_name("parts"))
        (lake / name).write_text("mine")
        for arguments in _WRITERS:
            assert f"{lake / name}: Not a folder. Move {lake / name} away" in told(lake, *arguments, code=7)
        assert (lake / name).read_text() == "mine"
        (lake / name).unlink()
        if name == "tables/files":
            assert checked(lake).damage
        else:
            lake.with_name("parts").rename(lake / name)
    assert checked(lake, mend=False).damage == []


# Permissions


@pytest.fixture
def lake_of_nobody(two_files: Path) -> Iterator[Path]:
    """A lake that belongs to another user, who can reach it."""
    if reason := why_not_as_nobody():
        pytest.skip(reason)
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv (util-linux)")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        lake = copy_lake(two_files, Path(name) / "home" / "lake")
        for path in (lake.parent, *lake.parent.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        if _run_as_nobody("-c", "import duckdb").returncode:
            pytest.skip("nobody else can run Python here")
        yield lake


def _run_as_nobody(*arguments: str, address: str = "") -> subprocess.CompletedProcess[str]:
    user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    environment = {**unmeasured(), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"}
    environment |= {"SCANLAKE_BASE_URL": address, "SCANLAKE_TOKEN": "token"} if address else {}
    return subprocess.run(
        [*user, sys.executable, *arguments],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "mode"),
    sample(
        [
            *((name, 0o555) for name in ("..", ".", "tables/files", "tables/uploads", "documents", "snapshots")),
            *((name, mode) for name in ("ledger.sqlite", "LOCK") for mode in (0o444, 0)),
            *((name, 0) for name in (".", "tables", "snapshots", "documents")),
        ],
        2,
    ),
)
def test_a_permission_that_is_taken_and_given_back(lake_of_nobody: Path, name: str, mode: int) -> None:
    """Without the permission a run ends with exit 7 and the full path; with it the next run and check are well."""
    lake = lake_of_nobody
    path = lake.parent if name == ".." else lake / name
    if name == "..":  # no lake yet, in a folder that cannot be written
        shutil.rmtree(lake)
    before = path.stat().st_mode
    path.chmod(mode)
    failed = _run_as_nobody("-c", _WRITE, str(lake))
    assert failed.returncode == 7, (failed.stdout, failed.stderr)
    assert str(lake) in failed.stdout
    assert len(failed.stdout.splitlines()) == 1
    if mode == 0o555 or name == "ledger.sqlite":
        # As a machine that only reads, and as one that cannot write what it is to write: 1 without a service.
        for address, codes in (("", {0, 2, 7}), ("http://127.0.0.1:9", {1, 2, 7})):
            check = _run_as_nobody("-m", "pipeline", "check", "--lake", str(lake), "--json", address=address)
            assert check.returncode in codes, check.stdout
            assert '"exit_code": 9' not in check.stdout
    path.chmod(before)
    healed = _run_as_nobody("-c", _WRITE, str(lake))
    assert healed.returncode == 0, (healed.stdout, healed.stderr)
    assert checked(lake, mend=False).damage == []
    with opened(lake) as db:
        assert (13,) in db.execute("SELECT file_id FROM files").fetchall()


def test_a_check_after_a_killed_run_on_a_read_only_lake(lake_of_nobody: Path) -> None:
    """With a log in a folder that cannot be written, the lake is compared as it is, and nothing is called damage."""
    lake = lake_of_nobody
    source = lake.parent / "killed"
    shutil.copytree(lake, source)
    ledger = Ledger(source / "ledger.sqlite")  # with its log, as a killed run leaves it
    ledger.set_properties(deep_position=3)
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{source / 'ledger.sqlite'}{suffix}", f"{lake / 'ledger.sqlite'}{suffix}")
    ledger.close()
    lake.chmod(0o555)
    before = describe(lake)
    check = _run_as_nobody("-m", "pipeline", "check", "--lake", str(lake), "--json")
    assert check.returncode == 0, check.stdout
    assert describe(lake) == before


def test_parts_that_are_links_to_nothing(lake: Path, tmp_path: Path) -> None:
    """A check calls parts that are links to nothing damage, and a repair writes them again."""
    for path in lake.glob("tables/*s/0*.parquet"):
        path.unlink()
        path.symlink_to(tmp_path / "nowhere")
    told(lake, "check", code=9)
    assert checked(lake).damage
    assert checked(lake, read_data=True).damage == []


@pytest.mark.parametrize("killed", sample([True, False], 1))
def test_a_full_disk_is_not_damage(lake: Path, tmp_path: Path, killed: bool) -> None:  # noqa: FBT001
    """While nothing can be written no command calls the lake damaged or replaces the ledger; afterwards all is well."""
    if killed:
        kill_with_log(lake)
    results = {}
    publish = f"publish --to file://{tmp_path}/target"
    for command in ("check --json", publish, "repair", "repair --dry-run", "rebuild", "purge 11"):
        arguments = [*command.split(), "--lake", str(lake)]
        answer = run_command(arguments, cwd=tmp_path, env=os.environ, limits={"RLIMIT_FSIZE": 0})
        results[command] = answer.code
        assert answer.code != 9, answer
        assert b'"exit_code": 9' not in answer.out
        assert command in {"check --json", "repair --dry-run"} or str(lake).encode() in answer.err, answer
        assert not list(lake.glob("ledger.sqlite.*"))
    assert results["check --json"] == results["repair --dry-run"] == 0
    assert {results[command] for command in (publish, "repair", "purge 11")} == {7}, results
    assert told(lake, "repair").startswith("ok: ")
    with Lake(lake, doing="test") as held:
        commit(held, {13: 1})
        held.publish("", at=AT, complete=True, watermark=AT)
    assert checked(lake, read_data=True).damage == []


# Yesterday's files over today's


_NAMES: Final = ("*", "ledger.sqlite", "catalog.duckdb", "ledger.sqlite catalog.duckdb", "snapshots", "parts raw")


@pytest.mark.parametrize(
    ("names", "compacted", "check_first"),
    sample([(names, *how) for how in ((True, False), (False, False), (True, True)) for names in _NAMES], 2),
)
async def test_yesterdays_files_over_todays(
    tmp_path: Path,
    names: str,
    compacted: bool,  # noqa: FBT001
    check_first: bool,  # noqa: FBT001
) -> None:
    """After a restore of yesterday's lake or of a part of it, repair leads out, and a sync brings the rest."""
    lake, yesterday = tmp_path / "lake", tmp_path / "yesterday"
    async with grown(lake, files=12, rounds=1) as emulator:
        shutil.copytree(lake, yesterday)
        emulator.world.update(emulator.world.pick_random(4))
        emulator.world.create(2)
        await synced(emulator, lake)
        if compacted:
            with Lake(lake, doing="compaction") as held:
                compact_all(held, Settings(lake=lake))
        for name in names.split():
            for path in yesterday.glob(name):
                if path.is_dir():
                    shutil.copytree(path, lake / path.name, dirs_exist_ok=True)
                else:
                    (lake / path.name).unlink(missing_ok=True)
                    shutil.copyfile(path, lake / path.name)
        if not check_first:
            with suppress(LakeCorruptedError):
                await synced(emulator, lake)
        checked(lake)
        assert checked(lake, read_data=True).damage == []
        await synced(emulator, lake)
        with opened(lake) as db:
            assert [line for line in differences(db, emulator.truth()) if not line.startswith("workflow")] == []
    assert checked(lake, read_data=True).damage == []


def test_a_blank_ledger_costs_no_part(lake: Path) -> None:
    """A database without tables in the place of the ledger is a lost ledger: it is rebuilt, and all parts stay."""
    (lake / "ledger.sqlite").unlink()
    with closing(sqlite3.connect(lake / "ledger.sqlite")) as blank:
        blank.execute("VACUUM")
    assert (lake / "ledger.sqlite").exists()
    with Lake(lake, doing="test") as held:
        assert held.ledger.count_files() == 2
    assert checked(lake, read_data=True).damage == []
