"""Random worlds of lists and details that are not what they seem: what is not in the lake is named.

Files have no update times, an index misses them, lists and details come from caches, pages repeat files. After each run
the lake equals the service, or the run, the ledger or the verification names the files that differ.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.emulator import Emulator, WorldPlan, make_quirks
from pipeline.errors import ScanlakeError
from pipeline.sync.sync import SyncSummary, TimeRange
from pipeline.sync.verify import VerifyMode, VerifyResult
from tests.oracle import DEFINITIONS, TABLES, differences
from tests.soaking import draw_seed, sample
from tests.sync.sync_harness import asked, check_equal, opened, synced, verified

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("unpublished")]
SEED: Final = draw_seed(__name__)
WORLDS: Final = 1_000
NOW: Final = "2026-02-20T12:00:00Z"  # before this machine's time, which the clock of a world never reaches
UNCOUNTED: Final = frozenset({"none", "bare"})
_WORLDS_PER_TEST: Final = 4
_QUICK_TESTS: Final = 1
_SETTLED_SECONDS: Final = 60.0  # after them a run must have what changed before
_ROUNDS: Final = 3
_UNSTABLE: Final = "SELECT file_id FROM file_version WHERE NOT is_stable AND NOT deleted"
_REJECTED: Final = "SELECT file_id FROM reject WHERE file_id IS NOT NULL"
_OPTIONS: Final[dict[str, Any]] = {"max_attempts": 2, "request_timeout_seconds": 5.0}


def draw_quirks(dice: random.Random) -> dict[str, Any]:
    """Return what is odd in a world.

    Without update times nothing shows that a detail is from a cache; without counts a list in random order has no end.
    """
    shares = (0.0, 0.0, 0.03, 0.2, 1.0)
    nulls = dice.choice(shares)
    paging = dice.choice(("top", "top", "meta", "pages", "none", "bare"))
    orders = ("updated-desc", "updated-asc", "id-asc", "shuffled")
    return {
        "paging": paging,
        "order": dice.choice(orders[:3] if paging in UNCOUNTED else orders),
        "page_cap": dice.choice((0, 0, 0, 20)),
        "start_bound": dice.choice(("inclusive", "exclusive")),
        "precision": dice.choice(("seconds", "micros")),
        "null_times": nulls,
        "filter_misses": dice.choice(shares),
        "repeats": dice.choice(("no", "no", "same", "older-first", "older-last")),
        "list_cache_seconds": dice.choice((0.0, 0.0, 5.0, 25.0)),
        "detail_cache_seconds": 0.0 if nulls else dice.choice((0.0, 0.0, 600.0, 20_000.0)),
    }


class ListWorld:
    """A service with its lake, and the files that may differ without a name."""

    def __init__(self, emulator: Emulator, lake: Path, dice: random.Random) -> None:
        self.emulator = emulator
        self.lake = lake
        self.dice = dice
        self.counts_files = emulator.quirks.paging not in UNCOUNTED

    def change(self) -> None:
        """Let files change, appear, go, and lose or get their update times or their place in the index."""
        world, dice = self.emulator.world, self.dice
        world.update(world.pick_random(dice.randrange(8)))
        world.create(dice.randrange(4))
        if len(world.records) > 10:
            world.delete(world.pick_random(dice.randrange(3)))
        if self.emulator.quirks.detail_cache_seconds == 0:
            world.lose_times(world.pick_random(dice.randrange(3)), lost=dice.random() < 0.7)
        world.lose_index(world.pick_random(dice.randrange(3)), lost=dice.random() < 0.7)

    async def run(self, kind: str) -> SyncSummary | VerifyResult | None:
        """Run a sync or a verify; None for a refusal by name."""
        try:
            if kind == "verify":
                return await verified(self.emulator, self.lake, **_OPTIONS)
            if kind == "dry":
                return await verified(self.emulator, self.lake, VerifyMode(check_only=True), **_OPTIONS)
            return await synced(self.emulator, self.lake, TimeRange(full=kind == "full"), **_OPTIONS)
        except ScanlakeError as error:
            print(f"refused: {error.message}")
            return None

    def check(self, result: SyncSummary | VerifyResult, kind: str) -> None:
        """Check that lake and service are equal, but for files that are named."""
        with_deletions = isinstance(result, VerifyResult)
        if isinstance(result, VerifyResult):
            is_named = not result.consistent
        else:
            is_named = bool(result.unproven) or result.watermark is None
        if is_named:
            return
        named = {row[0] for query in (_UNSTABLE, _REJECTED) for row in asked(self.lake, query)}
        world = self.emulator.world
        if isinstance(result, VerifyResult):
            assert not asked(self.lake, _REJECTED)
            named |= set(result.ids["changed_meanwhile"])
        if not self.counts_files and kind == "sync":  # nothing says that there are more
            named |= world.untimed | world.unindexed
        truth = [row for row in self.emulator.truth() if row["key"] not in named]
        with opened(self.lake) as db:
            keys = [row["key"] for row in truth]
            if with_deletions:
                keys += [row[0] for row in db.execute("SELECT file_id FROM files").fetchall() if row[0] not in named]
            db.execute("CREATE TEMP TABLE chosen AS SELECT unnest(?::BIGINT[]) AS id", [keys])
            [(name,)] = db.execute("SELECT current_database()").fetchall()
            for table in set(TABLES) - DEFINITIONS:
                db.execute(f"CREATE TEMP VIEW {table} AS FROM {name}.main.{table} WHERE file_id IN (FROM chosen)")
            found = differences(db, truth, history=True)
        print("\n".join(found))
        assert found == []

    async def live(self) -> None:
        """Run and change the world by turns; in the end, without caches, a sync and a verify make both equal."""
        for number in range(_ROUNDS):
            kind = "sync" if not number else self.dice.choice(("sync", "sync", "full", "verify", "dry"))
            self.emulator.world.clock.advance(_SETTLED_SECONDS)
            result = await self.run(kind)
            print(f"{kind}: {result}")
            if result is not None:
                self.check(result, "first" if not number else kind)
            self.change()
            self.emulator.world.clock.advance(self.dice.choice((0.0, 30.0, 900.0, 8_000.0)))
        self.emulator.set_quirks(list_cache_seconds=0.0, detail_cache_seconds=0.0)
        self.emulator.world.clock.advance(_SETTLED_SECONDS)
        await self.run("sync")
        result = await self.run("verify")
        print(f"end: {result}")
        assert isinstance(result, VerifyResult), "a verify without caches ends"
        assert result.consistent
        check_equal(self.lake, self.emulator, history=True)


@pytest.mark.parametrize("first", sample(range(0, WORLDS, _WORLDS_PER_TEST), _QUICK_TESTS))
async def test_what_the_list_has_the_lake_has_or_names(tmp_path: Path, first: int) -> None:
    """In a random world of nulls, misses, caches and repeated files nothing differs that is not named."""
    for number in range(first, first + _WORLDS_PER_TEST):
        dice = random.Random(f"{SEED}:{number}")
        quirks, files = draw_quirks(dice), dice.choice((12, 30, 60, 110))
        print(f"world {number}: {files} files, {quirks}")
        plan = WorldPlan(files=files, seed=dice.randrange(1 << 30), days=30, now=NOW)
        async with Emulator(plan=plan, quirks=make_quirks("seen", quirks)) as emulator:
            await ListWorld(emulator, tmp_path / str(number), dice).live()
