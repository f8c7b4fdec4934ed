"""A disk that is full, or too few files that may be open: readers keep what they had, and the next sync repairs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from tests.disks import mount, unmount
from tests.forkserver import run_command
from tests.lake.corruption import checked
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import told
from tests.lake.test_faults import litter
from tests.oracle import differences
from tests.processes import forked, ran
from tests.sync.sync_harness import SEED, opened, synced

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 20 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "size=20m")
    yield folder
    unmount(folder)


async def limited(name: str, limit: int, *arguments: str, emulator: Emulator) -> tuple[int, str]:
    """Run the command under a limit of the system: its exit code, and what it told on standard error."""
    env = {**os.environ, "SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token}
    ended = await asyncio.to_thread(run_command, arguments, cwd=Path.cwd(), env=env, limits={name: limit})
    return ended.code, ended.err.decode()


def is_shown(lake: Path, world: Sequence[dict[str, Any]]) -> bool:
    """Whether the published catalog shows a world; definitions belong to no file, and outlive the last one."""
    with opened(lake) as db:
        found = differences(db, world)
    return not [line for line in found if not line.startswith("workflow")]


async def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """While documents or the catalog are written: exit 7 in one line, the former rows stay, the next sync repairs."""
    lake, catalog = tmp_path / "lake", tmp_path / "lake" / "catalog.duckdb"
    async with Emulator(40, seed=SEED) as emulator:
        await synced(emulator, lake)
        former = list(emulator.truth())
        size = catalog.stat().st_size
        for step, limit in (("ledger", 2_000), ("committed", 16_000), ("copied", size // 2), ("updated", size + 100)):
            emulator.world.update(emulator.world.pick_random(30 if step == "committed" else 3))
            content = catalog.read_bytes()
            code, message = await limited("RLIMIT_FSIZE", limit, "sync", "--lake", str(lake), emulator=emulator)
            assert code == ExitCode.STORAGE, (step, message)
            (line,) = [line for line in message.splitlines() if line.startswith("scanlake: ")]
            assert "Free disk space" in line, step
            assert "Traceback" not in message
            assert catalog.read_bytes() == content, step
            assert not [path for path in lake.rglob("*") if ".tmp" in path.name or path.name.endswith(".wal")], step
            assert (str(catalog) in line) is (step in {"copied", "updated"}), step
        assert is_shown(lake, former)
        assert "catalog.duckdb lacks the newest rows" in told(lake, "status", code=1)
        assert checked(lake, mend=False).damage == []
        await synced(emulator, lake)
        assert is_shown(lake, list(emulator.truth()))
        assert "lacks" not in told(lake, "status")
    assert litter(lake) == []
    with Lake(lake, doing="test") as held:
        published = held.ledger.query("SELECT snapshot FROM snapshot WHERE state = 'published'")
    assert {int(path.stem) for path in lake.glob("snapshots/*")} == {number for (number,) in published}


async def test_too_few_files_may_be_open(tmp_path: Path) -> None:
    """With 64 open files a sync gets by, with 20 a rebuild of many parts; exit 7 names the limit; nothing is half."""
    lake = tmp_path / "lake"
    sync = ("sync", "--lake", str(lake))
    async with Emulator(20, seed=SEED) as emulator:
        assert await short_of_files(64, *sync, emulator=emulator) == ExitCode.OK
        emulator.world.update(emulator.world.pick_random(10))
        before = list(emulator.truth())
        assert await short_of_files(14, *sync, emulator=emulator) == ExitCode.STORAGE
        assert litter(lake) == []
        await synced(emulator, lake)
        assert is_shown(lake, before)
        with Lake(lake, doing="test") as held:
            for number in range(60):
                commit(held, {number: 0})
            held.publish("", at=AT, complete=True, watermark=None)
        question = ("query", "SELECT count(*), max(scan_code) FROM files", "--lake", str(lake))
        assert await short_of_files(12, *question, emulator=emulator) == ExitCode.OK, "a query opens few files"
        rebuild = ("rebuild", "--lake", str(lake))
        assert await short_of_files(20, *rebuild, emulator=emulator) == ExitCode.OK, "it reads a part at a time"
    assert litter(lake) == []


async def short_of_files(limit: int, *arguments: str, emulator: Emulator) -> int:
    """Run the command with so many open files: it gets by, or says with exit 7 what to raise; its exit code."""
    code, err = await limited("RLIMIT_NOFILE", limit, *arguments, emulator=emulator)
    assert code in {ExitCode.OK, ExitCode.STORAGE}, err
    if code == ExitCode.STORAGE:
        (told,) = [line for line in err.splitlines() if line.startswith("scanlake: ")]
        assert "ulimit -n" in told
    return ExitCode(code)


async def test_a_run_on_a_full_disk_has_failed(small_disk: Path) -> None:
    """A sync for which the disk has no room is recorded as failed, with the reason, then and after later syncs."""
    lake, other = small_disk / "lake", small_disk / "other"
    async with Emulator(20, seed=SEED) as emulator:
        await synced(emulator, lake)
        emulator.world.update(emulator.world.pick_random(15))
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        other.write_bytes(b"x" * (free - 60_000))
        code, _, message = await ran(emulator, lake, "sync")
        assert code == ExitCode.STORAGE, message
        status = json.loads(told(lake, "status", "--json", code=ExitCode.STORAGE))
        assert "B free. Free disk space" in status["problem"]
        assert status["interrupted"] is None
        assert status["runs"][0]["state"] == "failed"
        assert status["runs"][0]["error"] in message
        other.unlink()
        await synced(emulator, lake)
    states = [run["state"] for run in json.loads(told(lake, "status", "--json"))["runs"]]
    assert states == ["done", "failed", "done"]


async def test_an_unmounted_lake_does_not_become_a_new_one(small_disk: Path) -> None:
    """Every command refuses it and names the way out, and writes nothing where the disk was; mounted, it goes on."""
    lake = small_disk / "lake"
    async with Emulator(3, seed=SEED) as emulator:
        assert (await ran(emulator, lake, "sync"))[0] == ExitCode.OK
        shutil.rmtree(lake)
        assert (await ran(emulator, lake, "sync"))[0] == ExitCode.OK, "a lake that was deleted is made again"
        unmount(small_disk)
        for command in ("sync", "verify", "images"):
            code, _, err = await ran(emulator, lake, command)
            [line] = err.splitlines()
            assert (code, f"its disk {small_disk} is not mounted. Mount it, or delete " in line) == (7, True), command
        for command in ("status", "query SELECT 1", "check", "backup ../copy", "repair"):
            answer = forked(lake, *command.split(" ", 1))
            assert (answer.code, "is not mounted" in answer.out + answer.err) == (7, True), command
        assert os.listdir(small_disk) == []  # noqa: PTH208
        lake.mkdir()
        assert (await ran(emulator, lake, "sync"))[0] == ExitCode.STORAGE, "an empty folder is no lake"
        record = line.partition("or delete ")[2].partition(" to start")[0]
        os.remove(record)  # noqa: PTH107
        assert (await ran(emulator, lake, "sync"))[0] == ExitCode.OK
    mount(small_disk, "size=1m")  # the fixture unmounts it
