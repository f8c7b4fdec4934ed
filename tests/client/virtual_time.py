"""An event loop whose time jumps: hours of waiting in milliseconds, the same on every run."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

Value = TypeVar("Value")


class _Jump(selectors.SelectSelector):
    """A selector that advances the clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Advance the clock. Nothing arrives from outside, so an endless wait is a deadlock of the test."""
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("all tasks wait for ever")
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Return the seconds since the loop was created."""
        return self._jump.now


def run_virtually(main: Coroutine[Any, Any, Value]) -> Value:
    """Run `main` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
