"""The mirror: every snapshot on the target equals the lake's own, row by row, whatever has happened to the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.emulator import Emulator
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.lake import Lake
from pipeline.lake.layout import LakeLayout
from pipeline.lake.purge import purge
from pipeline.maintenance.compact import run_compaction
from pipeline.settings import Settings
from schemas.timestamps import now_us
from tests.lake.test_snapshots import rolled_back, unpaused, verified
from tests.publish.target_reading import all_differing, published
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.publish.object_store import ObjectStore


async def test_every_snapshot_equals_the_lake(store: ObjectStore, tmp_path: Path) -> None:
    """Through changes, deletions, compactions, a rollback, its end and a purge the target has the lake's rows."""
    lake, copy = tmp_path / "lake", tmp_path / "copy"
    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, lake, keep_snapshots=100)
        assert published(lake, store).changed
        for _ in range(3):
            emulator.world.update(emulator.world.pick_random(15))
            emulator.world.create(3)
            emulator.world.delete(emulator.world.pick_random(2))
            await synced(emulator, lake, keep_snapshots=100)
            assert published(lake, store).changed
        with Lake(lake, doing="verify") as held:
            held.ledger.set_properties(last_verify_at=None, unverified_since=1)
        await verified(emulator, lake)
        published(lake, store)
        with Lake(lake, doing="compact") as held:
            run_compaction(held, Settings(lake=lake, keep_snapshots=100), everything=True)
        assert published(lake, store).uploaded > 5
        assert all_differing(lake, store, copy) == []
        rolled_back(lake, 2)
        published(lake, store)
        unpaused(lake)
        await synced(emulator, lake, keep_snapshots=100)
        published(lake, store)
        kept = sorted(dict(list_snapshots(LakeLayout(lake))))
        assert len(kept) > 5
        for number in kept:
            assert published(lake, store, number=number).snapshot == number
        assert all_differing(lake, store, copy) == []
        with Lake(lake, doing="purge") as held:
            purge(held, emulator.world.pick_random(2), by="tester", at=now_us(), mark="abcdef")
        published(lake, store)
        assert all_differing(lake, store, copy) == []
        assert len(list(store.list("snapshots"))) == 1
