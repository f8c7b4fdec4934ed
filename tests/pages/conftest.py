"""Lakes for all tests that only read them, and a tab of the machine's own browser."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.commands.conftest import main
from tests.lake_copies import copy_lake
from tests.made_once import make_once
from tests.pages.browse_client import Visitor, open_browse
from tests.pages.browser import Tab, installed, running, tab
from tests.pages.page_lakes import HOSTILE, HOSTILE_ROWS, build_lake, build_populated_lake, page_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


__all__ = ["main"]


class PopulatedLake(NamedTuple):
    """A lake, and what the service held when it was last synced."""

    folder: Path
    truth: list[dict[str, Any]]


@pytest.fixture(scope="session")
def populated_lake(tmp_path_factory: pytest.TempPathFactory) -> PopulatedLake:
    """A lake with a history; tests must not change it."""

    def make(folder: Path) -> PopulatedLake:
        lake = folder / "gate <7>"
        return PopulatedLake(lake, asyncio.run(build_populated_lake(lake)))

    return make_once(tmp_path_factory, "populated_lake", make)


@pytest.fixture(scope="session")
def populated_page(populated_lake: PopulatedLake) -> str:
    """The page of the populated lake."""
    return page_of(populated_lake.folder)


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


@pytest.fixture(scope="session")
def visitor(populated_lake: PopulatedLake) -> Iterator[Visitor]:
    """A browser with the key to the pages of the populated lake."""
    with open_browse(populated_lake.folder) as opened:
        yield opened


@pytest.fixture(scope="session")
def empty_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published lake without files; tests must not change it."""
    return _build_once(tmp_path_factory, "empty_lake", {})


@pytest.fixture(scope="session")
def hostile_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake whose every name is hostile; tests must not change it."""
    return _build_once(tmp_path_factory, "hostile_lake", {7: 1}, HOSTILE_ROWS, HOSTILE)


@pytest.fixture
def small_lake(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """A copy of a lake of two files."""
    return copy_lake(_build_once(tmp_path_factory, "small_lake", {7: 0, 8: 0}), tmp_path / "lake")


def _build_once(factory: pytest.TempPathFactory, name: str, *contents: Any) -> Path:
    def make(folder: Path) -> Path:
        build_lake(folder / "lake", *contents)
        return folder / "lake"

    return make_once(factory, name, make)
