"""Damage that compaction and rollback meet: it is named as damage, and never comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipeline.lake import compaction
from tests.lake.corruption import checked, flip, grown
from tests.lake.operations import told
from tests.sync.sync_harness import opened

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("folder", ["raw", "parts/uploads"])
async def test_compaction_names_a_damaged_part(tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction that cannot read a part ends with exit code 9 and names it; it does not blame the disk."""
    monkeypatch.setattr(compaction, "_MIN_MERGED_RAW_PARTS", 2)
    monkeypatch.setattr(compaction, "MAX_SUPERSEDED_RATIO", -1)
    monkeypatch.setattr(compaction, "MIN_SUPERSEDED", 0)
    lake = tmp_path / "lake"
    async with grown(lake):
        pass
    damaged = min((lake / folder).glob("0*.parquet"))
    flip(damaged)
    message = told(lake, "rebuild", "--small-parts", code=9)
    assert f"{folder}/{damaged.name}" in message
    assert "Run `scanlake check`" in message


async def test_a_rollback_brings_no_damaged_part_back(tmp_path: Path) -> None:
    """A snapshot with a part that a check has left out cannot be restored; the lake stays as it is."""
    lake = tmp_path / "lake"
    async with grown(lake):
        pass
    (number,) = (int(path.stem) for path in sorted((lake / "snapshots").glob("*.duckdb"))[-1:])
    flip(min((lake / "raw").glob("0*.parquet")))
    assert checked(lake).damage
    with opened(lake) as db:
        before = db.execute("SELECT count(*) FROM uploads").fetchall()
    message = told(lake, "rollback", str(number), "--yes", code=2)
    assert f"Snapshot {number} cannot be restored: raw/" in message
    with opened(lake) as db:
        assert db.execute("SELECT count(*) FROM uploads").fetchall() == before
