"""Field ids in parts: every way to write a part writes them, and parts of earlier versions without them stay useful."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.atomic_files import sha256_file
from pipeline.lake.lake import Lake
from pipeline.lake.parts import part_schema
from pipeline.maintenance.compact import run_compaction
from pipeline.maintenance.replay import replay
from pipeline.progress import NullProgress
from pipeline.settings import Settings
from pipeline.sync.verify import VerifyMode, verify
from tests.lake.corruption import checked, flip, grown
from tests.lake.test_purge import purged
from tests.lake.test_replay import rows
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


def remove_field_ids(lake: Path) -> None:
    """Write every part again as a version without field ids did."""
    with Lake(lake, doing="test") as held:
        for part in held.ledger.parts():
            path = held.layout.part_path(part.name)
            table = pq.read_table(path)
            fields = [field.remove_metadata() for field in table.schema]
            path.chmod(0o644)
            pq.write_table(table.cast(pa.schema(fields)), path, store_schema=False, compression="zstd")
            size = path.stat().st_size
            held.ledger.update_part(part.name, row_count=part.row_count, size=size, sha256=sha256_file(path))
        held.ledger.set_properties(former_catalog=None)
        held.republish(at=1)


async def test_every_way_to_write_a_part_writes_field_ids(tmp_path: Path) -> None:
    """Syncs, tombstones, compactions, repairs, purges and replays write the declared columns with their ids."""
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
        with Lake(lake, doing="compact") as held:
            run_compaction(held, settings, everything=True)
        assert list_problems(lake) == []
        damaged = max(lake.glob("parts/files/*.parquet"), key=lambda path: path.stat().st_size)
        flip(damaged)
        assert checked(lake, read_data=True).damage
        assert list_problems(lake) == []
        file_id = emulator.world.pick_random(1)[0]
        await synced(emulator, lake)
        purged(lake, file_id)
        assert list_problems(lake) == []
        with Lake(lake, doing="replay") as held:
            replay(held)
        assert list_problems(lake) == []
        assert len(list(lake.glob("parts/*/*.parquet"))) > 20


async def test_parts_without_field_ids_stay_useful(tmp_path: Path) -> None:
    """A lake of an earlier version keeps its rows, takes new ones, and has ids in all its rows after a compaction."""
    lake = tmp_path / "lake"
    async with grown(lake) as emulator:
        before = rows(lake)
        remove_field_ids(lake)
        assert len(list_problems(lake)) > 20
        shutil.rmtree(lake / "snapshots")
        assert rows(lake) == before
        emulator.world.update(emulator.world.pick_random(3))
        await synced(emulator, lake)
        mixed = rows(lake)
        assert mixed != before
        with Lake(lake, doing="compact") as held:
            run_compaction(held, Settings(base_url=emulator.base_url, lake=lake), everything=True)
        assert rows(lake) == mixed
        with Lake(lake, doing="test") as held:
            current = {part.name for part in held.ledger.parts() if part.table_name != "raw"}
        assert not current & set(list_problems(lake))
