"""All that a watching process does beside its runs: signs of life, to systemd and to the liveness file."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from pipeline.watching.liveness import BEAT, Heart, Pulse
from pipeline.watching.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pipeline.watching.notify import Notifier
    from pipeline.watching.watcher import Post


async def watch(posts: Sequence[Post], notifier: Notifier, liveness_file: Path | None) -> list[Watcher]:
    """Watch all posts side by side, each at its own times, until all have ended."""
    heart = Heart()

    def beat() -> None:
        if liveness_file is not None:
            heart.write(liveness_file)
        notifier.tell(status=_status(heart), WATCHDOG="1")

    watchers = []
    for post in posts:
        heart.pulses[post.source] = Pulse()
        watchers.append(Watcher(post, heart.pulses[post.source], beat))
    notifier.tell(READY="1", status="starting")
    beating = asyncio.create_task(_beat(beat, min(BEAT, (notifier.watchdog or BEAT) / 3)))
    try:
        async with asyncio.TaskGroup() as group:
            for watcher in watchers:
                group.create_task(watcher.run())
    finally:
        notifier.tell(STOPPING="1", status="stopping")
        beating.cancel()
        for pulse in heart.pulses.values():
            pulse.state, pulse.next_run = "stopped", None
        with suppress(OSError):
            beat()
    return watchers


async def _beat(beat: Callable[[], None], every: float) -> None:
    while True:
        beat()
        await asyncio.sleep(every)


def _status(heart: Heart) -> str:
    words = []
    for name, pulse in heart.pulses.items():
        word = f"{name}: {pulse.state}" if name else pulse.state
        if pulse.failures:
            word += f", {pulse.failures} failed in a row: {pulse.reason}"
        words.append(word)
    return "; ".join(words)
