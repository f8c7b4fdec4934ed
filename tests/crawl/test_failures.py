"""Bad files, outages, deletions and contradictions are distinguished, and rejects are fetched later without loss."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec.structs import replace

from pipeline.crawl.listing import WindowReader
from pipeline.crawl.models import RefetchRequest, parse_reference
from pipeline.emulator import Emulator, make_quirks
from pipeline.errors import ProtocolError
from schemas.file_versions import Reject
from tests.crawl.crawl_harness import WITH_DETAILS, ChangingEmulator, FakeLake, differences, run_crawl

if TYPE_CHECKING:
    from pipeline.client.protocol import ListItem

SEED: Final = 21
FILES: Final = 80


def refetches(lake: FakeLake) -> list[RefetchRequest]:
    """Return the refetch requests of a later run: the rejects as the ledger stores them."""
    return [
        RefetchRequest(file_id, parse_reference(reject.document), None, reject.document)
        for file_id, reject in sorted(lake.rejects.items())
    ]


async def test_files_that_fail_while_others_succeed(lake: FakeLake) -> None:
    """Files whose detail always fails become rejects with their list item, later also alone: a probe succeeds."""
    async with Emulator(FILES, seed=SEED) as emulator:
        poison = emulator.world.pick_random(3)
        emulator.set_faults(poison=poison)
        result = await run_crawl(emulator, lake)
        assert set(lake.rejects) == set(poison)
        assert result.stats.rejects == 3
        assert all(lake.versions[key].detail is None for key in poison)
        assert all(not lake.stored[key].is_stable for key in poison)
        assert lake.watermark is not None
        assert differences(emulator, lake) == []
        alone = emulator.world.update([key for key in emulator.world.keys() if key not in poison][:1])  # noqa: SIM118
        emulator.set_faults(poison=alone)
        lake.rejects.clear()
        result = await run_crawl(emulator, lake)
        assert set(lake.rejects) == {*alone}
        assert result.details <= 6 + 3


async def test_a_reject_is_fetched_later(lake: FakeLake) -> None:
    """A reject is tried once in each later run, and is stored with the forms that only the list contains."""
    async with Emulator(FILES, seed=SEED, quirks=make_quirks("seen", {"detail_forms": "no"})) as emulator:
        poison = [row["key"] for row in emulator.truth() if row["item"]["form_submits"]][:2]
        emulator.set_faults(poison=poison)
        await run_crawl(emulator, lake)
        still = await run_crawl(emulator, lake, refetches=refetches(lake))
        assert still.stats.rejects == 2
        assert still.details <= 2 * 2 + 2
        emulator.set_faults(poison=())
        healed = await run_crawl(emulator, lake, refetches=refetches(lake))
        assert healed.details == 2
        assert lake.rejects == {}
        assert all(json.loads(lake.versions[key].list_item or b"{}")["form_submits"] for key in poison)
        assert differences(emulator, lake) == []


async def test_a_refetch_of_a_file_that_the_list_lacks(lake: FakeLake) -> None:
    """A file that is found by id but not in the list keeps its former list item."""
    async with Emulator(FILES, seed=SEED) as emulator:
        await run_crawl(emulator, lake)
        key = next(row["key"] for row in emulator.truth() if row["item"]["form_submits"])
        former = lake.versions[key].list_item
        lake.rejects[key] = Reject(key, "detail: HTTP 500", former or b"")
        emulator.world._remove_from_index(emulator.world.records[key])
        emulator.world.by_reference[emulator.world.records[key].scan_code].remove(key)
        await run_crawl(emulator, lake, refetches=refetches(lake))
        assert lake.versions[key].list_item == former
        assert lake.versions[key].detail is not None
        assert lake.rejects == {}


async def test_a_refetch_of_a_deleted_file(lake: FakeLake) -> None:
    """A reject that was deleted since gets a tombstone after two lists by its reference, which another file has too.

    A call by id that fails is no evidence.
    """
    async with Emulator(FILES, seed=SEED) as emulator:
        world = emulator.world
        gone, twin = world.pick_random(2)
        emulator.set_faults(poison=[gone])
        await run_crawl(emulator, lake)
        world.records[twin].scan_code = reference = world.records[gone].scan_code
        world.by_reference[reference].append(twin)
        world.delete([gone])
        await run_crawl(emulator, lake, refetches=[RefetchRequest(gone, reference, None, None)])
        assert lake.deleted == set()
        emulator.set_faults(poison=())
        lists = (await run_crawl(emulator, lake)).lists
        result = await run_crawl(emulator, lake, refetches=refetches(lake))
        assert (result.stats.deleted, result.lists) == (1, lists + 2)
        assert lake.deleted == {gone}


async def test_a_reject_is_tried_once_per_run(lake: FakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is both listed again and among the rejects is fetched once."""
    find = WindowReader.find_item

    async def slow(self: WindowReader, file_id: int, reference: str | None, updated: int | None) -> ListItem | None:
        await asyncio.sleep(0.3)  # by now the file is committed
        return await find(self, file_id, reference, updated)

    monkeypatch.setattr(WindowReader, "find_item", slow)
    async with Emulator(FILES, seed=SEED) as emulator:
        poison = emulator.world.pick_random(1)
        emulator.set_faults(poison=poison)
        await run_crawl(emulator, lake)
        emulator.set_faults(poison=())
        emulator.world.update(poison)
        quick = replace(WITH_DETAILS, commit_every_seconds=0.01)
        assert (await run_crawl(emulator, lake, quick, refetches=refetches(lake))).details == 1


