"""After the fault is gone: the next run or `repair` leads out, and the next check is clean."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.errors import LakeCorruptedError, to_scanlake_error
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.ledger import Ledger
from tests.lake.corruption import checked, file_size_limit
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import called, told
from tests.lake.test_folders import describe
from tests.lake_copies import copy_lake
from tests.oracle import differences
from tests.processes import NOBODY, why_not_as_nobody
from tests.soaking import sample
from tests.sync.sync_harness import opened, synced, verified

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lake.history import History


def kill_with_log(lake: Path) -> None:
    """Leave the ledger's log as a killed run does."""
    process = multiprocessing.get_context("fork").Process(target=_commit_and_die, args=(lake / "ledger.sqlite",))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (lake / "ledger.sqlite-wal").stat().st_size


def _commit_and_die(path: Path) -> None:
    Ledger(path).set_properties(deep_position=3)
    os.kill(os.getpid(), signal.SIGKILL)


def write(lake: Path) -> tuple[int, str]:
    """Publish a file; return exit code and message as a command does."""
    try:
        with Lake(lake, doing="test") as held:
            commit(held, {13: 1}, {"uploads": [{"file_id": 13, "position": 0}]})
            held.publish("", at=AT, complete=True, watermark=AT)
    except BaseException as error:  # noqa: BLE001 - as the command line does
        failure = to_scanlake_error(error)
        return failure.exit_code, failure.message
    return 0, ""


# Permissions


_SERVICE: Final = {"SCANLAKE_BASE_URL": "http://127.0.0.1:9", "SCANLAKE_TOKEN": "a-token"}


