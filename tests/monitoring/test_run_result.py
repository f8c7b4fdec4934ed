"""Results of runs: exit codes, errors and their meaning."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import (
    AuthenticationError,
    ExitCode,
    LakeCorruptedError,
    LakeLockedError,
    LakePausedError,
    RunInterrupted,
    ScanlakeError,
    SettingsError,
    to_scanlake_error,
)
from pipeline.monitoring.child_process import describe_exit
from pipeline.monitoring.run_result import RunOutcome, RunResult
from tests.rows import every


@every(
    ("code", "outcome"),
    [
        (0, RunOutcome.DONE),
        (4, RunOutcome.DONE),
        (1, RunOutcome.FAILED),
        (6, RunOutcome.FAILED),
        (7, RunOutcome.FAILED),
        (70, RunOutcome.FAILED),
        (137, RunOutcome.FAILED),
        (255, RunOutcome.FAILED),
        (2, RunOutcome.NEEDS_ATTENTION),
        (3, RunOutcome.NEEDS_ATTENTION),
        (9, RunOutcome.NEEDS_ATTENTION),
        (5, RunOutcome.LOCKED),
        (130, RunOutcome.STOPPED),
    ],
)
def test_every_exit_code_has_an_outcome(code: int, outcome: RunOutcome) -> None:
    """Exit codes distinguish temporary failures, failures that need the operator, and no failure."""
    assert RunResult("sync", Path("lake"), code=code).outcome is outcome


def test_a_paused_lake_is_no_failure() -> None:
    """The type of the error, not its text, says that syncing is paused."""
    paused = RunResult("sync", Path("lake"), code=2, error_type=LakePausedError.__name__)
    assert paused.outcome is RunOutcome.PAUSED
    assert RunResult("sync", Path("lake"), code=2, reason="syncing is paused").outcome is RunOutcome.NEEDS_ATTENTION


def _after_storage_error() -> RuntimeError:
    """A clean-up error that hides an error of the system."""
    error = RuntimeError("data")
    error.__context__ = OSError(28, "No space left on device")
    return error


@every(
    ("error", "code"),
    [
        (ScanlakeError("away"), ExitCode.FAILED),
        (SettingsError("wrong"), ExitCode.USAGE),
        (LakePausedError("paused"), ExitCode.USAGE),
        (AuthenticationError("401"), ExitCode.AUTH),
        (LakeLockedError("locked"), ExitCode.LOCKED),
        (LakeCorruptedError("bits"), ExitCode.DAMAGE),
        (RunInterrupted("stopped"), ExitCode.INTERRUPTED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (OSError(28, "No space left on device", "/x"), ExitCode.STORAGE),
        (OSError(104, "Connection reset"), ExitCode.BUG),
        (PermissionError(13, "Permission denied"), ExitCode.STORAGE),
        (RuntimeError("data"), ExitCode.BUG),
        (_after_storage_error(), ExitCode.STORAGE),
        (ExceptionGroup("both", [ValueError("data"), LakeLockedError("locked")]), ExitCode.LOCKED),
        (ExceptionGroup("both", [ExceptionGroup("inner", [ValueError("data")])]), ExitCode.BUG),
    ],
)
def test_every_exception_has_one_exit_code(error: BaseException, code: ExitCode) -> None:
    """One mapping gives each exception its exit code and a message without data."""
    failure = to_scanlake_error(error)
    assert failure.exit_code == code
    assert failure.hint
    assert "data" not in failure.message


def test_a_signal_is_named() -> None:
    """A process killed by a signal has the exit code of a shell, and the message names the signal."""
    assert describe_exit("sync", 3) == (ExitCode.AUTH, "")
    code, reason = describe_exit("sync", -9)
    assert (code, "SIGKILL" in reason, "memory" in reason) == (137, True, True)
    assert describe_exit("sync", -64)[0] == 192
