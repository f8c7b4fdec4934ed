"""The tokens in the environment, and the environment of a process that needs none."""

from __future__ import annotations

import os
from typing import Final

_TOKEN_PREFIX: Final = "SCANLAKE_TOKEN"  # noqa: S105 - the variable's name, not a token
_NOT_TOKEN_VARIABLES: Final = frozenset({"SCANLAKE_TOKEN_FILE", "SCANLAKE_TOKEN_LOCATION"})


def tokens_in_environment() -> list[str]:
    """Return the tokens in the environment, of all sources. No command-line argument may contain one."""
    return [
        value
        for name, value in os.environ.items()
        if name.startswith(_TOKEN_PREFIX) and name not in _NOT_TOKEN_VARIABLES
    ]


def environment_without_tokens(*allowed: str) -> dict[str, str]:
    """Return the environment of a process that needs no token, or none but those of the variables `allowed`."""
    tokens = set(tokens_in_environment()) - {""}
    return {name: value for name, value in os.environ.items() if name in allowed or value not in tokens}
