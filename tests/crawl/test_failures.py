"""Poison, outage, gone and contradiction are told apart, and what was poisoned heals without loss."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.crawl.listing import Listing
from pipeline.crawl.terms import Revisit, reference_of
from pipeline.emulator import Emulator, Faults, quirks_of
from pipeline.errors import ContractBroken, ServiceUnavailable, TokenRefused
from schemas.versions import Reject
from tests.crawl.crawling import WITH_DETAILS, RestlessEmulator, Shelf, crawled, differences

if TYPE_CHECKING:
    from pipeline.service.protocol import ListItem

SEED: Final = 21
FILES: Final = 150
GONE_SHAPES: Final = (
    *("404", "410", "empty", "null", "[]", "{}", "data-null", "data-list", "envelope-300", "response-error"),
)


def revisits(shelf: Shelf) -> list[Revisit]:
    """What a later run tries again: the rejects as the ledger keeps them."""
    return [
        Revisit(file_id, reference_of(reject.document), None, reject.document)
        for file_id, reject in sorted(shelf.rejects.items())
    ]


async def test_poison() -> None:
    """Files whose detail fails every try while others succeed become rejects, with what the list says of them."""
    async with Emulator(FILES, seed=SEED) as emulator:
        poison = emulator.world.some(3)
        emulator.set_faults(poison=poison)
        shelf = Shelf()
        ran = await crawled(emulator, shelf)
        assert set(shelf.rejects) == set(poison)
        assert ran.tally.rejects == 3
        assert all(shelf.versions[key].detail is None for key in poison)
        assert all(not shelf.known[key].settled for key in poison)
        assert shelf.horizon is not None
        assert differences(emulator, shelf) == []


async def test_poison_alone() -> None:
    """A file that fails is poison when another one, asked for as a witness, succeeds, though nothing else changed."""
    async with Emulator(FILES, seed=SEED) as emulator:
        shelf = Shelf()
        await crawled(emulator, shelf)
        poison = emulator.world.update(emulator.world.some(1))
        emulator.set_faults(poison=poison)
        ran = await crawled(emulator, shelf)
        assert set(shelf.rejects) == set(poison)
        assert ran.details <= 6


async def test_poison_heals() -> None:
    """A poisoned file gets one try in each later run and heals when it can, with the forms that only the list gives."""
    async with Emulator(FILES, seed=SEED, quirks=quirks_of("seen", {"detail_forms": "no"})) as emulator:
        poison = [row["key"] for row in emulator.truth() if row["item"]["form_submits"]][:2]
        emulator.set_faults(poison=poison)
        shelf = Shelf()
        await crawled(emulator, shelf)
        still = await crawled(emulator, shelf, revisits=revisits(shelf))
        assert still.tally.rejects == 2
        assert still.details <= 2 * 2 + 2
        emulator.set_faults(poison=())
        healed = await crawled(emulator, shelf, revisits=revisits(shelf))
        assert healed.details == 2
        assert shelf.rejects == {}
        assert all(json.loads(shelf.versions[key].list_item or b"{}")["form_submits"] for key in poison)
        assert differences(emulator, shelf) == []


async def test_a_revisit_that_the_list_does_not_show() -> None:
    """A file that its id answers and the list does not show keeps the former list item's parts."""
    async with Emulator(FILES, seed=SEED) as emulator:
        shelf = Shelf()
        await crawled(emulator, shelf)
        key = next(row["key"] for row in emulator.truth() if row["item"]["form_submits"])
        former = shelf.versions[key].list_item
        shelf.rejects[key] = Reject(key, "detail: HTTP 500", former or b"")
        emulator.world._unlist(emulator.world.records[key])
        emulator.world.by_reference[emulator.world.records[key].scan_code].remove(key)
        await crawled(emulator, shelf, revisits=revisits(shelf))
        assert shelf.versions[key].list_item == former
        assert shelf.versions[key].detail is not None
        assert shelf.rejects == {}


async def test_a_revisit_of_a_file_that_is_gone() -> None:
    """A poisoned file that was deleted since is found gone by both witnesses."""
    async with Emulator(FILES, seed=SEED) as emulator:
        poison = emulator.world.some(1)
        emulator.set_faults(poison=poison)
        shelf = Shelf()
        await crawled(emulator, shelf)
        emulator.world.delete(poison)
        emulator.set_faults(poison=())
        ran = await crawled(emulator, shelf, revisits=revisits(shelf))
        assert ran.tally.gone == 1
        assert shelf.gone == set(poison)


