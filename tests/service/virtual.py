"""An event loop whose time jumps: hours of waiting in milliseconds, the same on every run."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

Value = TypeVar("Value")


class _Jump(selectors.SelectSelector):
    """Instead of waiting, moves the loop's clock on."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Nothing ever arrives from outside; so a wait without end is a deadlock of the test."""
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everybody waits, and nothing will ever happen")
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jump.now


def run_virtually(main: Coroutine[Any, Any, Value]) -> Value:
    """Run to the end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
