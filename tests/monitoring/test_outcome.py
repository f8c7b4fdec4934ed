"""Outcomes of runs: exit codes, errors and their meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

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
from pipeline.monitoring.outcome import Outcome, OutcomeKind, describe_exit


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (0, OutcomeKind.DONE),
        (4, OutcomeKind.DONE),
        (1, OutcomeKind.FAILED),
        (6, OutcomeKind.FAILED),
        (7, OutcomeKind.FAILED),
        (70, OutcomeKind.FAILED),
        (137, OutcomeKind.FAILED),
        (255, OutcomeKind.FAILED),
        (2, OutcomeKind.NEEDS_ATTENTION),
        (3, OutcomeKind.NEEDS_ATTENTION),
        (9, OutcomeKind.NEEDS_ATTENTION),
        (5, OutcomeKind.LOCKED),
        (130, OutcomeKind.STOPPED),
    ],
)
def test_every_exit_code_has_a_kind(code: int, kind: OutcomeKind) -> None:
    """Exit codes distinguish temporary failures, failures that need the operator, and no failure."""
    assert Outcome("sync", Path("lake"), code).kind is kind


def test_a_paused_lake_is_no_failure() -> None:
    """The type of the error, not its text, says that syncing is paused."""
    assert Outcome("sync", Path("lake"), 2, "any text", error_type=LakePausedError.__name__).kind is OutcomeKind.PAUSED
    assert Outcome("sync", Path("lake"), 2, "syncing is paused").kind is OutcomeKind.NEEDS_ATTENTION


def _after_storage_error() -> RuntimeError:
    """A clean-up error that hides an error of the system."""
    error = RuntimeError("data")
    error.__context__ = OSError(28, "No space left on device")
    return error


@pytest.mark.parametrize(
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
