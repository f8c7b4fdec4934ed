"""Running the emulator as a process of its own until somebody ends it."""

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
from pipeline.emulator.options import Faults, Quirks, WorldPlan, assignments, changed
from pipeline.emulator.server import DEFAULT_TOKEN, Emulator

_new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
with contextlib.suppress(ImportError):  # there are platforms without it
    import uvloop

    _new_loop = uvloop.new_event_loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Everything a process of its own needs to know; `max_seconds` 0 means for ever."""

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


def faults_of(texts: Iterable[str]) -> Faults:
    """Read `name=value` texts: fields of Faults, or a kind and its probability. ValueError if wrong."""
    pairs = assignments(texts)
    shares = {name: float(value) for name, value in pairs.items() if is_kind(name)}
    fields = {name: value for name, value in pairs.items() if name not in shares}
    return changed(Faults(shares=shares), fields)


def serve(serving: Serving) -> None:
    """Serve until SIGTERM, SIGINT, the end of the time or of stdin. OSError when the port is taken.

    When ready, one line of JSON on stdout says base_url, token, other_url, control, files and seed.
    """
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(serving))


async def _serve(serving: Serving) -> None:
    emulator = Emulator(
        plan=serving.plan,
        quirks=serving.quirks,
        faults=serving.faults,
        token=serving.token,
        host=serving.host,
        port=serving.port,
        churn=serving.churn,
        cache_bytes=serving.cache_bytes,
        prerender=serving.prerender,
    )
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    if serving.until_stdin_closes:
        threading.Thread(target=_wait_for_stdin, args=(loop, end), daemon=True).start()
    async with emulator:
        ready = {
            "base_url": emulator.base_url,
            "token": emulator.token,
            "other_url": emulator.other_url,
            "control": f"{emulator.base_url}/_emulator/",
            "files": len(emulator.world.records),
            "seed": serving.plan.seed,
        }
        sys.stdout.write(msgspec.json.encode(ready).decode() + "\n")
        sys.stdout.flush()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(end.wait(), serving.max_seconds or None)


def _wait_for_stdin(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
    """End the service when whoever started it is gone, however it died."""
    # Not by sys.stdin: its lock, held by this thread, would trip the interpreter's end.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    loop.call_soon_threadsafe(end.set)
