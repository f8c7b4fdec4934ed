"""Random changes of the world while the emulator serves it."""

import asyncio
import random

from pipeline.emulator.world import World

_MIN_FILES = 10
_TICK_SECONDS = 0.05


def change_one(world: World, rng: random.Random) -> None:
    """Make one change: mostly updates, some new files, few deletions, closings and restores."""
    draw = rng.random()
    if draw < 0.15 or len(world.records) < _MIN_FILES:
        world.create()
    elif draw < 0.21:
        world.delete(world.pick_random(1))
    elif draw < 0.26:
        world.close(world.pick_random(1))
    elif draw < 0.28:
        world.reopen(world.pick_random(1))
    elif draw < 0.29 and world.deleted:
        world.restore([next(iter(world.deleted))])
    elif draw < 0.34:
        world.touch(world.pick_random(1))
    else:
        world.update(world.pick_random(1))


async def run_churn(world: World, rate: float, seed: int) -> None:
    """Make `rate` changes a second until cancelled."""
    rng = random.Random(f"churn:{seed}")
    pending = 0.0
    loop = asyncio.get_running_loop()
    last = loop.time()
    while True:
        await asyncio.sleep(max(_TICK_SECONDS, 1 / rate) if rate else 1.0)
        now = loop.time()
        pending += (now - last) * rate
        last = now
        while pending >= 1:
            change_one(world, rng)
            pending -= 1
