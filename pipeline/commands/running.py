"""Running a coroutine to its end: the fast loop where there is one, and clean ends on SIGTERM and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
with contextlib.suppress(ImportError):  # there are platforms without it
    import uvloop

    _new_loop = uvloop.new_event_loop

_Result = TypeVar("_Result")


def run_to_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `work`. The first SIGTERM or Ctrl-C cancels it, which commits what is whole; raises `Interrupted`."""
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_interruptible(work))


async def _interruptible(work: Coroutine[Any, Any, _Result]) -> _Result:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        # A second signal finds the first one's work under way: it is short, and must not be cut off.
        if not stopped:
            stopped = True
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        return await task
    except asyncio.CancelledError:
        raise Interrupted("stopped on request; what was whole is committed and published") from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
