"""The mirror: every snapshot on the target equals the lake's own, row by row, whatever has happened to the lake."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from obstore.store import MemoryStore

from pipeline.emulator import Emulator
from pipeline.lake.file_names import list_snapshots
from pipeline.lake.lake import Lake
from pipeline.lake.layout import LakeLayout
from pipeline.lake.purge import purge
from pipeline.publish.cloud_store import CloudStore
from pipeline.publish.object_store import open_store
from pipeline.settings import Settings
from schemas.timestamps import now_us
from tests.lake.operations import compact_all
from tests.lake.test_snapshots import rolled_back, undo_rollback, verified
from tests.publish.target_reading import all_differing, published
from tests.sync.sync_harness import SEED, synced

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.publish.mirror import MirrorResult


async def test_every_snapshot_equals_the_lake(s3_url: str, tmp_path: Path) -> None:
    """Through changes, deletions, compactions, a rollback, its end and a purge the targets have the lake's rows."""
    lake = tmp_path / "lake"
    stores = (CloudStore("memory://test", MemoryStore()), open_store(f"file://{tmp_path}/target"), open_store(s3_url))

    def publish(number: int | None = None) -> list[MirrorResult]:
        return [published(lake, store, number=number) for store in stores]

    def compare() -> list[str]:
        found = [all_differing(lake, store, tmp_path / f"copy{place}") for place, store in enumerate(stores)]
        return list(chain.from_iterable(found))

    async with Emulator(60, seed=SEED) as emulator:
        await synced(emulator, lake, keep_snapshots=100)
        assert all(result.changed for result in publish())
        for _ in range(3):
            emulator.world.update(emulator.world.pick_random(15))
            emulator.world.create(3)
            emulator.world.delete(emulator.world.pick_random(2))
            await synced(emulator, lake, keep_snapshots=100)
            assert all(result.changed for result in publish())
        with Lake(lake, doing="verify") as held:
            held.ledger.set_properties(last_verify_at=None, unverified_since=1)
        await verified(emulator, lake)
        publish()
        with Lake(lake, doing="compaction") as held:
            compact_all(held, Settings(lake=lake, keep_snapshots=100))
        assert all(result.uploaded > 5 for result in publish())
        assert compare() == []
        rolled_back(lake, 2)
        publish()
        undo_rollback(lake)
        await synced(emulator, lake, keep_snapshots=100)
        publish()
        kept = sorted(dict(list_snapshots(LakeLayout(lake))))
        assert len(kept) > 5
        for number in kept:
            assert [result.snapshot for result in publish(number)] == [number] * len(stores)
        assert compare() == []
        with Lake(lake, doing="purge") as held:
            purge(held, emulator.world.pick_random(2), by="tester", at=now_us(), mark="abcdef")
        publish()
        assert compare() == []
        assert [len(list(store.list("snapshots"))) for store in stores] == [1] * len(stores)
