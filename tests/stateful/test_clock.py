"""This machine's clock may be wrong, and may jump while a run lasts; the service's is what counts."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING

import pytest

from pipeline.client.clock import MAX_AHEAD_SECONDS
from pipeline.emulator import Emulator, WorldPlan
from schemas.timestamps import SECOND
from tests.sync.sync_harness import SEED, check_equal, synced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("unpublished")
DAY = 86_400
SETTLE = 30
NOW = "2026-03-29T00:59:50Z"  # ten seconds before Europe puts its clocks forward


CLOCKS: dict[str, Callable[[float, int], float]] = {
    "an hour fast": lambda true, _: true + 3_600,
    "a day slow": lambda true, _: true - DAY,
    "1970": lambda true, _: true % DAY,
    "2099": lambda true, _: true + 73 * 365 * DAY,
    "steps back mid-run": lambda true, asked: true - (asked > 2) * 3 * 3_600,
    "steps forth mid-run": lambda true, asked: true + (asked > 2) * 40 * DAY,
}
"""Wrong clocks: from the true time and how often it was asked for to what is shown; seconds."""


@pytest.mark.parametrize("name", CLOCKS)
async def test_a_wrong_local_clock_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Watermarks are the service's time minus the settle time, or earlier if the local clock is slow; no loss."""
    true, asked_times = time.time, itertools.count(1)
    # Both spellings of the wall clock show what a wrong one would; durations are the monotonic clock's.
    monkeypatch.setattr(time, "time", lambda: CLOCKS[name](true(), next(asked_times)))
    monkeypatch.setattr(time, "time_ns", lambda: int(time.time() * 1e9))
    async with Emulator(plan=WorldPlan(files=10, seed=SEED, now=NOW, days=30)) as emulator:
        clock = emulator.world.clock
        for _ in range(2):
            began = clock.now() // SECOND
            latest = time.time() + MAX_AHEAD_SECONDS
            summary = await synced(emulator, tmp_path / "lake")
            # A `Date` has whole seconds, and the monotonic clock carries it on while the service's stands still here.
            assert summary.watermark is not None
            watermark = summary.watermark.timestamp()
            assert min(began, latest) - SETTLE - 1 <= watermark <= began - SETTLE + 10
            emulator.world.update(emulator.world.pick_random(5))
            emulator.world.create(2)
            clock.advance(3_600)
        await synced(emulator, tmp_path / "lake")
        asked = emulator.counts["detail"]
        await synced(emulator, tmp_path / "lake")
        assert emulator.counts["detail"] == asked, "nothing had changed"
        check_equal(tmp_path / "lake", emulator, history=True)


@pytest.mark.virtual_time
async def test_a_run_has_its_time(tmp_path: Path) -> None:
    """A run that is to last no longer than so many seconds stops then, keeps what is whole, and the next goes on."""
    async with Emulator(60, seed=SEED) as emulator:
        emulator.set_faults(latency_ms=20.0)
        emulator.script("stall", times=3, path="/api/v2/files/", skip=20)
        began = asyncio.get_running_loop().time()
        summary = await synced(
            emulator, tmp_path / "lake", max_duration_seconds=1, max_concurrency=4, commit_every_files=10
        )
        assert summary.state == "stopped"
        assert 1 <= asyncio.get_running_loop().time() - began <= 10
        assert emulator.in_flight == 0
        emulator.faults.clear()
        first = emulator.counts["detail"]
        await synced(emulator, tmp_path / "lake")
        assert emulator.counts["detail"] - first < 60
        check_equal(tmp_path / "lake", emulator)
