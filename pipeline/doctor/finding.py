"""Results of the checks of `scanlake doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pipeline.errors import ExitCode

if TYPE_CHECKING:
    from pipeline.errors import ScanlakeError

State = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. `exit_code` is the command's exit code for an error; a warning exits 0."""

    check: str
    state: State
    message: str
    hint: str = ""
    exit_code: ExitCode = ExitCode.OK


def ok(check: str, message: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check, "ok", message)


def warning(check: str, message: str, hint: str) -> Finding:
    """Return a finding for a problem that stops no run."""
    return Finding(check, "warning", message, hint)


def problem(check: str, message: str, hint: str, code: ExitCode) -> Finding:
    """Return a finding for a problem that stops runs."""
    return Finding(check, "error", message, hint, code)


def from_error(check: str, error: ScanlakeError) -> Finding:
    """Return the finding for an exception."""
    return Finding(check, "error", error.message, error.hint, error.exit_code)
