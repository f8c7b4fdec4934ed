"""The emulator as a process that runs until a signal or a time limit."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterable

import msgspec

from pipeline.emulator.faults import KINDS, is_kind
from pipeline.emulator.options import (
    PROFILES,
    Faults,
    ImageOptions,
    Quirks,
    describe_options,
    parse_assignments,
    replace_fields,
)
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


def describe_all_options() -> str:
    """Return all quirks, image options, faults and profiles as text."""
    kinds = {
        "--quirk NAME=VALUE": Quirks,
        "--image NAME=VALUE": ImageOptions,
        "--fault NAME=VALUE, --image-fault NAME=VALUE": Faults,
    }
    sections = {title: list(describe_options(kind)) for title, kind in kinds.items()}
    sections["--fault KIND=PROBABILITY (also --image-fault, and the kinds of scripted faults)"] = [
        f"  {name:20} {description}" for name, description in KINDS.items()
    ]
    fields = {name: [f"{key}={value}" for key, value in settings.items()] for name, settings in PROFILES.items()}
    sections["--profile NAME"] = [
        f"  {name:10} {', '.join(changed) or 'all defaults'}" for name, changed in fields.items()
    ]
    return "\n\n".join("\n".join([f"{title}\n", *lines]) for title, lines in sections.items())


def serve(emulator: Emulator, *, max_seconds: float) -> None:
    """Serve until SIGTERM, SIGINT or the time limit (0: none).

    When ready, print one line of JSON: base_url, token, other_url, control, files, seed, and with
    images image_url.
    Raise OSError if the port is taken.
    """
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(emulator, max_seconds))


async def _serve(emulator: Emulator, max_seconds: float) -> None:
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
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