@pytest.mark.parametrize("shape", ["404", "{}", "envelope-300"])
async def test_deleted_between_list_and_detail(lake: FakeLake, shape: str) -> None:
    """A file that is deleted before its detail is requested gets a tombstone, and the run succeeds."""
    async with ChangingEmulator(30, seed=SEED, quirks=make_quirks("seen", {"not_found": shape})) as emulator:
        victims = emulator.world.pick_random(4)

        def strike() -> None:
            if emulator.counts["detail"] == 5 and victims[0] in emulator.world.records:
                emulator.world.delete(victims)

        emulator.change = strike
        result = await run_crawl(emulator, lake, replace(WITH_DETAILS, workers=1))
        assert result.stats.deleted == len(lake.deleted)
        assert set(lake.deleted) <= set(victims)
        assert lake.deleted
        assert lake.rejects == {}
        assert lake.watermark is not None
        assert differences(emulator, lake) == []


def _deny(emulator: Emulator, denied: set[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the details of some files, or of all, not found, while lists still contain the files."""
    find = emulator.world.find

    def found(key: int) -> Any:
        return None if denied is None or key in denied else find(key)

    monkeypatch.setattr(emulator.world, "find", found)


async def test_not_found_by_id_but_listed(lake: FakeLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not found by id but listed, by its reference or else its timestamp, is stored as a reject."""
    async with Emulator(FILES, seed=SEED) as emulator:
        denied = emulator.world.pick_random(5)
        for key in denied[3:]:
            emulator.world.records[key].scan_code = ""
        _deny(emulator, set(denied), monkeypatch)
        result = await run_crawl(emulator, lake)
        assert set(lake.rejects) == set(denied)
        assert result.stats.deleted == 0
        assert lake.deleted == set()
        assert differences(emulator, lake) == []


@pytest.mark.parametrize(
    ("shape", "references"), [("{}", "found"), ("404", "lost"), ("envelope-300", "lost"), ("404", "found")]
)
async def test_no_file_is_found_by_id(
    lake: FakeLake, monkeypatch: pytest.MonkeyPatch, shape: str, references: str
) -> None:
    """If no file is found by id, the run stops soon, without tombstones and with the same watermark."""
    async with Emulator(200, seed=SEED, quirks=make_quirks("seen", {"not_found": shape})) as emulator:
        if references == "lost":
            emulator.world.by_reference.clear()
        _deny(emulator, None, monkeypatch)
        with pytest.raises(ProtocolError, match="not found by id"):
            await run_crawl(emulator, lake)
        assert lake.watermark is None
        assert lake.deleted == set()
        assert emulator.counts["detail"] < 100


async def test_details_that_never_agree_with_the_list(lake: FakeLake) -> None:
    """A detail with another timestamp is fetched again. Where all differ, only files that can still change are."""
    async with Emulator(40, seed=SEED, quirks=make_quirks("seen", {"detail_stamp": "newer"})) as emulator:
        emulator.world.touch(emulator.world.pick_random(4))
        assert 40 < (await run_crawl(emulator, lake)).details <= 85
        assert sum(not known.is_stable for known in lake.stored.values()) == 4
        assert (await run_crawl(emulator, lake)).details == 8
        assert not lake.rejects
