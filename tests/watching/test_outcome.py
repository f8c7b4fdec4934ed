"""What the end of a run means."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import cli
from pipeline.errors import Exit, Interrupted, LakeBusy, LakeDamaged, ScanlakeError, SettingsError, TokenRefused
from pipeline.watching.outcome import Kind, Outcome, ended_as, failure_of


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (0, Kind.DONE),
        (4, Kind.DONE),
        (1, Kind.FAILED),
        (6, Kind.FAILED),
        (7, Kind.FAILED),
        (70, Kind.FAILED),
        (137, Kind.FAILED),
        (255, Kind.FAILED),
        (2, Kind.STUCK),
        (3, Kind.STUCK),
        (9, Kind.STUCK),
        (5, Kind.BUSY),
        (130, Kind.STOPPED),
    ],
)
def test_every_exit_code_has_its_meaning(code: int, kind: Kind) -> None:
    """What heals by itself, what a person must mend, and what is no failure at all are told apart."""
    assert Outcome("sync", Path("lake"), code).kind is kind


@pytest.mark.parametrize(
    "error",
    [
        ScanlakeError("away"),
        SettingsError("wrong"),
        TokenRefused("401"),
        LakeBusy("held"),
        LakeDamaged("bits"),
        Interrupted("stopped"),
        KeyboardInterrupt(),
        OSError(28, "No space left on device", "/x"),
        OSError(104, "Connection reset"),
        PermissionError(13, "Permission denied"),
        RuntimeError("data"),
        ExceptionGroup("both", [ValueError("x"), LakeBusy("held")]),
    ],
)
def test_failures_are_sorted_as_the_command_sorts_them(error: BaseException) -> None:
    """A failure is counted under the exit code that the command ends with."""
    code, reason = failure_of(error)
    assert code == cli._failure(cli._unwrapped(error), []).exit_code
    assert "data" not in reason


def test_a_signal_is_named() -> None:
    """A process that a signal ended counts as a shell would count it, and says which it was."""
    assert ended_as("sync", 3) == (Exit.TOKEN, "")
    code, reason = ended_as("sync", -9)
    assert (code, "SIGKILL" in reason, "memory" in reason) == (137, True, True)
    assert ended_as("sync", -64)[0] == 192
