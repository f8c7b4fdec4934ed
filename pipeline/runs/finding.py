"""What a diagnosis found: one thing looked at, how it stands, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pipeline.errors import Exit

if TYPE_CHECKING:
    from pipeline.errors import ScanlakeError

State = Literal["ok", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a diagnosis. `exit_code` is what a fault ends the command with; a warning ends it with 0."""

    check: str
    state: State
    message: str
    remedy: str = ""
    exit_code: Exit = Exit.DONE


def ok(check: str, message: str) -> Finding:
    """It is as it should be."""
    return Finding(check, "ok", message)


def warning(check: str, message: str, remedy: str) -> Finding:
    """It works, and somebody should look."""
    return Finding(check, "warning", message, remedy)


def fault(check: str, message: str, remedy: str, code: Exit) -> Finding:
    """It does not work."""
    return Finding(check, "fault", message, remedy, code)


def told(check: str, error: ScanlakeError) -> Finding:
    """An error as a finding."""
    return Finding(check, "fault", error.message, error.remedy, error.exit_code)
