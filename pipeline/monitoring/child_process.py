"""Runs in child processes: the system gets memory and descriptors back, and a crash ends only the run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import ExitCode
from pipeline.logs import to_one_line
from pipeline.monitoring.outcome import Outcome, OutcomeKind, describe_exit
from pipeline.monitoring.systemd import SYSTEMD_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STOP_GRACE_SECONDS: Final = 8.0  # for a run that is asked to stop, to commit its complete batches
_PARENT_VARIABLE: Final = "WATCHED_BY_SCANLAKE"  # not SCANLAKE_...: those are settings
_REPEATED: Final = "`scanlake watch` repeats it."
_MAX_OUTPUT_BYTES: Final = 4_000_000


def is_watched() -> bool:
    """Return whether a watch started this process, and does the bookkeeping after its run."""
    return os.environ.get(_PARENT_VARIABLE) == str(os.getppid())


async def run_child(argv: Sequence[str], *, command: str, lake: Path) -> Outcome:
    """Run the command to its end and read one JSON object from its stdout.

    On cancellation send SIGTERM and wait; after `STOP_GRACE_SECONDS` kill the process with all its children.
    """
    started_at, started_monotonic = time.time(), time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name not in SYSTEMD_VARIABLES}
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env={**environment, _PARENT_VARIABLE: str(os.getpid())},
        start_new_session=True,  # only this process forwards Ctrl-C, and the child's children can be killed with it
    )
    reading = asyncio.ensure_future(process.communicate())
    try:
        stdout, _ = await asyncio.shield(reading)
    except asyncio.CancelledError:
        await _terminate(process, reading)
        raise
    finally:
        _kill_group(process.pid)
    code, reason = describe_exit(command, process.returncode or 0)
    result = parse_json_object(stdout[-_MAX_OUTPUT_BYTES:])
    error_type = str(result.get("error_type") or "")
    if not reason and "error" in result:
        # The hint of a failure that usually passes is to run the command again, which `watch` does.
        is_repeated = Outcome(command, lake, code, error_type=error_type).kind is OutcomeKind.FAILED
        hint = _REPEATED if is_repeated else result.get("hint") or ""
        reason = to_one_line(f"{result['error']} {hint}")
    if not reason and code not in {ExitCode.OK, ExitCode.REJECTS}:
        reason = f"{command} ended with exit code {code}"
    seconds = time.monotonic() - started_monotonic
    return Outcome(command, lake, code, reason, started_at, seconds, result, error_type)


def parse_json_object(text: bytes | str) -> dict[str, Any]:
    """Return the JSON object that a command wrote; empty for anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def _terminate(process: asyncio.subprocess.Process, reading: asyncio.Future[Any]) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    done, _ = await asyncio.wait({reading}, timeout=STOP_GRACE_SECONDS)
    if not done:
        _kill_group(process.pid)
        await asyncio.wait({reading}, timeout=1)


def _kill_group(group: int) -> None:
    """Kill the remaining children of a run, for example a compaction; it can be cut off at any step."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
