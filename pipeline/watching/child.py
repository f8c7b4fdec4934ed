"""A run in a process of its own: memory and descriptors go back to the system, and a crash is only its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pipeline.logs import one_line
from pipeline.watching.notify import OF_SYSTEMD
from pipeline.watching.outcome import Outcome, ended_as

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LAST_WORD: Final = 8.0  # seconds that a run has to commit what is whole when it is asked to stop
_WATCHED_BY: Final = "WATCHED_BY_SCANLAKE"  # not SCANLAKE_...: those are settings
_MOST_SAID: Final = 4_000_000


def is_watched() -> bool:
    """Whether a watch started this very process, and will do what follows its run."""
    return os.environ.get(_WATCHED_BY) == str(os.getppid())


async def run_child(command: Sequence[str], *, verb: str, lake: Path) -> Outcome:
    """Run the command to its end and read what it says on stdout: one JSON object.

    Cancelled, it passes SIGTERM on and waits; what does not end in time is killed with all it has started.
    """
    began, since = time.time(), time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name not in OF_SYSTEMD}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env={**environment, _WATCHED_BY: str(os.getpid())},
        start_new_session=True,  # Ctrl-C reaches it through us alone, and its own children can be ended with it
    )
    reading = asyncio.ensure_future(process.communicate())
    try:
        said, _ = await asyncio.shield(reading)
    except asyncio.CancelledError:
        await _end(process, reading)
        raise
    finally:
        _end_group(process.pid)
    code, reason = ended_as(verb, process.returncode or 0)
    told = _object(said)
    if not reason and "error" in told:
        reason = one_line(f"{told.get('error')} {told.get('remedy') or ''}")
    if not reason and code not in {0, 4}:
        reason = f"{verb} ended with exit code {code}"
    return Outcome(verb, lake, code, reason, began, time.monotonic() - since, told)


async def _end(process: asyncio.subprocess.Process, reading: asyncio.Future[Any]) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    done, _ = await asyncio.wait({reading}, timeout=LAST_WORD)
    if not done:
        _end_group(process.pid)
        await asyncio.wait({reading}, timeout=1)


def _end_group(group: int) -> None:
    """End what the run has left behind; a compaction, say, that is safe to be cut off anywhere."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _object(said: bytes) -> dict[str, Any]:
    try:
        told = json.loads(said[-_MOST_SAID:])
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
