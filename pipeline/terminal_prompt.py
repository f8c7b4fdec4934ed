"""The question before a command does what is hard to take back."""

from __future__ import annotations

import sys

import typer

from pipeline.errors import SettingsError


def require_confirmation(details: str, question: str, *, refusal: str) -> None:
    """Show `details` on stderr and ask. Scripts use --yes. Raises `SettingsError` unless the answer is yes."""
    sys.stderr.write(details)
    if not sys.stdin.isatty():
        raise SettingsError(refusal, hint="Add --yes to do it without a question.")
    if not typer.confirm(question, err=True):
        raise SettingsError(refusal, hint="Answer y, or add --yes.")
