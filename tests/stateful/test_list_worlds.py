"""Random worlds of lists and details that are not what they seem: what is not in the lake is named.

Files have no update times, an index misses them, lists and details come from caches, pages repeat files. After each run
the lake equals the service, or the run, the ledger or the verification names the files that differ.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import pytest

from pipeline.emulator import Emulator, WorldPlan, make_quirks
from pipeline.emulator.documents import ALL_INCLUDES
from pipeline.errors import ScanlakeError
from pipeline.lake.ledger.readonly import open_ledger_readonly
from pipeline.lake.storage.layout import LakeLayout
from pipeline.sync.sync import SyncSummary, TimeRange
from pipeline.sync.verify import VerifyMode, VerifyResult
from schemas.timestamps import SECOND
from tests.soaking import draw_seed, sample
from tests.sync.sync_harness import asked, synced, verified

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
_LASTING: Final = """
    SELECT file_id FROM file_version WHERE NOT is_stable AND NOT deleted
    AND (updated_at IS NULL OR fetched_at > updated_at + 60000000)"""
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
    """A service with its lake, what has changed when, and what the lake may say of it."""

    def __init__(self, emulator: Emulator, lake: Path, dice: random.Random) -> None:
        self.emulator = emulator
        self.lake = lake
        self.dice = dice
        self.counts_files = emulator.quirks.paging not in UNCOUNTED
        self.changed: Counter[int] = Counter()  # by key the time of the last change, 0 for none
        self._documents: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self._parts: set[Path] = set()
        self._watermark: int | None = None
        self._was_hidden: set[int] = set()  # at any time since the whole list was read

    def change(self) -> None:
        """Let files change, appear, go, and lose or get their update times or their place in the index."""
        world, dice = self.emulator.world, self.dice
        self._note_hidden()
        changed = world.update(world.pick_random(dice.randrange(8))) + world.create(dice.randrange(4))
        if len(world.records) > 10:
            world.delete(world.pick_random(dice.randrange(3)))
        if self.emulator.quirks.detail_cache_seconds == 0:
            changed += world.lose_times(world.pick_random(dice.randrange(3)), lost=dice.random() < 0.7)
        changed += world.lose_index(world.pick_random(dice.randrange(3)), lost=dice.random() < 0.7)
        self.changed |= dict.fromkeys(changed, world.clock.now())

    def _note_hidden(self) -> None:
        self._was_hidden |= self.emulator.world.untimed | self.emulator.world.unindexed

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

    def find_different(self) -> set[int]:
        """Return the files whose documents in the lake are not those of the service, deleted ones among them."""
        for part in set((self.lake / "documents").rglob("*.parquet")) - self._parts:
            self._parts.add(part)
            columns = pq.ParquetFile(part).read(["file_id", "_seq", "list_item", "detail"]).to_pydict()
            for file_id, seq, item, detail in zip(*columns.values(), strict=True):
                self._documents[file_id, seq] = (_unsigned(item or b""), _unsigned(detail or b""))
        stored = {
            file_id: self._documents[file_id, seq]
            for file_id, seq in asked(self.lake, "SELECT file_id, commit_seq FROM file_version WHERE NOT deleted")
        }
        world, documents = self.emulator.world, self.emulator.documents
        there = {
            key: (
                _unsigned(documents.render_item(record, ALL_INCLUDES, None)),
                _unsigned(documents.render_detail(record, None)),
            )
            for key, record in world.records.items()
        }
        return {key for key in stored | there if stored.get(key) != there.get(key)}

    def check(self, result: SyncSummary | VerifyResult | None, kind: str) -> None:
        """Check that every file is as it was before the watermark, or named, and what the result says."""
        different, records = self.find_different(), self.emulator.world.records
        rejects = {row[0] for row in asked(self.lake, _REJECTED)}
        named = rejects | {row[0] for row in asked(self.lake, _LASTING)}
        with open_ledger_readonly(LakeLayout(self.lake)) as ledger:
            properties = ledger.properties
        watermark, before = properties.watermark, self._watermark
        self._watermark = watermark
        self._note_hidden()
        if not self.counts_files and (result is None or kind in {"sync", "dry"}):  # nothing says that there are more
            named |= self._was_hidden
        else:
            self._was_hidden.clear()
        claimed = {key for key in different & records.keys() if self.changed[key] < (watermark or -1) * SECOND}
        assert claimed <= named, "everything before the watermark is in the lake"
        if isinstance(result, SyncSummary):
            absent = different & records.keys() - {
                row[0] for row in asked(self.lake, "SELECT file_id FROM file_version")
            }
            assert properties.unproven_files == result.unproven
            assert result.unproven == 0 or watermark == before, "the watermark waits"
            assert watermark is None or result.unproven or len(absent - named) == 0
            assert result.rejects or not rejects, "an exit code that is not 0"
        elif result is not None:
            kinds = {name: set(ids) for name, ids in result.ids.items()}
            repaired = kinds["missing"] | kinds["stale"] | kinds["details_differing"]
            assert kind == "dry" or repaired & different <= kinds["unrepaired"] | kinds["changed_meanwhile"]
            if result.consistent:
                assert not rejects
                assert different <= kinds["changed_meanwhile"], "lake and service are equal"

    async def live(self) -> None:
        """Run and change the world by turns; in the end, without caches, a sync and a verify make both equal."""
        for number in range(_ROUNDS):
            kind = "sync" if not number else self.dice.choice(("sync", "sync", "full", "verify", "dry"))
            self.emulator.world.clock.advance(_SETTLED_SECONDS)
            result = await self.run(kind)
            print(f"{kind}: {result}")
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
        assert self.find_different() == set()


def _unsigned(document: bytes) -> bytes:
    return re.sub(rb'\?signature=[^"]*', b"", document)


async def live_in_world(number: int, folder: Path) -> None:
    """Make the world of a number and live in it."""
    dice = random.Random(f"{SEED}:{number}")
    quirks, files = draw_quirks(dice), dice.choice((3, 12, 30, 60))
    print(f"world {number}: {files} files, {quirks}")
    plan = WorldPlan(files=files, seed=dice.randrange(1 << 30), days=30, now=NOW)
    async with Emulator(plan=plan, quirks=make_quirks("seen", quirks)) as emulator:
        await ListWorld(emulator, folder / str(number), dice).live()


@pytest.mark.parametrize("first", sample(range(0, WORLDS, _WORLDS_PER_TEST), _QUICK_TESTS))
async def test_what_the_list_has_the_lake_has_or_names(tmp_path: Path, first: int) -> None:
    """In a random world of nulls, misses, caches and repeated files nothing differs that is not named."""
    for number in range(first, first + _WORLDS_PER_TEST):
        await live_in_world(number, tmp_path)
