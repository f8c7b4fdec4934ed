"""Whatever fails and wherever it dies: readers see old or new, whole, and the next run heals the rest."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ExitCode, StorageError
from pipeline.lake.integrity import find_unknown_files
from pipeline.lake.lake import Lake
from pipeline.lake.layout import LakeLayout
from pipeline.lake.ledger import Ledger
from pipeline.settings import Settings
from tests.forkserver import run_command
from tests.lake.fault_injection import Disk, ProcessKilled, failing
from tests.lake.lake_builder import AT, commit
from tests.lake.operations import compact_all
from tests.oracle import differences
from tests.sync.sync_harness import SEED, opened, synced

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

FILES = 6
EVERY = 1 if os.environ.get("SOAK_EXAMPLES") else 15
"""A run of the suite strikes one operation in so many, another one each time; `make soak` strikes every one."""
SYSCALLS = {"write_bytes", "fsync", "chmod", "rename", "unlink", "copyfile", "transaction"}


def litter(lake: Path) -> list[str]:
    """What no catalog and no ledger names."""
    with Lake(lake, doing="look") as held:
        found = find_unknown_files(held.layout, held.ledger)
        named = {part.name for part in held.ledger.parts()} | {name for name, _, _ in held.ledger.retired_parts()}
    on_disk = {path.relative_to(lake).as_posix() for path in [*lake.glob("parts/*/0*"), *lake.glob("raw/*")]}
    return [*found, *sorted(on_disk ^ named)]


def first_struck() -> int:
    """Where this run begins, less a step."""
    at = random.randrange(EVERY)  # the seed of a failure is the place it names
    print(f"struck: every {EVERY}th from {at + 1}")
    return at + 1 - EVERY


def unlike(lake: Path, world: Sequence[dict[str, Any]]) -> list[str]:
    """Where the published catalog differs from a world; definitions belong to no file, and outlive the last one."""
    with opened(lake) as db:
        found = differences(db, world)
    return [line for line in found if not line.startswith(("workflows", "workflow_steps", "workflow_definition"))]


def shown(lake: Path, *worlds: Sequence[dict[str, Any]]) -> list[bool]:
    """Which of these worlds the published catalog shows, whole."""
    return [not unlike(lake, world) for world in worlds]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "late"), [(errno.ENOSPC, False), (errno.EIO, False), (None, False), (None, True)],
    ids=["full", "broken", "killed-before", "killed-after"],
)  # fmt: skip
async def test_every_file_operation_of_a_sync(tmp_path: Path, error: int | None, late: bool) -> None:  # noqa: FBT001
    """At every file operation of a commit and its publish: old or new whole, exit 7 in one line, healed afterwards."""
    lake, seen, messages = tmp_path / "lake", set(), list[str]()
    at = first_struck()
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, lake)
        worlds = [list(emulator.truth())]  # from the one that readers saw last
        while True:
            at += EVERY
            emulator.world.update(emulator.world.pick_random(1))
            worlds.append(list(emulator.truth()))
            with failing(Disk(at, error, late)) as disk:
                try:
                    await synced(emulator, lake, keep_snapshots=1, retention_hours=0)
                except ProcessKilled:
                    assert error is None
                except StorageError as told:
                    messages.append(told.message)
            seen |= set(disk.done)
            found = next((place for place, world in enumerate(worlds) if not unlike(lake, world)), None)
            assert found is not None, f"torn, or older than before, at {at}: {disk.done[-1]}"
            del worlds[:found]
            if not disk.struck:
                break
            if disk.done.count("rename") == 0 or at % 3 == 0:  # the next failing run heals what this one left
                await synced(emulator, lake)
                assert unlike(lake, worlds[-1]) == [], f"not healed after {at}: {disk.done[at - 1]}"
                assert litter(lake) == []
    assert at > 40
    assert seen >= SYSCALLS
    assert bool(messages) is (error is not None)
    assert not any("\n" in message for message in messages)
    assert litter(lake) == []


@pytest.mark.parametrize("error", [errno.ENOSPC, None], ids=["full", "killed"])
async def test_every_file_operation_of_a_compaction(tmp_path: Path, error: int | None) -> None:
    """At every file operation of a compaction readers go on, nothing is lost, and the next one finishes it."""
    lake, at = tmp_path / "lake", first_struck()
    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, lake)
        while True:
            at += 2 * EVERY  # most of them are the same for each table
            emulator.world.update(emulator.world.pick_random(1))
            await synced(emulator, lake, keep_snapshots=1, retention_hours=0)
            with failing(Disk(at, error)) as disk:
                try:
                    with Lake(lake, doing="compaction") as held:
                        compact_all(held, Settings(lake=lake, keep_snapshots=1, retention_hours=0))
                except ProcessKilled:
                    assert error is None
                except StorageError:
                    assert error is not None
            assert shown(lake, list(emulator.truth())) == [True], f"torn at {at}: {disk.done[-1]}"
            if not disk.struck:
                break
    assert at > 40
    assert litter(lake) == []


async def test_data_before_index_before_pointer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is on disk before it gets its name, and the name before the ledger or a catalog mentions it."""
    lake, on_disk, unnamed, log = tmp_path / "lake", set[str](), set[str](), list[str]()
    real_sync, real_rename, real_transaction = os.fsync, Path.rename, Ledger.transaction

    def sync(handle: int) -> None:
        real_sync(handle)
        place = str(Path(f"/proc/self/fd/{handle}").readlink())
        on_disk.add(place)
        unnamed.discard(place)

    def rename(path: Path, target: Path) -> Path:
        assert str(path) in on_disk, f"{path.name} gets its name before it is on disk"
        log.append(target.name)
        unnamed.add(str(target.parent))
        return real_rename(path, target)

    @contextmanager
    def transaction(ledger: Ledger) -> Iterator[sqlite3.Connection]:
        assert not unnamed, f"names not on disk in {unnamed}"
        with real_transaction(ledger) as db:
            yield db

    async with Emulator(FILES, seed=SEED) as emulator:
        await synced(emulator, lake)
        emulator.world.update(emulator.world.pick_random(2))
        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(Path, "rename", rename)
        monkeypatch.setattr(Ledger, "transaction", transaction)
        await synced(emulator, lake)
    assert "catalog.duckdb" in log
    assert len(log) > 5


