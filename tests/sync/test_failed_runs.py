"""What a run that fails leaves of the lake: as it was, unless it has committed something."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipeline.emulator import Emulator
from pipeline.errors import ScanlakeError
from tests.sync.sync_harness import SEED, asked, count_files, synced

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("published")


async def test_a_run_without_a_commit_publishes_nothing(tmp_path: Path) -> None:
    """A refused token leaves snapshot, `published_at` and completeness of the lake as they were, and is recorded."""
    async with Emulator(6, seed=SEED) as emulator:
        await synced(emulator, tmp_path)
        published = (tmp_path / "catalog.duckdb").stat()
        snapshots = asked(tmp_path, "SELECT * FROM snapshot")
        emulator.script("401", times=100)
        with pytest.raises(ScanlakeError, match="refused the token"):
            await synced(emulator, tmp_path)
    after = (tmp_path / "catalog.duckdb").stat()
    assert (after.st_ino, after.st_mtime_ns) == (published.st_ino, published.st_mtime_ns)
    assert asked(tmp_path, "SELECT * FROM snapshot") == snapshots
    assert [run[:2] for run in asked(tmp_path, "SELECT state, snapshot IS NULL FROM run ORDER BY started_at")] == [
        ("done", 0),
        ("failed", 1),
    ]


async def test_a_run_that_fails_after_a_commit_publishes_it(tmp_path: Path) -> None:
    """Files that were committed before a failure are in the catalog, in a snapshot that says it is not complete."""
    async with Emulator(40, seed=SEED) as emulator:
        emulator.script("401", times=100, path="/api/v2/files/", skip=30)
        with pytest.raises(ScanlakeError):
            await synced(emulator, tmp_path, commit_every_files=10, max_concurrency=1)
    assert count_files(tmp_path) > 9
    assert asked(tmp_path, "SELECT state, snapshot FROM run") == [("failed", 1)]
    assert asked(tmp_path, "SELECT complete FROM snapshot WHERE state <> 'abandoned'") == [(0,)]
