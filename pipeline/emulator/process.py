"""The emulator as a process that runs until a signal, a time limit or the end of stdin."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from pipeline.emulator.faults import is_kind
from pipeline.emulator.options import Faults, Quirks, WorldPlan, parse_assignments, replace_fields
from pipeline.emulator.server import DEFAULT_TOKEN, Emulator

_new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
with contextlib.suppress(ImportError):  # not available on all platforms
    import uvloop

    _new_loop = uvloop.new_event_loop


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of an emulator process; `max_seconds` 0 means no limit."""

    plan: WorldPlan
    quirks: Quirks
    faults: Faults
    host: str = "127.0.0.1"
    port: int = 0
    token: str = DEFAULT_TOKEN
    churn: float = 0.0
    max_seconds: float = 0.0
    until_stdin_closes: bool = False
    cache_bytes: int = 256_000_000
    prerender: bool = False


def parse_faults(texts: Iterable[str]) -> Faults:
    """Parse `name=value` texts: a field of Faults, or a fault kind and its probability.

    Raise ValueError for an unknown name or value.
    """
    pairs = parse_assignments(texts)
    probabilities = {name: float(value) for name, value in pairs.items() if is_kind(name)}
    fields = {name: value for name, value in pairs.items() if name not in probabilities}
    return replace_fields(Faults(probabilities=probabilities), fields)


def serve(options: ServeOptions) -> None:
    """Serve until SIGTERM, SIGINT, the time limit or the end of stdin.

    When ready, print one line of JSON: base_url, token, other_url, control, files and seed.
    Raise OSError if the port is taken.
    """
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(options))


async def _serve(options: ServeOptions) -> None:
    emulator = Emulator(
        plan=options.plan,
        quirks=options.quirks,
        faults=options.faults,
        token=options.token,
        host=options.host,
        port=options.port,
        churn=options.churn,
        cache_bytes=options.cache_bytes,
        prerender=options.prerender,
    )
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    if options.until_stdin_closes:
        threading.Thread(target=_wait_for_stdin, args=(loop, end), daemon=True).start()
    async with emulator:
        ready = {
            "base_url": emulator.base_url,
            "token": emulator.token,
            "other_url": emulator.other_url,
            "control": f"{emulator.base_url}/_emulator/",
            "files": len(emulator.world.records),
            "seed": options.plan.seed,
        }
        sys.stdout.write(msgspec.json.encode(ready).decode() + "\n")
        sys.stdout.flush()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(end.wait(), options.max_seconds or None)


def _wait_for_stdin(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
    """Stop the service when the parent process ends, even if it was killed."""
    # sys.stdin would keep its lock in this thread and break the interpreter's shutdown.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    loop.call_soon_threadsafe(end.set)
