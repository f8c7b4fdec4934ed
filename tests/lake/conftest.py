"""Lakes that are made once for all tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lake.history import History, make_history
from tests.lake.lake_builder import made_in
from tests.lake_copies import copy_lake
from tests.made_once import make_once

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published lake of two commits, only to be read or copied."""
    return make_once(tmp_path_factory, "two-files", lambda folder: made_in(folder / "lake"))


@pytest.fixture
def lake(two_files: Path, tmp_path: Path) -> Path:
    """A copy of that lake."""
    return copy_lake(two_files, tmp_path / "lake")


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """A lake of a service on three days, only to be copied."""
    return make_once(tmp_path_factory, "history", make_history)
