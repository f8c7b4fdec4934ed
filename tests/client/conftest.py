"""Fixtures of the client tests: clients whose retries take no time, with a canary token."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from pipeline.client.calls import ClientOptions, TimeSource
from pipeline.client.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., Client]

CANARY = "cAnArY/0123+456789=="
"""A token with the characters that have several encodings: a slash, a plus and padding."""


def spell_token(token: str) -> list[str]:
    """Return the forms in which a service may return a token, but for escapes of single letters."""
    quoted = quote(token, safe="")
    lower = quoted.replace("%2F", "%2f").replace("%2B", "%2b").replace("%3D", "%3d")
    return [token, quoted, lower, base64.b64encode(token.encode()).decode(), token.replace("/", "\\/")]


@pytest.fixture
def client() -> Make:
    """Return a factory of clients with the canary token whose back-off takes no time."""

    def make(base: str, *, token: str = CANARY, **options: object) -> Client:
        chosen = {"max_attempts": 3, "attempt_timeout_seconds": 5.0, **options}
        time_source = TimeSource(sleep=lambda _: asyncio.sleep(0), random=lambda: 0.0)
        return Client(base, token, options=ClientOptions(**chosen), time_source=time_source)  # type: ignore[arg-type]

    return make
