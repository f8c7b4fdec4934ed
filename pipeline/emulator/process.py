"""The emulator as a process that runs until a signal, a time limit or the end of stdin."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable

import msgspec

from pipeline.emulator.faults import is_kind
from pipeline.emulator.options import Faults, parse_assignments, replace_fields
from pipeline.emulator.server import Emulator

_new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
with contextlib.suppress(ImportError):  # not available on all platforms
    import uvloop

    _new_loop = uvloop.new_event_loop


def parse_faults(texts: Iterable[str]) -> Faults:
    """Parse `name=value` texts: a field of Faults, or a fault kind and its probability.

    Raise ValueError for an unknown name or value.
    """
    pairs = parse_assignments(texts)
    probabilities = {name: float(value) for name, value in pairs.items() if is_kind(name)}
    fields = {name: value for name, value in pairs.items() if name not in probabilities}
    return replace_fields(Faults(probabilities=probabilities), fields)


def serve(emulator: Emulator, *, max_seconds: float, until_stdin_closes: bool) -> None:
    """Serve until SIGTERM, SIGINT, the time limit (0: none) or the end of stdin.

    When ready, print one line of JSON: base_url, token, other_url, control, files, seed, and with
    images image_url.
    Raise OSError if the port is taken.
    """
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(emulator, max_seconds=max_seconds, until_stdin_closes=until_stdin_closes))


async def _serve(emulator: Emulator, *, max_seconds: float, until_stdin_closes: bool) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    if until_stdin_closes:
        threading.Thread(target=_wait_for_stdin, args=(loop, end), daemon=True).start()
    async with emulator:
        ready = {
            "base_url": emulator.base_url,
            "token": emulator.token,
            "other_url": emulator.other_url,
            "control": f"{emulator.base_url}/_emulator/",
            "files": len(emulator.world.records),
            "seed": emulator.plan.seed,
        }
        if emulator.images is not None:
            ready["image_url"] = emulator.images.url
        sys.stdout.write(msgspec.json.encode(ready).decode() + "\n")
        sys.stdout.flush()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(end.wait(), max_seconds or None)


def _wait_for_stdin(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
    """Stop the service when the parent process ends, even if it was killed."""
    # sys.stdin would keep its lock in this thread and break the interpreter's shutdown.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    loop.call_soon_threadsafe(end.set)
