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
from pipeline.sync.run_result import RunResult
from tests.rows import every


def test_every_exit_code_is_done_or_failed_or_neither() -> None:
    """A run with rejects is done; a held lake, a stop and a paused lake are no failures; all else is one."""
    done, neither, failed = {0, 4}, {5, 130}, {1, 2, 3, 6, 7, 8, 9, 70, 137, 255}
    runs = {code: RunResult(Path("lake"), code=code) for code in done | neither | failed}
    assert {code for code, run in runs.items() if run.is_done} == done
    assert {code for code, run in runs.items() if run.has_failed} == failed
    paused = RunResult(Path("lake"), code=2, error_type=LakePausedError.__name__)
    assert (paused.is_done, paused.has_failed) == (False, False), "the type of the error, not its text"


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
