"""A lake on a disk that is not mounted: nobody takes the folder below for an empty one."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from pipeline.emulator import Emulator
from pipeline.errors import ExitCode
from tests.disks import mount, unmount
from tests.lake.test_full_disk import small_disk
from tests.processes import forked, ran
from tests.sync.sync_harness import SEED

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["small_disk"]


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
