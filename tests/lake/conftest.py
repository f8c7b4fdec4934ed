"""A lake of two files that is published once for all tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.lake.lake_builder import made_in
from tests.made_once import make_once


@pytest.fixture(scope="session")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published lake of two commits, only to be read or copied."""
    return make_once(tmp_path_factory, "two-files", lambda folder: made_in(folder / "lake"))


@pytest.fixture
def lake(two_files: Path, tmp_path: Path) -> Path:
    """A copy of that lake."""
    return Path(shutil.copytree(two_files, tmp_path / "lake"))
