"""What `make soak` runs at all points and `make test` at a few, and what `make coverage` cannot measure."""

from __future__ import annotations

import os
import random
import zlib
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

SOAKING: Final = "SOAK_EXAMPLES" in os.environ
SEED_VARIABLE: Final = "SCANLAKE_TEST_SEED"
"""Environment variable that replays a run: the seed that a test printed, or the one of Hypothesis."""
_SEED: Final = os.environ.get(SEED_VARIABLE)  # now: a test has no such variables
_Case = TypeVar("_Case")


def draw_seed(name: str) -> int:
    """Return and print the seed of a test: that of the variable; in a soak a new one; otherwise always the same."""
    if _SEED is not None:
        seed = int(_SEED)
    elif SOAKING:
        seed = random.SystemRandom().randrange(1, 1 << 30)
    else:
        seed = zlib.crc32(name.encode()) >> 2
    print(f"{SEED_VARIABLE}={seed} replays {name}")
    return seed


def sample(cases: Iterable[_Case], count: int) -> list[_Case]:
    """Return all cases in a soak, otherwise `count` of them from the first to the last."""
    every = list(cases)
    if SOAKING or len(every) <= count:
        return every
    return [every[step * (len(every) - 1) // max(count - 1, 1)] for step in range(count)]


def unmeasured() -> dict[str, str]:
    """Return the environment of a process that coverage must not measure: of another user, or to be signalled."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COV")}
