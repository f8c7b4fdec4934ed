"""The whole service, pretended: an HTTP server over a deterministic world of files grown from a seed.

    async with Emulator(files=500, seed=7) as emulator:
        ...  # talk to emulator.base_url with emulator.token

It imports nothing of the rest of this project, so that it cannot share our misreadings of the interface.
"""

from pipeline.emulator.growth import EDIT_KINDS, EditKind
from pipeline.emulator.options import PROFILES, Faults, Quirks, WorldPlan, quirks_of
from pipeline.emulator.server import DEFAULT_TOKEN, Emulator
from pipeline.emulator.world import World

__all__ = [
    "DEFAULT_TOKEN",
    "EDIT_KINDS",
    "PROFILES",
    "EditKind",
    "Emulator",
    "Faults",
    "Quirks",
    "World",
    "WorldPlan",
    "quirks_of",
]
