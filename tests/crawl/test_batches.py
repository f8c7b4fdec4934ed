"""Batches: what one of them holds in memory is bounded by bytes as well as by files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.crawl import batcher
from pipeline.emulator import Emulator
from tests.crawl.crawl_harness import WITH_DETAILS, FakeLake, run_crawl

if TYPE_CHECKING:
    import pytest

_MAX_UNITS = 40
_UNIT_BYTES = 1_000


async def test_large_files_make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose documents are many units make batches of few files, every file is stored, and the crawl ends."""
    monkeypatch.setattr(batcher, "_BYTES_PER_UNIT", _UNIT_BYTES)
    async with Emulator(400, seed=5) as emulator:
        lake = FakeLake()
        await run_crawl(emulator, lake, replace(WITH_DETAILS, commit_every_files=_MAX_UNITS, commit_every_seconds=60))
    sizes = [
        [len(version.list_item or b"") + len(version.detail or b"") for version in batch.versions]
        for batch in lake.batches
    ]
    assert len(lake.stored) == 400
    assert max(map(sum, sizes)) <= _MAX_UNITS * _UNIT_BYTES + 2 * max(map(max, filter(None, sizes)))
    assert max(map(len, sizes)) < _MAX_UNITS
