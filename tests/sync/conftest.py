"""Fixtures of the tests of syncs: without a catalog and in virtual time, unless a test asks for more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.sync import sync_harness
from tests.virtual_time import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def pytest_asyncio_loop_factories(item: pytest.Function) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each test in virtual time that does not ask for sockets."""
    return {"loop": asyncio.new_event_loop if "sockets" in item.fixturenames else VirtualLoop}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The folder of the test's lake, which is not there yet."""
    return tmp_path / "lake"


@pytest.fixture
def sockets() -> None:
    """Ask for real time and real sockets: other processes or threads talk to the service."""


@pytest.fixture
def published(sockets: None) -> None:
    """Ask for catalogs, too: readers see the test's subject, or its runs are processes of their own."""


@pytest.fixture(autouse=True)
def _unpublished(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let no run of the other tests write a catalog; see `sync_harness.unpublished`."""
    if "published" in request.fixturenames:
        yield
        return
    with sync_harness.unpublished():
        yield
