"""Coroutines as the work of a process: uvloop if installed, and an orderly end on SIGTERM, SIGHUP and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pipeline.errors import RunInterrupted
from pipeline.processes.signals import STOP_SIGNALS, record_stop, take_stop_request

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

_new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
with contextlib.suppress(ImportError):  # uvloop does not exist for every platform
    import uvloop

    _new_loop = uvloop.new_event_loop

_Result = TypeVar("_Result")
_RESPONSE_SECONDS: Final = 5.0  # a run that must stop waits so long for the response to a call in flight


def run_async(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `work`. The first of `STOP_SIGNALS` cancels it; complete batches are committed, then `RunInterrupted`.

    A signal while the loop starts or ends is recorded: it would end a callback, and be lost, or leave `work` unstarted.
    """
    survives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as nohup sets it
    handled = [number for number in STOP_SIGNALS if not (survives_terminal and number == signal.SIGHUP)]
    former: dict[int, Any] = {}
    # A loop that cannot start leaves both.
    with contextlib.closing(work), contextlib.closing(_cancel_on_signal(work, handled)) as main:
        try:
            for handled_signal in handled:
                former[handled_signal] = signal.signal(handled_signal, record_stop)
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                result = runner.run(main)
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
    if take_stop_request():
        raise KeyboardInterrupt
    return result


async def await_response(call: Coroutine[Any, Any, _Result], on_stop: Callable[[_Result | None], object]) -> _Result:
    """Return the response to a call that must not be repeated. On cancellation `on_stop` gets the response in time.

    It gets None without one, and must not wait: a second cancellation would lose the response.
    """
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait({task}, timeout=_RESPONSE_SECONDS)
        on_stop(task.result() if done and not task.cancelled() and task.exception() is None else None)
        task.cancel()
        raise


async def _cancel_on_signal(work: Coroutine[Any, Any, _Result], handled: Sequence[signal.Signals]) -> _Result:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    is_stopping = False
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def stop(number: signal.Signals) -> None:
        nonlocal is_stopping
        if number == signal.SIGHUP:
            _leave_terminals(terminals)
        # A second signal must not cancel the clean-up after the first one: it is short.
        if not is_stopping:
            is_stopping = True
            task.cancel()

    for number in handled:
        loop.add_signal_handler(number, stop, number)
    if take_stop_request():
        stop(signal.SIGINT)
    try:
        return await task
    except asyncio.CancelledError:
        raise RunInterrupted(
            "Stopped on request: all complete batches are committed.", hint="Run the same command again to continue."
        ) from None
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
            signal.signal(number, record_stop)


def _leave_terminals(descriptors: Sequence[int]) -> None:
    """Send what is written to a closed terminal nowhere: each write would fail, and end the clean-up of the run."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)
