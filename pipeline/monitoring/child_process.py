"""Runs in child processes: the system gets memory and descriptors back, and a crash ends only the run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pipeline.logs import to_one_line
from pipeline.monitoring.run_result import RunOutcome
from pipeline.monitoring.systemd import SYSTEMD_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.monitoring.run_result import RunResult

STOP_GRACE_SECONDS: Final = 8.0  # for a run that is asked to stop, to commit its complete batches
_PARENT_VARIABLE: Final = "WATCHED_BY_SCANLAKE"  # not SCANLAKE_...: those are settings
_REPEATED: Final = "`scanlake watch` repeats it."
_MAX_OUTPUT_BYTES: Final = 4_000_000
_SIGNAL_EXIT_CODE_BASE: Final = 128  # a shell adds this to the number of the signal that ended a process


def is_watched() -> bool:
    """Return whether a watch started this process, and does the bookkeeping after its run."""
    return os.environ.get(_PARENT_VARIABLE) == str(os.getppid())


async def run_child(argv: Sequence[str], run: RunResult) -> RunResult:
    """Run the command to its end, and return `run` with its exit code, error and the JSON object on its stdout.

    On cancellation send SIGTERM and wait; after `STOP_GRACE_SECONDS` kill the process with all its children.
    """
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
    run.seconds = (datetime.now(UTC) - run.started_at).total_seconds()
    run.result = parse_json_object(stdout[-_MAX_OUTPUT_BYTES:])
    run.error_type = str(run.result.get("error_type") or "")
    run.code, run.reason = describe_exit(run.command, process.returncode or 0)
    if not run.reason and "error" in run.result:
        # The hint of a failure that usually passes is to run the command again, which `watch` does.
        hint = _REPEATED if run.outcome is RunOutcome.FAILED else run.result.get("hint") or ""
        run.reason = to_one_line(f"{run.result['error']} {hint}")
    elif not run.reason and run.has_failed:
        run.reason = f"{run.command} ended with exit code {run.code}"
    return run


def describe_exit(command: str, returncode: int) -> tuple[int, str]:
    """Return the exit code of a process as a shell has it, and the reason if a signal ended it."""
    if returncode >= 0:
        return returncode, ""
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    cause = " The system kills processes when memory is short." if -returncode == signal.SIGKILL else ""
    return _SIGNAL_EXIT_CODE_BASE - returncode, f"{command} was killed by {name}.{cause}"


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
