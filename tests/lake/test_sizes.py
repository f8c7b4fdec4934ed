"""Sizes of a lake by what it has, and what a year will add."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.sizes import CONTENTS, LakeSize, read_size
from pipeline.lake.rebuild import rebuild
from pipeline.lake.retention import expire_snapshots
from pipeline.settings.settings import Settings
from schemas.timestamps import DAY
from tests.images.image_harness import scene
from tests.lake.operations import told
from tests.sync.sync_harness import SEED, synced, tampered

if TYPE_CHECKING:
    from pathlib import Path

PERIOD_DAYS = 30


def measured(lake: Path) -> LakeSize:
    """The sizes, which must be known."""
    size = read_size(lake)
    assert size is not None
    return size


async def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    """Each byte of the folder is counted once, where it belongs; status says so in words and in JSON."""
    async with scene(tmp_path) as stage:
        await stage.fetch()
        lake = stage.lake
        (lake / "note.txt").write_text("mine")
        (lake / "ledger.sqlite-wal").touch()
        size = measured(lake)
        inodes: dict[int, tuple[str, int]] = {}
        for path in sorted(path for path in lake.rglob("*") if path.is_file()):
            top = path.relative_to(lake).parts[0].partition(".")[0]
            inodes.setdefault(path.stat().st_ino, (top if top in CONTENTS else "other", path.stat().st_size))
        expected = dict.fromkeys(CONTENTS, 0)
        for content, count in inodes.values():
            expected[content] += count
        assert size.contents == expected
        assert min(expected[name] for name in CONTENTS if name != "snapshots") > 0, expected
        assert (size.total, size.year_bytes) == (sum(expected.values()), None)
        status = json.loads(told(lake, "status", "--json"))
        assert status["size"]["contents"] == expected
        assert "documents " in told(lake, "status")


async def test_a_year_adds_what_the_period_added(tmp_path: Path) -> None:
    """The next period of the same changes adds what was said, within a third; of less than a week nothing is said."""
    lake = tmp_path / "lake"
    async with Emulator(600, seed=SEED) as emulator:
        options: dict[str, Any] = {
            "fetch_details": "never",
            "keep_daily": 0,
            "keep_snapshots": 1,
            "lookback_seconds": 0,
        }
        await synced(emulator, lake, **options)

        async def live_for_a_period() -> None:
            for _ in range(2):
                emulator.world.create(60)
                emulator.world.update(emulator.world.pick_random(60))
                emulator.world.clock.advance(300)
                await synced(emulator, lake, **options)
            with Lake(lake, doing="test") as held:
                rebuild(held)  # without outputs of former rows
            with Lake(lake, doing="test") as held:  # which deletes what was replaced
                expire_snapshots(held.layout, held.ledger, Settings(keep_snapshots=1, keep_daily=0))

        def shift(days: float) -> None:
            with tampered(lake) as ledger:
                ledger.execute("UPDATE snapshot SET published_at = published_at - ?", (int(days * DAY),))
                ledger.execute("UPDATE run SET started_at = started_at - ?", (int(days * DAY),))

        shift(6.9)
        assert measured(lake).year_bytes is None
        shift(PERIOD_DAYS - 6.9)
        await live_for_a_period()
        before = measured(lake)
        assert before.year_bytes is not None
        assert before.since is not None
        assert f", as since {before.since:%Y-%m-%d}" in before.details
        await live_for_a_period()
        added = measured(lake).total - before.total
        assert added == pytest.approx(before.year_bytes * PERIOD_DAYS / 365, rel=1 / 3)


def test_a_lake_without_a_ledger_has_no_size(tmp_path: Path) -> None:
    """What cannot be read is not guessed."""
    assert read_size(tmp_path) is None
