"""What `make soak` runs at all points and `make test` at a few, and what `make coverage` cannot measure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

SOAKING: Final = "SOAK_EXAMPLES" in os.environ
_Case = TypeVar("_Case")


def sample(cases: Iterable[_Case], count: int) -> list[_Case]:
    """Return all cases in a soak, otherwise `count` of them from the first to the last."""
    every = list(cases)
    if SOAKING or len(every) <= count:
        return every
    return [every[step * (len(every) - 1) // (count - 1)] for step in range(count)]


def unmeasured() -> dict[str, str]:
    """Return the environment of a process that coverage must not measure: of another user, or to be signalled."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COV")}
