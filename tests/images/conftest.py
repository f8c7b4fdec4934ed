"""Fixtures of the tests of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.images.image_harness import PicturedLakes, make_pictured_lakes
from tests.lake_copies import copy_lake

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> PicturedLakes:
    """Lakes with images; no test writes to them."""
    return make_pictured_lakes(tmp_path_factory)


@pytest.fixture
def lake(pictured: PicturedLakes, tmp_path: Path) -> Path:
    """A copy of the lake with all images, whose service has ended."""
    return copy_lake(pictured.whole, tmp_path / "lake")
