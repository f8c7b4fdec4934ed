"""One lake that has lived, for all tests that only look at it; and a tab of the machine's own browser."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.dashboard.browser import Tab, installed, running, tab
from tests.dashboard.lakes import grown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


class Lived(NamedTuple):
    """A lake, and what the service held when it was last synced."""

    folder: Path
    truth: list[dict[str, Any]]


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """A lake that has lived. Not to be changed."""
    folder = tmp_path_factory.mktemp("lived") / "gate <7>"
    return Lived(folder, asyncio.run(grown(folder)))


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The browser, started once."""
    if installed() is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium): pages are not looked at")
    with running(tmp_path_factory.mktemp("chromium") / "profile") as address:
        yield address


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Tab]:
    """A tab of a real browser."""
    async with tab(chromium) as opened:
        yield opened