async def limited(name: str, limit: int, *arguments: str, emulator: Emulator) -> tuple[int, str]:
    """Run the command under a limit of the system: its exit code, and what it told on standard error."""
    env = {**os.environ, "SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token}
    ended = await asyncio.to_thread(run_command, arguments, cwd=Path.cwd(), env=env, limits={name: limit})
    return ended.code, ended.err.decode()


@pytest.mark.parametrize("limit", [2_000, 60_000, 400_000, 1_200_000], ids=lambda limit: f"{limit // 1000}k")
async def test_a_disk_that_is_really_full(tmp_path: Path, limit: int) -> None:
    """When the system itself refuses to write: exit 7 with one line, the old snapshot whole, and no litter."""
    lake = tmp_path / "lake"
    async with Emulator(40, seed=SEED) as emulator:
        await synced(emulator, lake)
        before = list(emulator.truth())
        emulator.world.update(emulator.world.pick_random(30))
        emulator.world.create(260)
        code, err = await limited("RLIMIT_FSIZE", limit, "sync", "--lake", str(lake), emulator=emulator)
        told = [line for line in err.splitlines() if line.startswith("scanlake: ")]
        assert code == ExitCode.STORAGE, err
        assert len(told) == 1
        assert "Free disk space" in told[0]
        assert "Traceback" not in err
        assert shown(lake, before) == [True]
        assert not [path for path in lake.rglob("*") if path.name.endswith(".tmp")]
        await synced(emulator, lake)
        assert shown(lake, list(emulator.truth())) == [True]
    assert litter(lake) == []
    assert LakeLayout(lake).ledger.exists()


async def test_too_few_files_may_be_open(tmp_path: Path) -> None:
    """With 64 open files a sync gets by; with fewer, or for many parts, exit 7 names the limit; nothing is half."""
    lake = tmp_path / "lake"
    sync = ("sync", "--lake", str(lake))
    async with Emulator(40, seed=SEED) as emulator:
        code, err = await limited("RLIMIT_NOFILE", 64, *sync, emulator=emulator)
        assert code == ExitCode.OK, err
        # How many a run needs depends on the machine: on its speed, for one, and so on the connections at once.
        ends = []
        for limit in (32, 20, 14):
            emulator.world.update(emulator.world.pick_random(20))
            before = list(emulator.truth())
            ends.append(await short_of_files(limit, *sync, emulator=emulator))
            assert litter(lake) == []
            await synced(emulator, lake)
            assert shown(lake, before) == [True]
        assert ExitCode.STORAGE in ends
        with Lake(lake, doing="test") as held:
            for number in range(120):
                commit(held, {number % 60: 0})
            held.publish("", at=AT, complete=True, watermark=None)
        question = ("query", "SELECT count(*), max(scan_code) FROM files", "--lake", str(lake))
        assert await short_of_files(12, *question, emulator=emulator) == ExitCode.OK, "a query opens few files"
        rebuild = ("rebuild", "--small-parts", "--lake", str(lake))
        ends = [await short_of_files(limit, *rebuild, emulator=emulator) for limit in (40, 20)]
        assert ExitCode.STORAGE in ends
    assert litter(lake) == []


async def short_of_files(limit: int, *arguments: str, emulator: Emulator) -> int:
    """Run the command with so many open files: it gets by, or says with exit 7 what to raise; its exit code."""
    code, err = await limited("RLIMIT_NOFILE", limit, *arguments, emulator=emulator)
    assert code in {ExitCode.OK, ExitCode.STORAGE}, err
    if code == ExitCode.STORAGE:
        (told,) = [line for line in err.splitlines() if line.startswith("scanlake: ")]
        assert "ulimit -n" in told
    return ExitCode(code)


def test_a_quota_and_a_name_too_long(tmp_path: Path) -> None:
    """A quota that is reached, and a path that is too long, are one line that says what to do."""
    lake = tmp_path / "lake"
    with Lake(lake, doing="test") as held:
        commit(held, {1: 0})
        held.publish("", at=AT, complete=True, watermark=None)
        for at in (1, 3, 5):
            with failing(Disk(at, errno.EDQUOT)), pytest.raises(StorageError, match="quota exceeded") as told:
                commit(held, {2: 0})
            assert "Free disk space" in told.value.hint
    assert litter(lake) == []
    for name in ("y" * 256, "/".join(["y" * 200] * 25)):
        with pytest.raises(StorageError, match=r"/y{60}\.\.\.: File name too long\.$") as told:
            Lake(lake / name, doing="test").__enter__()
        assert "--lake" in told.value.hint
