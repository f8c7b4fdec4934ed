"""Emulator of the whole service: an HTTP server over files that are generated from a seed.

    async with Emulator(files=500, seed=7) as emulator:
        ...  # talk to emulator.base_url with emulator.token

The emulator imports nothing from the rest of scanlake, so that both cannot misread the interface in the same way.
"""

from pipeline.emulator.generator import EDIT_KINDS, EditKind
from pipeline.emulator.options import PROFILES, Faults, ImageOptions, Quirks, WorldPlan, make_quirks
from pipeline.emulator.server import DEFAULT_TOKEN, Emulator
from pipeline.emulator.world import World

__all__ = [
    "DEFAULT_TOKEN", "EDIT_KINDS", "PROFILES", "EditKind", "Emulator", "Faults", "ImageOptions", "Quirks",
    "World", "WorldPlan", "make_quirks",
]  # fmt: skip
