"""Running a coroutine to its end: the fast loop where there is one, and clean ends on SIGTERM and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from pipeline.errors import Exit, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from pipeline.call import Call

_new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
with contextlib.suppress(ImportError):  # there are platforms without it
    import uvloop

    _new_loop = uvloop.new_event_loop

_Result = TypeVar("_Result")
_log = structlog.get_logger()


def run_to_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `work`. The first SIGTERM or Ctrl-C cancels it, which commits what is whole; raises `Interrupted`."""
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_interruptible(work))


def in_own_process(call: Call, lake: Path, *arguments: str) -> None:
    """Run another verb on the lake in a process of its own, with memory of its own; a failure is logged.

    That another run holds the lake is none: what was due stays due, and the next run does it.
    """
    command = [sys.executable, "-m", "pipeline", *arguments, "--lake", str(lake), "--quiet"]
    if call.config is not None:
        command += ["--config", str(call.config)]
    done = subprocess.run(  # noqa: S603 - our own command
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    if done.returncode == Exit.BUSY:
        _log.info("upkeep.later", verb=arguments[0], reason="another run holds the lake")
        return
    sys.stderr.write(done.stderr)
    if done.returncode:
        _log.warning("upkeep.failed", verb=arguments[0], exit_code=done.returncode)


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
        raise Interrupted(
            "stopped on request; what was whole is committed and published",
            remedy="Run the same command again; it goes on where this one stopped.",
        ) from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
