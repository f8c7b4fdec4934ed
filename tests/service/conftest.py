"""What the service tests share: clients that do not wait, and a watch over the token."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pipeline.service.client import Client
from pipeline.service.options import ClientOptions
from pipeline.service.retry import Seams

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = "cAnArY/0123+456789=="


@pytest.fixture
def client() -> Callable[..., Client]:
    """Makes clients with the canary token whose back-off takes no time."""

    def make(base: str, *, token: str = CANARY, **options: object) -> Client:
        chosen = {"attempts": 3, "total_timeout": 5.0, **options}
        seams = Seams(sleep=lambda _: asyncio.sleep(0), chance=lambda: 0.0)
        return Client(base, token, options=ClientOptions(**chosen), seams=seams)  # type: ignore[arg-type]

    return make
