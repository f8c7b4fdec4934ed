"""Fixtures of the tests in which anything happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sync import sync_harness

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def unpublished() -> Iterator[None]:
    """No run of the test writes a catalog; see `sync_harness.unpublished`."""
    with sync_harness.unpublished():
        yield
