"""Fixtures of the client tests: clients whose retries take no time, with a canary token."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pipeline.client.client import Client
from pipeline.client.options import ClientOptions
from pipeline.client.retry import TimeSource

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., Client]

CANARY = "cAnArY/0123+456789=="
"""A token with the characters that have several encodings: a slash, a plus and padding."""


@pytest.fixture
def client() -> Make:
    """Return a factory of clients with the canary token whose back-off takes no time."""

    def make(base: str, *, token: str = CANARY, **options: object) -> Client:
        chosen = {"max_attempts": 3, "attempt_timeout_seconds": 5.0, **options}
        time_source = TimeSource(sleep=lambda _: asyncio.sleep(0), random=lambda: 0.0)
        return Client(base, token, options=ClientOptions(**chosen), time_source=time_source)  # type: ignore[arg-type]

    return make
