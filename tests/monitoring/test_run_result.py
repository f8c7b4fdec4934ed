"""Results of runs: exit codes and their meaning."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import ExitCode, LakePausedError, to_scanlake_error
from pipeline.sync.run_result import RunResult


def test_every_exit_code_is_done_or_failed_or_neither() -> None:
    """A run with rejects is done; a held lake, a stop and a paused lake are no failures; all else is one."""
    done, neither, failed = {0, 4}, {5, 130}, {1, 2, 3, 6, 7, 8, 9, 70, 137, 255}
    runs = {code: RunResult(Path("lake"), code=code) for code in done | neither | failed}
    assert {code for code, run in runs.items() if run.is_done} == done
    assert {code for code, run in runs.items() if run.has_failed} == failed
    paused = RunResult(Path("lake"), code=2, error_type=LakePausedError.__name__)
    assert (paused.is_done, paused.has_failed) == (False, False), "the type of the error, not its text"


def test_an_error_of_the_system_shows_behind_the_error_of_a_clean_up() -> None:
    """A clean-up that fails as well does not make a full disk a bug, and its text is not shown."""
    error = RuntimeError("data")
    error.__context__ = OSError(28, "No space left on device")
    failure = to_scanlake_error(error)
    assert (failure.exit_code, "data" in failure.message) == (ExitCode.STORAGE, False)
