"""A disk that is full while the catalog is written: readers keep the former one, and the next sync publishes."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ExitCode
from pipeline.lake.lake import Lake
from tests.lake.corruption import checked
from tests.lake.operations import told
from tests.lake.test_crash import limited, litter, shown
from tests.processes import ran
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 20 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(folder)], check=False)
    if done.returncode != 0:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_disk_that_is_full_of_the_catalog(tmp_path: Path) -> None:
    """While the catalog is copied, updated or built: exit 7 in one line, the former one stays, the next sync heals."""
    lake, catalog = tmp_path / "lake", tmp_path / "lake" / "catalog.duckdb"
    async with Emulator(40, seed=SEED) as emulator:
        await synced(emulator, lake)
        former = list(emulator.truth())
        size = catalog.stat().st_size
        snapshot_size = max(path.stat().st_size for path in lake.glob("snapshots/*"))
        assert snapshot_size < size / 2
        for step, limit in (("copied", size // 2), ("updated", size + 100), ("built", snapshot_size + 100_000)):
            emulator.world.update(emulator.world.pick_random(3))
            if step == "built":
                os.utime(catalog)  # it is not as it was published, so it is not updated
            content = catalog.read_bytes()
            code, message = await limited("RLIMIT_FSIZE", limit, "sync", "--lake", str(lake), emulator=emulator)
            assert code == ExitCode.STORAGE, (step, message)
            (line,) = [line for line in message.splitlines() if line.startswith("scanlake: ")]
            assert str(catalog) in line, step
            assert "Free disk space" in line, step
            assert "Traceback" not in message
            assert catalog.read_bytes() == content, step
            assert shown(lake, former) == [True], step
            assert "catalog.duckdb lacks the newest rows" in told(lake, "status", code=1), step
            assert checked(lake, mend=False).damage == [], step
            assert not [path for path in lake.rglob("*") if ".tmp" in path.name or path.name.endswith(".wal")], step
        await synced(emulator, lake)
        assert shown(lake, list(emulator.truth())) == [True]
        assert "lacks" not in told(lake, "status")
    assert litter(lake) == []
    with Lake(lake, doing="test") as held:
        published = held.ledger.query("SELECT snapshot FROM snapshot WHERE state = 'published'")
    assert {int(path.stem) for path in lake.glob("snapshots/*")} == {number for (number,) in published}


async def test_a_run_on_a_full_disk_has_failed(small_disk: Path) -> None:
    """A sync for which the disk has no room is recorded as failed, with the reason, then and after later syncs."""
    lake, other = small_disk / "lake", small_disk / "other"
    async with Emulator(40, seed=SEED) as emulator:
        await synced(emulator, lake)
        emulator.world.update(emulator.world.pick_random(20))
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        other.write_bytes(b"x" * (free - 60_000))
        code, _, message = await ran(emulator, lake, "sync")
        assert code == ExitCode.STORAGE, message
        status = json.loads(told(lake, "status", "--json", code=1))
        assert status["interrupted"] is None
        assert status["runs"][0]["state"] == "failed"
        assert status["runs"][0]["error"] in message
        other.unlink()
        await synced(emulator, lake)
    states = [run["state"] for run in json.loads(told(lake, "status", "--json"))["runs"]]
    assert states == ["done", "failed", "done"]
