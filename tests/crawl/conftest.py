"""All async tests of this folder run in virtual time, with a lake in memory."""

from __future__ import annotations

import pytest

from tests.crawl.crawl_harness import FakeLake
from tests.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories() -> dict[str, type[VirtualLoop]]:
    """Run each test in virtual time."""
    return {"loop": VirtualLoop}


@pytest.fixture
def lake() -> FakeLake:
    """Return an empty lake."""
    return FakeLake()
