"""How the client goes about its requests. Every number has a default that suits an unknown service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.errors import SettingsError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of `Client`. Times are in seconds, sizes in bytes of the decoded body."""

    max_concurrency: int = 64
    max_requests_per_second: float | None = None
    attempts: int = 6
    max_seconds: float = 300.0  # of one call with its retries; waits the service asks for come on top
    first_contact_seconds: float = 15.0  # until the service answered anything at all
    connect_timeout: float = 10.0
    total_timeout: float = 60.0  # of one try
    min_bytes_per_second: int = 256
    max_body: int = 64 * MIB
    token_in: Literal["query", "header"] = "query"  # noqa: S105 - the place, not the token
    retry_after_cap: float = 900.0
    user_agent: str = "scanlake"
    proxy: str | None = None  # for https alone: what is not encrypted would show it the token

    def __post_init__(self) -> None:
        low = {
            "max_concurrency": 1,
            "attempts": 1,
            "max_seconds": 0.001,
            "first_contact_seconds": 0.001,
            "connect_timeout": 0.001,
            "total_timeout": 0.001,
            "max_body": 1,
            "min_bytes_per_second": 0,
            "retry_after_cap": 0,
        }
        for name, least in low.items():
            if getattr(self, name) < least:
                raise SettingsError(f"{name}: at least {least}")
        if self.max_concurrency > 10_000:
            raise SettingsError("max_concurrency: at most 10000")
        if self.max_requests_per_second is not None and self.max_requests_per_second <= 0:
            raise SettingsError("max_requests_per_second: more than 0")
        if any(not mark.isprintable() for mark in self.user_agent):
            raise SettingsError("user_agent holds control characters")
