"""A world that changes by itself while it is served."""

import asyncio
import random

from pipeline.emulator.world import World

_LEAST_FILES = 10
_TICK = 0.05


def change_one(world: World, rng: random.Random) -> None:
    """Make one change: mostly updates, some new files, now and then a deletion, a closing, a return."""
    draw = rng.random()
    if draw < 0.15 or len(world.records) < _LEAST_FILES:
        world.create()
    elif draw < 0.21:
        world.delete(world.some(1))
    elif draw < 0.26:
        world.close(world.some(1))
    elif draw < 0.28:
        world.reopen(world.some(1))
    elif draw < 0.29 and world.deleted:
        world.restore([next(iter(world.deleted))])
    elif draw < 0.34:
        world.touch(world.some(1))
    else:
        world.update(world.some(1))


async def churn(world: World, rate: float, seed: int) -> None:
    """Make `rate` changes a second until cancelled."""
    rng = random.Random(f"churn:{seed}")
    owed = 0.0
    loop = asyncio.get_running_loop()
    last = loop.time()
    while True:
        await asyncio.sleep(max(_TICK, 1 / rate) if rate else 1.0)
        now = loop.time()
        owed += (now - last) * rate
        last = now
        while owed >= 1:
            change_one(world, rng)
            owed -= 1
