"""Real processes, killed with SIGKILL at the steps by which a sync changes the disk."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.emulator import Emulator
from tests.oracle import differences
from tests.soaking import SOAKING, draw_seed
from tests.sync.sync_harness import SEED, check_equal, opened, synced

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("published")
ROOT: Final = __file__.rpartition("/tests/")[0]
SOME: Final = 2  # steps of the many; `make soak` takes all


@pytest.mark.parametrize(
    "min_files", [pytest.param(1_000, id="one process"), pytest.param(1, id="two processes", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("when", ["early", "late"] if SOAKING else ["late"])
async def test_killed_at_any_step(lake: Path, when: str, min_files: int) -> None:
    """Killed before or after any write, sync, rename or transaction: readers see old or new, the next run heals."""
    seed = draw_seed(__name__)
    async with Emulator(12, seed=SEED) as emulator:
        await synced(emulator, lake)
        old = list(emulator.truth())
        emulator.world.update(emulator.world.pick_random(5))
        emulator.world.create(2)
        new = list(emulator.truth())
        arguments = (emulator.base_url, lake, when, min_files, seed, 10_000 if SOAKING else SOME)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.sync.kill_worker", *map(str, arguments)),
            env={**os.environ, "SCANLAKE_TOKEN": emulator.token, "PYTHONPATH": ROOT},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0
        lines = (line.split() for line in out.decode().splitlines())
        ends = {int(words[0]): words[1] for words in lines if len(words) == 2 and words[0].isdigit()}
        last = int(ends.pop(0))
        assert last > 25
        # How many commits there are depends on what arrives together, so that the last steps are not always reached.
        assert all(end == "killed" or int(end) < step for step, end in ends.items())
        assert list(ends.values()).count("killed") > len(ends) / 2
        for step in ends:
            killed = lake.with_name(f"lake-{step}")
            with opened(killed) as db:
                assert not differences(db, old) or not differences(db, new, history=True), f"step {step} of {last}"
            await synced(emulator, killed)
            check_equal(killed, emulator, history=True)
            assert not list(killed.rglob("*.tmp")), f"step {step} of {last}"
