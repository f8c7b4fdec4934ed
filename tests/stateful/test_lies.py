"""Whatever the service lies about: nothing is certified that is not so, nothing is lost, nothing is without end."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.emulator import make_quirks
from pipeline.errors import ScanlakeError
from pipeline.sync.sync import TimeRange
from pipeline.sync.verify import VerifyMode
from schemas.timestamps import SECOND, now_us
from tests.soaking import draw_seed, sample
from tests.stateful.lies import HIDES, NAMES, UNSEEN, Lie, LyingEmulator
from tests.sync.sync_harness import check_equal, synced, verified

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("unpublished")]
SOAK_SECONDS: Final = float(os.environ.get("SOAK_SECONDS", "600"))
SEED: Final = draw_seed(__name__)
FILES: Final = 55
_HOUR: Final = 3_600
_MAX_SECONDS: Final = 60.0
_MAX_CALLS: Final = 4_000
_QUICK_LIES: Final = 14
_PATIENCE: Final[dict[str, Any]] = {"max_attempts": 2, "request_timeout_seconds": 5.0}


async def run_in_time(emulator: LyingEmulator, lake: Path, *, is_verify: bool, repairs: bool = True) -> bool | None:
    """Run a sync or a verify. Return whether a verify found the lake equal; None for a refusal by name."""
    calls = emulator.requests
    try:
        async with asyncio.timeout(_MAX_SECONDS):
            if is_verify:
                return (await verified(emulator, lake, VerifyMode(check_only=not repairs), **_PATIENCE)).consistent
            await synced(emulator, lake, **_PATIENCE)
    except ScanlakeError as error:
        print(f"refused: {error.message} {error.hint}")
    finally:
        assert emulator.requests - calls < _MAX_CALLS, "a run has an end"
    return None


async def check_lies(folder: Path, lies: list[Lie], seed: int, *, starts_honest: bool) -> None:
    """Sync and verify a changing world while it lies, then honestly; the lake must equal it in the end."""
    lake, world_seed = folder / "lake", seed
    async with LyingEmulator(FILES, seed=world_seed, quirks=make_quirks("seen", {"image_urls": "stable"})) as emulator:
        world = emulator.world
        is_about_clock = all(lie.name.startswith("clock") for lie in lies)
        # A lie about the clock is measured by this machine's, so it is told when both clocks show the same time.
        world.clock.set(now_us() - (180 + _HOUR * starts_honest if is_about_clock else 3 * _HOUR) * SECOND)
        world.update(world.keys())
        world.clock.advance(120)
        if starts_honest:
            await synced(emulator, lake)
            world.clock.advance(_HOUR)
        world.update(world.pick_random(5))
        world.delete(world.pick_random(3))
        new = world.create(4)
        world.clock.advance(60)
        emulator.lies = lies
        await run_in_time(emulator, lake, is_verify=False)
        is_equal = await run_in_time(emulator, lake, is_verify=True)
        if is_equal and not any(lie.name in HIDES for lie in lies):
            check_equal(lake, emulator, history=True)  # equal is what is equal
        emulator.lies = []
        world.clock.advance(_HOUR)
        world.update(new[:2])
        world.create(2)
        world.clock.advance(120)
        await synced(emulator, lake, TimeRange(full=any(lie.name == UNSEEN for lie in lies)))
        if is_about_clock:
            world.clock.advance(_HOUR / 2)
            world.update(world.pick_random(2))
            world.clock.advance(60)
            await synced(emulator, lake)
        assert await run_in_time(emulator, lake, is_verify=True, repairs=not is_about_clock), "the truth heals"
        check_equal(lake, emulator, history=True)


@pytest.mark.parametrize("name", sample(NAMES, _QUICK_LIES))
async def test_a_lie_told_always(tmp_path: Path, name: str) -> None:
    """A lie in every answer ends in a refusal or does no harm, and leaves no trace once the service is honest."""
    await check_lies(tmp_path, [Lie(name)], 7, starts_honest=True)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
async def test_a_lie_told_once(tmp_path: Path, name: str) -> None:
    """A lie in a single answer does no harm either."""
    await check_lies(tmp_path, [Lie(name, times=1)], 8, starts_honest=True)


@pytest.mark.soak
async def test_random_lies(tmp_path: Path) -> None:
    """Random lies, told at random, one or two at a time, to new and old lakes: no finding in all the time."""
    dice, until, rounds = random.Random(SEED), time.perf_counter() + SOAK_SECONDS, 0
    while time.perf_counter() < until:
        lies = [
            Lie(name, times=dice.choice((1, 2, 5, 1e9)), probability=dice.choice((0.1, 0.5, 1.0)))
            for name in dice.sample(NAMES, dice.choice((1, 1, 2)))
        ]
        seed, starts_honest = dice.randrange(10**6), dice.random() < 0.8
        print(f"seed {SEED}, round {rounds}: {lies}, world {seed}, {starts_honest=}")
        await check_lies(tmp_path / str(rounds), lies, seed, starts_honest=starts_honest)
        rounds += 1
    print(f"{rounds} rounds")
