"""Compaction folds parts and changes nothing that a reader sees."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from pipeline.emulator import Emulator
from pipeline.lake import compaction
from pipeline.lake.compaction import Layer
from pipeline.lake.lake import Lake
from pipeline.runs.upkeep import compact
from pipeline.settings import Settings
from tests.oracle import differences
from tests.sync.running import SEED, opened, synced

if TYPE_CHECKING:
    from pathlib import Path


def folded(lake: Path, *, everything: bool = False, **settings: object) -> compaction.Folded | None:
    """Compact as the command does."""
    with Lake(lake, doing="compact") as held:
        return compact(held, Settings(lake=lake, **settings), everything=everything)  # type: ignore[arg-type]


async def test_nothing_changes_for_readers(tmp_path: Path) -> None:
    """After many rounds of changes a compaction leaves every table as it was, in fewer parts and without dead rows."""
    lake = tmp_path / "lake"
    async with Emulator(80, seed=SEED) as emulator:
        for _ in range(6):
            await synced(emulator, lake, commit_files=30)
            emulator.world.update(emulator.world.some(20))
            emulator.world.create(3)
        await synced(emulator, lake)
        truth = list(emulator.truth())
        parts = "SELECT count(*) FROM _parts WHERE table_name <> 'raw'"
        with opened(lake) as db:
            before = db.execute(parts).fetchall()[0][0]
            assert db.execute("SELECT count(*) FROM _dead").fetchall()[0][0] > 50
        done = folded(lake, everything=True)
        assert done is not None
        with opened(lake) as db:
            assert differences(db, truth) == []
            assert db.execute("SELECT count(*) FROM _dead").fetchall() == [(0,)]
            assert db.execute(parts).fetchall()[0][0] < before / 4
        emulator.world.update(emulator.world.some(10))
        await synced(emulator, lake)
        with opened(lake) as db:
            assert differences(db, emulator.truth()) == []
    assert folded(lake, everything=True) is not None
    assert folded(lake, everything=True) is None


async def test_a_base_part_is_sorted_and_checksummed(tmp_path: Path) -> None:
    """A folded part is sorted by file, in row groups of 50,000, and its pages bear checksums."""
    lake = tmp_path / "lake"
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, lake, commit_files=10)
    folded(lake, everything=True)
    (part,) = (path for path in (lake / "parts" / "uploads").glob("*-0000.parquet"))
    rows = pq.read_table(part, page_checksum_verification=True)
    ids = rows.column("file_id").to_pylist()
    assert ids == sorted(ids)
    assert part.stat().st_mode & 0o777 == 0o444


async def test_old_snapshots_stay_readable_for_their_grace(tmp_path: Path) -> None:
    """Parts that were folded stay on disk while a kept snapshot shows them, and go with it."""
    lake = tmp_path / "lake"
    async with Emulator(40, seed=SEED) as emulator:
        await synced(emulator, lake, commit_files=10)
        with opened(lake) as db:
            number = db.execute("SELECT snapshot FROM meta.freshness").fetchall()[0][0]
        held = opened(lake)
        folded(lake, everything=True)
        assert held.execute("SELECT count(*) FROM files").fetchall() == [(40,)]
        held.close()
        assert (lake / "snapshots" / f"{number:06d}.duckdb").exists()
        for _ in range(3):
            await synced(emulator, lake, keep_snapshots=1, grace_hours=0)
        assert not (lake / "snapshots" / f"{number:06d}.duckdb").exists()
        truth = list(emulator.truth())
    parts = list((lake / "parts" / "files").glob("0*.parquet"))
    assert len(parts) == 1
    with opened(lake) as db:
        assert differences(db, truth) == []


def test_a_first_sync_compacts_nothing() -> None:
    """Layers that supersede nothing are left alone until there are very many of them."""
    assert compaction.choose([Layer(seq, seq, 1_000, 0) for seq in range(1, 100)]) == ()
    assert len(compaction.choose([Layer(seq, seq, 1_000, 0) for seq in range(1, 300)])) > 100


def test_tiers() -> None:
    """Over years of syncs a file is rewritten a few times only, and layers stay few."""
    rng = random.Random(SEED)
    found = [Layer(1, 1, 1_000_000, 0)]
    rewritten = commits = 0
    for seq in range(2, 3_000):
        changed = rng.randrange(50, 150)
        commits += changed
        base = found[0]
        found[0] = Layer(base.seq_low, base.seq_high, base.files, base.dead + changed)
        found.append(Layer(seq, seq, changed, changed // 10))
        if chosen := compaction.choose(found):
            rewritten += sum(layer.files for layer in chosen)
            files = sum(layer.files - layer.dead for layer in chosen)
            found = [*found[: len(found) - len(chosen)], Layer(chosen[0].seq_low, chosen[-1].seq_high, files, 0)]
        assert len(found) < 60
    assert rewritten < 12 * 1_000_000
