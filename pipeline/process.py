"""Coroutines and commands as processes: uvloop if installed, and an orderly end on SIGTERM and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from pipeline.errors import ExitCode, RunInterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

_new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
with contextlib.suppress(ImportError):  # uvloop does not exist for every platform
    import uvloop

    _new_loop = uvloop.new_event_loop

_Result = TypeVar("_Result")
_log = structlog.get_logger()


def run_async(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `work`. The first SIGTERM or Ctrl-C cancels it; complete batches are committed, then `RunInterrupted`."""
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_cancel_on_signal(work))


def run_subcommand(lake: Path, config: Path | None, *arguments: str) -> None:
    """Run another command on the lake in its own process, with its own memory; a failure is logged.

    A lake that another run holds is no failure: the next run does the work.
    """
    argv = [sys.executable, "-m", "pipeline", *arguments, "--lake", str(lake), "--quiet"]
    if config is not None:
        argv += ["--config", str(config)]
    process = subprocess.run(  # noqa: S603 - scanlake's own command
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    if process.returncode == ExitCode.LOCKED:
        _log.info("maintenance.deferred", command=arguments[0], reason="another run holds the lake")
        return
    sys.stderr.write(process.stderr)
    if process.returncode:
        _log.warning("maintenance.failed", command=arguments[0], exit_code=process.returncode)


async def _cancel_on_signal(work: Coroutine[Any, Any, _Result]) -> _Result:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        # A second signal must not cancel the clean-up after the first one: it is short.
        if not is_stopping:
            is_stopping = True
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        return await task
    except asyncio.CancelledError:
        raise RunInterrupted(
            "Stopped on request: all complete batches are committed and published.",
            hint="Run the same command again to continue.",
        ) from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
