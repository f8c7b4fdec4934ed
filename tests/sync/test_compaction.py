"""Compaction merges parts and changes nothing that a reader sees."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from pipeline.emulator import Emulator
from pipeline.lake import compaction
from pipeline.lake.compaction import PartGroup
from pipeline.lake.lake import Lake
from pipeline.settings.settings import Settings
from tests.lake.operations import compact_all
from tests.sync.sync_harness import SEED, asked, check_equal, synced

if TYPE_CHECKING:
    from pathlib import Path


def compacted(lake: Path) -> bool:
    """Compact everything."""
    with Lake(lake, doing="compaction") as held:
        return compact_all(held, Settings(lake=lake))


async def test_nothing_changes_for_readers(lake: Path) -> None:
    """After many rounds of changes a compaction leaves every table as it was, in fewer parts and without dead rows.

    A compacted part is sorted by file, and its pages bear checksums. Replaced parts go after their readers' grace.
    """
    async with Emulator(30, seed=SEED) as emulator:
        for _ in range(4):
            await synced(emulator, lake, commit_every_files=10)
            emulator.world.update(emulator.world.pick_random(20))
            emulator.world.create(3)
        await synced(emulator, lake)
        counts = "SELECT count(*), (SELECT count(*) FROM superseded_version) FROM part WHERE table_name <> 'documents'"
        [(before, superseded)] = asked(lake, counts)
        assert superseded > 50
        on_disk = len(list((lake / "tables" / "files").glob("0*.parquet")))
        assert compacted(lake)
        check_equal(lake, emulator)
        [(after, superseded)] = asked(lake, counts)
        assert (after < before / 4, superseded) == (True, 0)
        assert len(list((lake / "tables" / "files").glob("0*.parquet"))) == on_disk + 1, "open snapshots name them"
        (part,) = (lake / "tables" / "uploads").glob("*-0000.parquet")
        ids = pq.read_table(part, page_checksum_verification=True).column("file_id").to_pylist()
        assert ids == sorted(ids)
        assert part.stat().st_mode & 0o777 == 0o444
        emulator.world.update(emulator.world.pick_random(10))
        await synced(emulator, lake, keep_snapshots=1, retention_hours=0)
        check_equal(lake, emulator)
        assert len(list((lake / "tables" / "files").glob("0*.parquet"))) == 2
    assert compacted(lake)
    assert not compacted(lake)


def test_tiers() -> None:
    """Up to sixteen part groups stay, the many of a first sync become one; over years a file is seldom rewritten."""
    groups = [PartGroup(seq, seq, 1_000, 0) for seq in range(1, 300)]
    assert compaction.select_for_compaction(groups[:16]) == ()
    assert len(compaction.select_for_compaction(groups)) == 299
    rng = random.Random(SEED)
    found = [PartGroup(1, 1, 1_000_000, 0)]
    rewritten = 0
    for seq in range(2, 3_000):
        changed = rng.randrange(50, 150)
        base = found[0]
        found[0] = PartGroup(base.first_commit_seq, base.last_commit_seq, base.files, base.superseded + changed)
        found.append(PartGroup(seq, seq, changed, changed // 10))
        if chosen := compaction.select_for_compaction(found):
            rewritten += sum(group.files for group in chosen)
            files = sum(group.files - group.superseded for group in chosen)
            merged = PartGroup(chosen[0].first_commit_seq, chosen[-1].last_commit_seq, files, 0)
            found = [*found[: len(found) - len(chosen)], merged]
        assert len(found) <= compaction.MAX_GROUPS
    assert rewritten < 12 * 1_000_000
