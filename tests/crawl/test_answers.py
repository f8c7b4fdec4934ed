"""Whatever the list leaves open, it is read to its end; a list that cannot be complete is said to be so, soon."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipeline.crawl.crawler import Crawl
from pipeline.crawl.windows import EVERYTHING, Window
from pipeline.emulator import Emulator, quirks_of
from pipeline.errors import ContractBroken
from pipeline.service.client import Client
from schemas.instants import SECOND, from_datetime
from tests.crawl.crawling import LIST_ONLY, WITH_DETAILS, Shelf, crawled, differences
from tests.service.scripted import Asked, answer, scripted

if TYPE_CHECKING:
    from collections.abc import Callable

SEED: Final = 9
FILES: Final = 330

ANSWERS: Final[list[dict[str, Any]]] = [
    *({"paging": paging} for paging in ("top", "meta", "pagination", "links", "none", "bare")),
    *({"paging": paging, "next_page_url": "null"} for paging in ("top", "meta", "none")),
    *({"paging": paging, "next_page_url": "absent"} for paging in ("top", "none")),
    *({"next_page_url": style} for style in ("complete", "relative", "other-host")),
    *({"page_cap": cap} for cap in (20, 40, 3)),
    *({"page_cap": 20, "paging": paging} for paging in ("none", "bare", "links")),
    {"page_cap": 20, "paging": "none", "next_page_url": "null"},
    {"page_cap": 20, "paging": "bare", "order": "shuffled"},
    *({"order": order} for order in ("updated-asc", "id-asc", "id-desc", "shuffled")),
    {"start_bound": "exclusive"},
    {"end_bound": "exclusive"},
    {"start_bound": "exclusive", "end_bound": "exclusive", "precision": "micros"},
    {"precision": "micros"},
    {"precision": "millis", "page_cap": 20},
    {"updated_in_list": "absent"},
    {"updated_in_list": "absent", "paging": "bare", "order": "shuffled"},
    {"updated_in_list": "absent", "paging": "none", "page_cap": 20},
    {"date_header": "off"},
    {"late_commit_seconds": 1.0},
    {"instances": "on"},
    {"instances": "on", "order": "shuffled", "ids": "string"},
    {"ids": "string"},
    {"per_page": "integer"},
    {"times": "space"},
    {"image_urls": "fresh"},
]


@pytest.mark.parametrize("settings", ANSWERS, ids=lambda settings: "-".join(str(each) for each in settings.values()))
async def test_every_answer_of_the_list(settings: dict[str, Any]) -> None:
    """All files arrive, and after changes all changes, whatever the service answers where the interface is silent."""
    async with Emulator(FILES, seed=SEED, quirks=quirks_of("seen", settings)) as emulator:
        shelf = Shelf()
        first = await crawled(emulator, shelf, LIST_ONLY)
        assert differences(emulator, shelf) == []
        assert len(shelf.known) == FILES
        assert not first.unproven
        page = emulator.quirks.page_cap or 50
        assert first.lists <= 8 * FILES / page + 40
        emulator.world.update(emulator.world.some(20))
        emulator.world.create(60)
        emulator.world.clock.advance(2)
        await crawled(emulator, shelf, LIST_ONLY)
        assert differences(emulator, shelf) == []
        assert emulator.strays == []


@pytest.mark.parametrize("profile", ["seen", "plain", "sparse", "hostile", "instances"])
async def test_every_profile(profile: str) -> None:
    """The same for answers that come together, with details."""
    async with Emulator(FILES, seed=SEED, quirks=quirks_of(profile)) as emulator:
        shelf = Shelf()
        await crawled(emulator, shelf)
        emulator.world.update(emulator.world.some(20))
        emulator.world.create(60)
        emulator.world.clock.advance(3)
        await crawled(emulator, shelf)
        assert differences(emulator, shelf) == []
        assert shelf.rejects == {}


async def test_instances_that_come_one_after_the_other() -> None:
    """A second instance is told apart even when the first, with its file's own number, came in another run."""

    def item(file_id: int, stamp: str) -> dict[str, Any]:
        return {"id": 7, "file_id": file_id, "scan_code": "SC", "updated_at": stamp}

    held: list[dict[str, Any]] = [item(7, "2024-01-01T00:00:00Z")]
    async with scripted(_service(lambda: held)) as server, Client(server.base, "secret") as client:
        shelf = Shelf()
        await crawled(_At(server.base), shelf, LIST_ONLY, client=client)  # type: ignore[arg-type]
        assert set(shelf.known) == {7}
        held.append(item(8, "2024-01-02T00:00:00Z"))
        second = Window(from_datetime(datetime(2024, 1, 2, tzinfo=UTC)) // SECOND, None)
        await crawled(_At(server.base), shelf, LIST_ONLY, windows=[second], client=client)  # type: ignore[arg-type]
        assert set(shelf.known) == {7, 8}
        assert shelf.identity == "file_id"


class _At:
    """Where a scripted service is."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.token = "secret"


def _service(held: Callable[[], list[dict[str, Any]]]) -> Callable[[Asked], bytes]:
    """A service that gives all it holds in one page, within the bounds asked for."""

    def say(asked: Asked) -> bytes:
        low, high = asked.query.get("updated_start", ""), asked.query.get("updated_end", "9")
        shown = [item for item in held() if low <= item["updated_at"] <= high]
        return answer({"data": shown, "total": len(shown), "next_page_url": None})

    return say


async def test_windows_ignored() -> None:
    """A service that does not heed the update filters breaks the contract, and that is found after a few calls."""
    for shown in ("shown", "absent"):
        quirks = quirks_of("seen", {"windows": "ignored", "updated_in_list": shown})
        async with Emulator(FILES, seed=SEED, quirks=quirks) as emulator:
            with pytest.raises(ContractBroken, match="updated_start"):
                await crawled(emulator, Shelf(), LIST_ONLY)
            assert emulator.counts["list"] < 25


ROUND: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "two pages for ever": lambda page: {"data": _page(page % 2), "next_page_url": "x"},
    "one page for ever": lambda _: {"data": _page(0), "next_page_url": "x"},
    "empty pages": lambda _: {"data": [], "next_page_url": "x"},
    "a count that is a lie": lambda page: {"data": _page(0) if page == 1 else [], "total": 10**9},
    "the page is ignored": lambda _: {"data": _page(0), "total": 120, "current_page": 1, "last_page": 3},
    "a page that says it was the first": lambda page: {"data": _page(page % 3), "current_page": 1, "last_page": 9},
}


def _page(number: int) -> list[dict[str, Any]]:
    return [{"id": number * 50 + n, "scan_code": f"S{n}", "updated_at": "2024-05-05T05:05:05Z"} for n in range(50)]


@pytest.mark.parametrize("case", ROUND)
async def test_a_list_without_an_end(case: str) -> None:
    """A list that goes round in circles, or promises more for ever, breaks the contract after some calls."""

    def say(asked: Asked) -> bytes:
        return answer(ROUND[case](int(asked.query.get("page", "1"))))

    async with scripted(say) as server, Client(server.base, "secret") as client:
        crawl = Crawl(client, LIST_ONLY, run_id="r", lookup=lambda _: {}, now_us=lambda: 1_800_000_000 * SECOND)
        with pytest.raises(ContractBroken):
            await crawl.run([EVERYTHING], _nowhere)
        assert len(server.asked) < 200, case


async def _nowhere(_: object) -> None:
    pass


async def test_a_document_without_an_id() -> None:
    """List items without a usable id become rejects of their window, and hold nothing up."""
    stamp = "2024-05-05T05:05:05Z"
    odd: list[dict[str, Any]] = [
        {"id": None, "updated_at": stamp},
        {"scan_code": "no id", "updated_at": stamp},
        {"id": "x7", "updated_at": stamp},
        {"id": 1.5, "updated_at": stamp},
    ]
    good = [{"id": str(10**18 + n), "scan_code": "S", "updated_at": stamp} for n in range(3)]
    async with scripted(_service(lambda: [*odd, *good])) as server, Client(server.base, "secret") as client:
        shelf = Shelf()
        ran = await crawled(_At(server.base), shelf, LIST_ONLY, client=client)  # type: ignore[arg-type]
        assert set(shelf.known) == {10**18, 10**18 + 1, 10**18 + 2}
        assert sorted(reject.document for reject in shelf.nameless) == sorted(json.dumps(each).encode() for each in odd)
        assert ran.tally.rejects == 4
        with pytest.raises(ContractBroken, match="max_rejects"):
            await crawled(_At(server.base), Shelf(), replace(LIST_ONLY, max_rejects=3), client=client)  # type: ignore[arg-type]


async def test_the_first_page_of_a_cut_window_is_taken() -> None:
    """What the first page of a window showed is fetched at once, and not once more for the windows it is cut into."""
    async with Emulator(FILES, seed=SEED) as emulator:
        shelf = Shelf()
        ran = await crawled(emulator, shelf, WITH_DETAILS)
        assert ran.details == FILES
        assert ran.tally.expanded == FILES
