"""Field ids in parts: every way to write a part writes them, and parts of earlier versions without them stay useful."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from pipeline.lake.lake import Lake
from pipeline.lake.parts import part_schema
from pipeline.maintenance.rebuild import rebuild
from pipeline.progress import NullProgress
from pipeline.settings import Settings
from pipeline.sync.verify import VerifyMode, verify
from tests.lake.corruption import checked, flip, grown
from tests.lake.operations import compact_all
from tests.lake.test_purge import purged
from tests.sync.sync_harness import synced

if TYPE_CHECKING:
    from pathlib import Path


def list_problems(lake: Path) -> list[str]:
    """Return the parts, the empty ones included, whose columns differ from the declared ones."""
    problems = []
    for path in sorted([*lake.glob("parts/*/*.parquet"), *lake.glob("raw/*.parquet")]):
        declared = part_schema(path.parent.name)
        if not pq.read_schema(path).equals(declared, check_metadata=True):
            problems.append(path.relative_to(lake).as_posix())
    return problems


async def test_every_way_to_write_a_part_writes_field_ids(tmp_path: Path) -> None:
    """Syncs, tombstones, compactions, repairs, purges and rebuilds write the declared columns with their ids."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        emulator.world.delete(emulator.world.pick_random(2))
        settings = Settings(base_url=emulator.base_url, lake=lake)
        with Lake(lake, doing="verify") as held:
            await verify(held, settings, emulator.token, VerifyMode(), NullProgress())
            assert list_problems(lake) == []
            damaged = held.layout.part_path(next(p.name for p in held.ledger.parts() if p.table_name == "uploads"))
        flip(damaged)
        assert checked(lake, read_data=True).damage
        assert list_problems(lake) == []
        with Lake(lake, doing="compaction") as held:
            compact_all(held, settings)
        assert list_problems(lake) == []
        damaged = max(lake.glob("parts/files/*.parquet"), key=lambda path: path.stat().st_size)
        flip(damaged)
        assert checked(lake, read_data=True).damage
        assert list_problems(lake) == []
        file_id = emulator.world.pick_random(1)[0]
        await synced(emulator, lake)
        purged(lake, file_id)
        assert list_problems(lake) == []
        with Lake(lake, doing="rebuild") as held:
            rebuild(held)
        assert list_problems(lake) == []
        assert len(list(lake.glob("parts/*/*.parquet"))) > 20