@pytest.fixture
def lake_of_nobody(two_files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lake that belongs to another user, who can reach it."""
    if reason := why_not_as_nobody():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        lake = copy_lake(two_files, Path(name) / "home" / "lake")
        called(lake, "check", **_SERVICE)  # imports what another user may not be able to read
        for path in (lake.parent, *lake.parent.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        monkeypatch.chdir(name)
        monkeypatch.setenv("HOME", "/nonexistent")
        yield lake


@contextmanager
def as_nobody() -> Iterator[None]:
    """Let this process have the rights of a user who owns nothing else, also in `os.access`."""
    groups = os.getgroups()
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, 0)
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups(groups)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("ledger.sqlite", mode) for mode in (0o444, 0)),
        *sample(
            [
                *((name, 0o555) for name in ("..", ".", "tables/files", "tables/uploads", "documents", "snapshots")),
                *(("LOCK", mode) for mode in (0o444, 0)),
                *((name, 0) for name in (".", "tables", "snapshots", "documents")),
            ],
            4,
        ),
    ],
)
def test_a_permission_that_is_taken_and_given_back(lake_of_nobody: Path, name: str, mode: int) -> None:
    """Without the permission a run ends with exit 7 and the full path; with it the next run and check are well."""
    lake = lake_of_nobody
    path = lake.parent if name == ".." else lake / name
    if name == "..":  # no lake yet, in a folder that cannot be written
        shutil.rmtree(lake)
    before = path.stat().st_mode
    path.chmod(mode)
    with as_nobody():
        code, message = write(lake)
        assert (code, str(lake) in message, message.count("\n")) == (7, True, 0), message
        if mode == 0o555 or name == "ledger.sqlite":
            # As a machine that only reads, and as one that cannot write what it is to write: 1 without a service.
            for service, codes in (({}, {0, 2, 7}), (_SERVICE, {1, 2, 7})):
                check = called(lake, "check", "--json", **service)
                assert check.code in codes, check
                assert '"exit_code": 9' not in check.out
                assert ("cannot be written" in check.out) is (bool(service) and name in {"..", "."})
    path.chmod(before)
    with as_nobody():
        assert write(lake) == (0, "")
    assert checked(lake, mend=False).damage == []
    with opened(lake) as db:
        assert (13,) in db.execute("SELECT file_id FROM files").fetchall()


def test_a_check_after_a_killed_run_on_a_read_only_lake(lake_of_nobody: Path) -> None:
    """With a log in a folder that cannot be written, the lake is compared as it is, and nothing is called damage."""
    kill_with_log(lake_of_nobody)
    (lake_of_nobody / "ledger.sqlite-shm").unlink()
    lake_of_nobody.chmod(0o555)
    before = describe(lake_of_nobody)
    with as_nobody():
        told(lake_of_nobody, "check", "--json")
    assert describe(lake_of_nobody) == before


def test_a_catalog_that_may_not_be_read_is_no_damage(lake_of_nobody: Path) -> None:
    """Whoever has no permission for the catalog is told so by every command that reads it, with exit 7."""
    (lake_of_nobody / "catalog.duckdb").chmod(0)
    with as_nobody():
        commands = (("check",), ("repair", "--dry-run"), ("query", "FROM files"))
        answers = [called(lake_of_nobody, *command) for command in commands]
    assert [answer.code for answer in answers] == [7, 7, 7], answers
    assert all("Permission denied" in answer.out + answer.err for answer in answers), answers


@pytest.mark.parametrize("killed", sample([True, False], 1))
def test_a_full_disk_is_not_damage(lake: Path, tmp_path: Path, killed: bool) -> None:  # noqa: FBT001
    """While nothing can be written no command calls the lake damaged or replaces the ledger; afterwards all is well."""
    if killed:
        kill_with_log(lake)
    results = {}
    publish = f"publish --to file://{tmp_path}/target"
    export = f"export {tmp_path}/out --format parquet"
    for command in ("check --json", publish, export, "repair", "repair --dry-run", "rebuild", "purge 11"):
        with file_size_limit(0):
            answer = called(lake, *command.split())
        results[command] = answer.code
        assert answer.code != 9, answer
        assert '"exit_code": 9' not in answer.out
        assert command in {"check --json", "repair --dry-run", export} or str(lake) in answer.err, answer
        assert not list(lake.glob("ledger.sqlite.*"))
    assert results["check --json"] == results["repair --dry-run"] == 0
    assert {results[command] for command in (publish, export, "repair", "purge 11")} == {7}, results
    assert not list(tmp_path.glob("*out*"))
    assert told(lake, "repair").startswith("ok: ")
    assert write(lake) == (0, "")
    assert checked(lake, read_data=True).damage == []


# Yesterday's files over today's


_NAMES: Final = "*|ledger.sqlite|catalog.duckdb|ledger.sqlite catalog.duckdb|snapshots|tables documents".split("|")


@pytest.mark.parametrize(
    ("names", "compacted", "check_first"),
    sample([(names, *how) for how in ((True, False), (False, False), (True, True)) for names in _NAMES], 3),
)
async def test_yesterdays_files_over_todays(
    tmp_path: Path,
    history: History,
    names: str,
    compacted: bool,  # noqa: FBT001
    check_first: bool,  # noqa: FBT001
) -> None:
    """After a restore of yesterday's lake or of a part of it, repair leads out, and a verify brings the rest."""
    lake, former = tmp_path / "lake", history.today if compacted else history.yesterday
    async with (history.old if compacted else history.today).live_on(lake) as emulator:
        for name in names.split():
            for path in former.lake.glob(name):
                if path.is_dir():
                    shutil.copytree(path, lake / path.name, dirs_exist_ok=True)
                else:
                    (lake / path.name).unlink(missing_ok=True)
                    shutil.copyfile(path, lake / path.name)
        if not check_first:
            with suppress(LakeCorruptedError):
                await synced(emulator, lake, accept_new_base_url=True)
        checked(lake)
        assert checked(lake, read_data=True).damage == []
        await synced(emulator, lake, accept_new_base_url=True)
        await verified(emulator, lake)
        with opened(lake) as db:
            assert [line for line in differences(db, emulator.truth()) if not line.startswith("workflow")] == []
    assert checked(lake, read_data=True, mend=False).damage == []
