"""One populated lake for all tests that only read it, and a tab of the machine's own browser."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.pages.browse_client import Visitor, open_browse
from tests.pages.browser import Tab, installed, running, tab
from tests.pages.page_lakes import build_lake, build_populated_lake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


class PopulatedLake(NamedTuple):
    """A lake, and what the service held when it was last synced."""

    folder: Path
    truth: list[dict[str, Any]]


@pytest.fixture(scope="session")
def populated_lake(tmp_path_factory: pytest.TempPathFactory) -> PopulatedLake:
    """A lake with a history; tests must not change it."""
    folder = tmp_path_factory.mktemp("populated_lake") / "gate <7>"
    return PopulatedLake(folder, asyncio.run(build_populated_lake(folder)))


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


@pytest.fixture(scope="module")
def visitor(populated_lake: PopulatedLake) -> Iterator[Visitor]:
    """A browser with the key to the pages of the populated lake."""
    with open_browse(populated_lake.folder) as (opened, _):
        yield opened


@pytest.fixture
def small_lake(tmp_path: Path) -> Path:
    """A lake of two files."""
    build_lake(tmp_path / "lake", {7: 0, 8: 0})
    return tmp_path / "lake"