async def test_a_poisoned_file_is_tried_once_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is listed anew and stands among the rejects as well is fetched once."""
    find = Listing.find

    async def slow(self: Listing, file_id: int, reference: str | None, updated: int | None) -> ListItem | None:
        await asyncio.sleep(0.3)  # by now the file is committed
        return await find(self, file_id, reference, updated)

    monkeypatch.setattr(Listing, "find", slow)
    async with Emulator(FILES, seed=SEED) as emulator:
        poison = emulator.world.some(1)
        emulator.set_faults(poison=poison)
        shelf = Shelf()
        await crawled(emulator, shelf)
        emulator.set_faults(poison=())
        emulator.world.update(poison)
        quick = replace(WITH_DETAILS, commit_seconds=0.01)
        assert (await crawled(emulator, shelf, quick, revisits=revisits(shelf))).details == 1


@pytest.mark.parametrize("skip", [0, 60])
async def test_an_outage_of_the_details(skip: int) -> None:
    """When no detail comes any more, at once or from some moment on, the run fails, and nobody is called poison."""
    async with Emulator(FILES, seed=SEED) as emulator:
        emulator.script("500", times=100_000, path="/api/v2/files/", skip=skip)
        shelf = Shelf()
        with pytest.raises(ServiceUnavailable):
            await crawled(emulator, shelf, attempts=1)
        assert shelf.rejects == {}
        assert shelf.horizon is None
        assert emulator.counts["detail"] < skip + 60
        emulator.faults.clear()
        await crawled(emulator, shelf)
        assert differences(emulator, shelf) == []


async def test_an_outage_of_everything() -> None:
    """When nothing answers any more the run fails and keeps what was whole."""
    async with Emulator(FILES, seed=SEED) as emulator:
        emulator.script("503", times=100_000, skip=70)
        shelf = Shelf()
        with pytest.raises(ServiceUnavailable):
            await crawled(emulator, shelf, attempts=1)
        assert shelf.horizon is None
        assert len(shelf.known) > 20


async def test_random_errors_are_no_poison() -> None:
    """Errors that strike by chance are repeated away; at the worst a file is a reject that heals in the next run."""
    async with Emulator(60, seed=SEED, faults=Faults(error_share=0.1, error_statuses=(500, 502))) as emulator:
        shelf = Shelf()
        await crawled(emulator, shelf, attempts=4, max_seconds=30.0)
        assert len(shelf.known) == 60
        emulator.faults.clear()
        await crawled(emulator, shelf, revisits=revisits(shelf))
        assert shelf.rejects == {}
        assert differences(emulator, shelf) == []


@pytest.mark.parametrize("shape", GONE_SHAPES)
async def test_deleted_between_list_and_detail(shape: str) -> None:
    """A file that is deleted before its detail is asked for is counted as gone, and holds nothing up."""
    async with RestlessEmulator(60, seed=SEED, quirks=quirks_of("seen", {"gone": shape})) as emulator:
        victims = emulator.world.some(4)

        def strike() -> None:
            if emulator.counts["detail"] == 5 and victims[0] in emulator.world.records:
                emulator.world.delete(victims)

        emulator.change = strike
        shelf = Shelf()
        ran = await crawled(emulator, shelf, replace(WITH_DETAILS, workers=1))
        assert ran.tally.gone == len(shelf.gone)
        assert set(shelf.gone) <= set(victims)
        assert shelf.gone
        assert shelf.rejects == {}
        assert shelf.horizon is not None
        assert differences(emulator, shelf) == []


async def _deny(emulator: Emulator, denied: set[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer the details of some files, or of all, as if they were not there, while lists show them."""
    find = emulator.world.find

    def found(key: int) -> Any:
        return None if denied is None or key in denied else find(key)

    monkeypatch.setattr(emulator.world, "find", found)


async def test_gone_by_id_and_yet_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that its id denies and the list still shows is kept from the list, as a reject."""
    async with Emulator(FILES, seed=SEED) as emulator:
        denied = set(emulator.world.some(5))
        await _deny(emulator, denied, monkeypatch)
        shelf = Shelf()
        ran = await crawled(emulator, shelf)
        assert set(shelf.rejects) == denied
        assert ran.tally.gone == 0
        assert shelf.gone == set()
        assert differences(emulator, shelf) == []


async def test_listed_without_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a file without a reference: it is looked for in the second of its stamp."""
    async with Emulator(FILES, seed=SEED) as emulator:
        denied = set(emulator.world.some(5))
        for key in denied:
            emulator.world.records[key].scan_code = ""
        await _deny(emulator, denied, monkeypatch)
        shelf = Shelf()
        await crawled(emulator, shelf)
        assert set(shelf.rejects) == denied
        assert shelf.gone == set()


@pytest.mark.parametrize("shape", ["{}", "404", "envelope-300"])
@pytest.mark.parametrize("references", ["found", "lost"])
async def test_nothing_is_there_by_id(monkeypatch: pytest.MonkeyPatch, shape: str, references: str) -> None:
    """A service that denies every file by id stops the run soon, with nothing gone and the horizon where it was."""
    async with Emulator(400, seed=SEED, quirks=quirks_of("seen", {"gone": shape})) as emulator:
        if references == "lost":
            emulator.world.by_reference.clear()
        await _deny(emulator, None, monkeypatch)
        shelf = Shelf()
        with pytest.raises(ContractBroken, match="gone"):
            await crawled(emulator, shelf)
        assert shelf.horizon is None
        assert shelf.gone == set()
        assert emulator.counts["detail"] < 100


async def test_the_token_is_refused_in_the_middle() -> None:
    """A refused token ends the crawl after a handful of requests, as that error and no group of errors."""
    async with Emulator(FILES, seed=SEED) as emulator:
        emulator.script("401", times=100_000, skip=60)
        shelf = Shelf()
        with pytest.raises(TokenRefused):
            await crawled(emulator, shelf)
        assert emulator.statuses[401] <= 40


async def test_details_that_never_agree_with_the_list() -> None:
    """A detail with another stamp is fetched once more, and the file is looked at again in the next run."""
    async with Emulator(40, seed=SEED, quirks=quirks_of("seen", {"detail_stamp": "newer"})) as emulator:
        emulator.world.touch(emulator.world.some(4))
        shelf = Shelf()
        assert (await crawled(emulator, shelf)).details == 80
        assert not any(known.settled for known in shelf.known.values())
        assert (await crawled(emulator, shelf)).details == 8
