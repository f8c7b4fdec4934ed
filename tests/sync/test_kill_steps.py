"""Real processes, killed with SIGKILL at the steps by which a sync changes the disk."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.emulator import Emulator
from tests.oracle import differences
from tests.soaking import SOAKING, draw_seed
from tests.sync.sync_harness import SEED, opened, synced

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("published")
ROOT: Final = __file__.rpartition("/tests/")[0]
SOME: Final = 3  # steps of the many; `make soak` takes all


async def died(emulator: Emulator, lake: Path, when: str, min_files: int, *steps: int) -> dict[int, str]:
    """Let syncs into copies of the lake be killed at these steps; how each ended, see `kill_worker`."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.sync.kill_worker",
            emulator.base_url,
            str(lake),
            when,
            *map(str, (min_files, *steps)),
        ),
        env={**os.environ, "SCANLAKE_TOKEN": emulator.token, "PYTHONPATH": ROOT},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    lines = (line.split() for line in out.decode().splitlines())
    return {int(words[0]): words[1] for words in lines if len(words) == 2 and words[0].isdigit()}


@pytest.mark.parametrize("min_files", [1_000, 1], ids=["one process", "two processes"])
@pytest.mark.parametrize("when", ["early", "late"] if SOAKING else ["late"])
async def test_killed_at_any_step(tmp_path: Path, when: str, min_files: int) -> None:
    """Killed before or after any write, sync, rename or transaction: readers see old or new, the next run heals."""
    seed = draw_seed(__name__)
    lake = tmp_path / "lake"
    async with Emulator(12, seed=SEED) as emulator:
        await synced(emulator, lake)
        old = list(emulator.truth())
        emulator.world.update(emulator.world.pick_random(5))
        emulator.world.create(2)
        new = list(emulator.truth())
        last = int((await died(emulator, lake, when, min_files, 0))[0])
        assert last > 25
        steps = sorted(range(1, last + 1) if SOAKING else random.Random(seed).sample(range(1, last + 1), SOME))
        ends = await died(emulator, lake, when, min_files, *steps)
        # How many commits there are depends on what arrives together, so that the last steps are not always reached.
        assert all(end == "killed" or int(end) < step for step, end in ends.items())
        assert list(ends.values()).count("killed") > len(steps) / 2
        for step in steps:
            killed = lake.with_name(f"lake-{when}-{step}")
            with opened(killed) as db:
                assert not differences(db, old) or not differences(db, new, history=True), f"step {step} of {last}"
            await synced(emulator, killed)
            with opened(killed) as db:
                assert differences(db, new, history=True) == [], f"step {step} of {last}"
            assert not list(killed.rglob("*.tmp")), f"step {step} of {last}"


async def test_a_second_request_to_stop(tmp_path: Path) -> None:
    """SIGTERM twice, or Ctrl-C after it, ends the run within the same ten seconds, exit 130, with nothing torn."""
    async with Emulator(200, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=60.0)
        named = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pipeline", "sync", "--quiet"),
            env={**os.environ, **named, "SCANLAKE_LAKE": str(tmp_path / "lake"), "SCANLAKE_MAX_CONCURRENCY": "4"},
            stderr=asyncio.subprocess.PIPE,
        )
        while emulator.counts["detail"] < 40:
            await asyncio.sleep(0.02)
        asked = time.monotonic()
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
            await asyncio.sleep(0.02)
        _, err = await process.communicate()
        assert time.monotonic() - asked < 60
        assert process.returncode == 130
        assert b"Traceback" not in err
        emulator.faults.clear()
        await synced(emulator, tmp_path / "lake")
        truth = list(emulator.truth())
    with opened(tmp_path / "lake") as db:
        assert differences(db, truth) == []
