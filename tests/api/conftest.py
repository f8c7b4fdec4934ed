"""The Python interface configures structlog for the whole process: each test leaves it as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    former = structlog.get_config() if structlog.is_configured() else None
    yield
    if former is None:
        structlog.reset_defaults()
    else:
        structlog.configure(**former)
