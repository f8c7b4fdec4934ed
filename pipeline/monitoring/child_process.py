"""Runs in child processes: the system gets memory and descriptors back, and a crash ends only the run."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

from pipeline.child_commands import run_command
from pipeline.logs import to_one_line
from pipeline.monitoring.run_result import RunOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.monitoring.run_result import RunResult

_PARENT_VARIABLE: Final = "WATCHED_BY_SCANLAKE"  # not SCANLAKE_...: those are settings
_REPEATED: Final = "`scanlake watch` repeats it."
_SIGNAL_EXIT_CODE_BASE: Final = 128  # a shell adds this to the number of the signal that ended a process


def is_watched() -> bool:
    """Return whether a watch started this process, and does the bookkeeping after its run."""
    return os.environ.get(_PARENT_VARIABLE) == str(os.getppid())


async def run_child(argv: Sequence[str], run: RunResult) -> RunResult:
    """Run `scanlake ARGV` to its end, and return `run` with its exit code, error and JSON object."""
    child = await run_command(argv, variables={**os.environ, _PARENT_VARIABLE: str(os.getpid())})
    run.seconds, run.result = child.seconds, child.output
    run.error_type = str(child.output.get("error_type") or "")
    run.code, run.reason = describe_exit(run.command, child.code)
    if not run.reason and "error" in child.output:
        # The hint of a failure that usually passes is to run the command again, which `watch` does.
        hint = _REPEATED if run.outcome is RunOutcome.FAILED else child.output.get("hint") or ""
        run.reason = to_one_line(f"{child.output['error']} {hint}")
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
