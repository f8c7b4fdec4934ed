"""Options of the client. The defaults suit an unknown service."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from pipeline.errors import SettingsError
from pipeline.tokens import find_token_problem
from pipeline.urls import normalize_base_url

MIB = 1024**2
GIB = 1024**3
MAX_ATTEMPTS = 6  # of one request


class ClientOptions(Struct, frozen=True):
    """Options of `Client`. Sizes are those of decoded bodies."""

    max_concurrency: int = 512
    max_requests_per_second: float | None = None
    max_attempts: int = MAX_ATTEMPTS
    total_deadline_seconds: float = 300.0  # for a call with its retries; `Retry-After` pauses are added
    initial_connect_seconds: float = 15.0  # until the service has sent any answer
    connect_timeout_seconds: float = 10.0
    attempt_timeout_seconds: float = 60.0
    max_body_bytes: int = 64 * MIB
    token_location: Literal["query", "header"] = "query"  # noqa: S105 - a location, not a token
    max_retry_after_seconds: float = 900.0
    max_silence_seconds: float = math.inf  # of a host, after which no call to it is repeated
    user_agent: str = "scanlake"
    proxy: str | None = None  # for https only: a proxy would see the token in plain http


def check_base_url(url: str) -> str:
    """Return the normalized base URL. Raises `SettingsError`, which does not show it."""
    try:
        return normalize_base_url(url)
    except ValueError as problem:
        hint = "Set base_url to an address such as https://files.example.com."
        raise SettingsError(f"base_url {problem}.", hint=hint) from None


def check_token(token: str) -> str:
    """Return the token. Raises `SettingsError`, which does not show it."""
    if problem := find_token_problem(token):
        raise SettingsError(f"The token {problem}.", hint="Set SCANLAKE_TOKEN or token_file to the bare token.")
    return token
