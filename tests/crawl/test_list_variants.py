"""Every variant of the list is read completely; a list that cannot be complete is an error soon."""

from __future__ import annotations

import json
import tracemalloc
from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from msgspec.structs import replace

from pipeline.client.client import Client
from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import ListItem, ListPage
from pipeline.crawl import listing
from pipeline.crawl.crawler import Crawler
from pipeline.crawl.listing import WindowReader
from pipeline.crawl.windows import ALL_TIME, Window
from pipeline.emulator import Emulator, make_quirks
from pipeline.errors import ProtocolError
from schemas.file_query import FileQuery
from schemas.timestamps import SECOND, format_instant, from_datetime
from tests.client.scripted_server import Asked, answer, scripted
from tests.crawl.crawl_harness import LIST_ONLY, FakeLake, crawl_exactly, know_nothing, run_crawl
from tests.soaking import SOAKING, draw_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.crawl.listing import WindowResult
    from pipeline.crawl.models import CrawlOptions, Identity
    from tests.client.scripted_server import Scripted
    from tests.crawl.crawl_harness import CrawlRun

SEED: Final = 9
FILES: Final = 110
_SECOND: Final = 1_714_885_505  # 2024-05-05T05:05:05Z

_NONE: Final[dict[str, Any]] = {"paging": "none"}
_BARE: Final[dict[str, Any]] = {"paging": "bare", "order": "shuffled"}
_NO_NEXT: Final[dict[str, Any]] = {"next_page_url": "null"}
ANSWERS: Final[list[dict[str, Any]]] = [
    *({"paging": "top", "order": "updated-asc"}, {"paging": "meta", "order": "id-asc"}),
    *({"paging": "pagination", "order": "id-desc"}, {"paging": "links", "ids": "string"}),
    *(_NONE | {"per_page": "integer"}, {"paging": "bare", "times": "space"}),
    *(
        {"paging": "top", "start_bound": "exclusive"} | _NO_NEXT,
        {"paging": "meta", "end_bound": "exclusive"} | _NO_NEXT,
    ),
    _NONE | _NO_NEXT | {"start_bound": "exclusive", "end_bound": "exclusive"},
    {"paging": "top", "next_page_url": "absent", "order": "shuffled"},
    _NONE | {"next_page_url": "absent", "date_header": "off"},
    *({"next_page_url": "complete", "precision": "micros"}, {"next_page_url": "relative", "late_commit_seconds": 1.0}),
    *({"next_page_url": "other-host", "image_urls": "fresh"}, {"page_cap": 3}, {"page_cap": 40, "precision": "millis"}),
    *({"page_cap": 20} | settings for settings in ({"paging": "links"}, _NONE | _NO_NEXT, _BARE)),
    *({"updated_in_list": "absent"} | settings for settings in ({}, _BARE, _NONE | {"page_cap": 20})),
    {"instances": "on", "order": "shuffled", "ids": "string"},
]


@pytest.mark.parametrize(
    ("settings", "client_options"),
    [
        *((settings, {}) for settings in ANSWERS),
        *(
            ({"paging": "top"} | settings, {"max_body_bytes": 70_000})
            for settings in ({}, _BARE, {"page_cap": 20} | _NONE)
        ),
        *((settings, {"max_body_bytes": 200_000}) for settings in (_NONE | _NO_NEXT, {"updated_in_list": "absent"})),
    ],
    ids=lambda values: "-".join(map(str, values.values())),
)
async def test_every_answer_of_the_list(
    lake: FakeLake, settings: dict[str, Any], client_options: dict[str, Any]
) -> None:
    """All files and later changes arrive, whatever the interface leaves open, and if pages are too large."""
    async with Emulator(FILES, seed=SEED, quirks=make_quirks("seen", settings)) as emulator:
        first = await crawl_exactly(emulator, lake, LIST_ONLY, **client_options)
        assert len(lake.stored) == FILES
        assert not first.inconsistent
        assert client_options or first.lists <= 8 * FILES / (emulator.quirks.page_cap or 50) + 40
        emulator.world.update(emulator.world.pick_random(20))
        emulator.world.create(60)
        emulator.world.clock.advance(3)
        await crawl_exactly(emulator, lake, LIST_ONLY, **client_options)
        assert lake.rejects == {}
        assert emulator.strays == []


async def test_one_file_is_too_large() -> None:
    """A list item that alone is too large is an error that names the setting, after a few calls."""
    async with Emulator(FILES, seed=SEED) as emulator:
        with pytest.raises(RetriesExhaustedError, match="more than 700 bytes") as raised:
            await run_crawl(emulator, FakeLake(), LIST_ONLY, max_body_bytes=700)
        assert "`includes`" in raised.value.hint
        assert emulator.requests < 40


async def test_instances_that_come_one_after_the_other(lake: FakeLake) -> None:
    """A second instance is a file of its own, even if the first was fetched in an earlier run."""

    def item(file_id: int, stamp: str) -> dict[str, Any]:
        return {"id": 7, "file_id": file_id, "scan_code": "SC", "updated_at": stamp}

    held: list[dict[str, Any]] = [item(7, "2024-01-01T00:00:00Z")]
    async with scripted(_service(lambda: held)) as server, Client(server.base, "secret") as client:
        await _crawl(server, client, lake, LIST_ONLY)
        assert set(lake.stored) == {7}
        held.append(item(8, "2024-01-02T00:00:00Z"))
        second = Window(from_datetime(datetime(2024, 1, 2, tzinfo=UTC)) // SECOND, None)
        await _crawl(server, client, lake, LIST_ONLY, windows=[second])
        assert set(lake.stored) == {7, 8}
        assert lake.identity == "file_id"


async def _crawl(server: Scripted, client: Client, lake: FakeLake, options: CrawlOptions, **more: Any) -> CrawlRun:
    """Crawl a scripted service."""
    address = SimpleNamespace(base_url=server.base, token="secret")
    return await run_crawl(cast("Emulator", address), lake, options, client=client, **more)


def _service(
    held: Callable[[], list[dict[str, Any]]], count: Callable[[int], int] = lambda files: files
) -> Callable[[Asked], bytes]:
    """Return a service with files within bounds, whose total is a function of their number."""

    def respond(asked: Asked) -> bytes:
        low, high = asked.query.get("updated_start", ""), asked.query.get("updated_end", "9")
        shown = [item for item in held() if low <= item["updated_at"] <= high]
        size, page = int(asked.query["limit"]), int(asked.query.get("page", "1"))
        return answer({"data": shown[size * (page - 1) : size * page], "total": count(len(shown))})

    return respond


_TOTALS: Final = ("none", "exact", "of the page", "one more", "twice", "constant", "zero", "a fraction")


def _odd_service(
    held: list[dict[str, Any]], page_size: int, total: str, link: str, per_page: int | None
) -> Callable[[Asked], bytes]:
    """Return a service with smaller pages than asked for, odd counts, and a link that is right, null or absent."""

    def respond(asked: Asked) -> bytes:
        low, high = asked.query.get("updated_start", ""), asked.query.get("updated_end", "9")
        shown = [item for item in held if low <= item["updated_at"] <= high]
        size, page = min(page_size, int(asked.query["limit"])), int(asked.query.get("page", "1"))
        items = shown[size * (page - 1) : size * page]
        count = len(shown)
        totals = dict(zip(_TOTALS, (None, count, len(items), count + 1, 2 * count, 40, 0, float(count)), strict=True))
        body: dict[str, Any] = {"data": items, "total": totals[total]}
        if per_page is not None:
            body["per_page"] = size if per_page < 0 else per_page
        if link != "absent":
            is_last = link == "null" or size * page >= len(shown)
            body["next_page_url"] = None if is_last else f"/files?page={page + 1}"
        return answer(body)

    return respond


async def test_all_files_are_found_whatever_is_counted() -> None:
    """Every file is listed for any page size, counts and link of a service that ignores no page."""
    random = Random(draw_seed("test_all_files_are_found_whatever_is_counted"))
    for _ in range(500 if SOAKING else 20):
        files, page_size = random.choice([5, 20, 21, 49, 50, 51, 100, 101, 250, 251]), random.choice([10, 20, 25, 50])
        total, link, step = random.choice(_TOTALS), random.choice(["right", "null", "absent"]), random.choice([0, 60])
        per_page = random.choice([None, 0, 1, -1]) if total in {"none", "exact", "a fraction"} else None
        starts = [1_700_000_000 * SECOND + SECOND * (number * step or number // 7) for number in range(files)]
        held = [{"id": number, "updated_at": format_instant(at)} for number, at in enumerate(starts, start=1)]
        lake = FakeLake()
        async with (
            scripted(_odd_service(held, page_size, total, link, per_page)) as server,
            Client(server.base, "secret") as client,
        ):
            await client.list_files(FileQuery(limit=1))
            await _crawl(server, client, lake, LIST_ONLY)
        assert len(lake.stored) == files, (files, page_size, total, link, step, per_page)


async def test_windows_ignored() -> None:
    """A service that ignores the update filters is a protocol error after a few calls."""
    for shown in ("shown", "absent"):
        quirks = make_quirks("seen", {"windows": "ignored", "updated_in_list": shown})
        async with Emulator(FILES, seed=SEED, quirks=quirks) as emulator:
            with pytest.raises(ProtocolError, match="updated_start"):
                await run_crawl(emulator, FakeLake(), LIST_ONLY)
            assert emulator.counts["list"] < 25


ROUND: Final[dict[str, tuple[str, Callable[[int], dict[str, Any]]]]] = {
    "two pages without end": ("page 3 repeats", lambda page: {"data": _page(page % 2), "next_page_url": "x"}),
    "one page without end": ("page 2 repeats", lambda _: {"data": _page(0), "next_page_url": "x"}),
    "new pages without end": ("page 40 of one list", lambda page: {"data": _page(page), "next_page_url": "x"}),
    "empty pages": ("3 empty pages", lambda _: {"data": [], "next_page_url": "x"}),
    "empty pages at the end": (
        "3 empty pages",
        lambda page: {"data": _page(0) if page == 1 else [], "next_page_url": "x"},
    ),
    "the page is ignored": (
        "page 3 repeats",
        lambda _: {"data": _page(0), "total": 120, "current_page": 1, "last_page": 3},
    ),
    "a wrong page number": (
        "page 4 repeats",
        lambda page: {"data": _page(page % 3), "current_page": 1, "last_page": 9},
    ),
}


def _page(number: int) -> list[dict[str, Any]]:
    return [{"id": number * 50 + n, "scan_code": f"S{n}", "updated_at": "2024-05-05T05:05:05Z"} for n in range(50)]


@pytest.mark.parametrize("case", ROUND)
async def test_a_list_without_an_end(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that repeats its pages, or announces pages without end, is a protocol error after some calls.

    In a window that cannot be split the error says why.
    """
    monkeypatch.setattr(listing, "_MAX_PAGES", 40)
    monkeypatch.setattr(listing, "_MAX_SAMPLED_FILES", 1_000)
    reason, page = ROUND[case]

    def respond(asked: Asked) -> bytes:
        return answer(page(int(asked.query.get("page", "1"))))

    for window, message in ((ALL_TIME, "GET /files"), (Window(_SECOND - 1, _SECOND + 2), f"GET /files: {reason}")):
        async with scripted(respond) as server, Client(server.base, "secret") as client:
            crawl = Crawler(client, LIST_ONLY, run_id="r", lookup=know_nothing)
            with pytest.raises(ProtocolError, match=message):
                await crawl.run([window], _nowhere)
            assert len(server.asked) < 50, case


@pytest.mark.parametrize(("files", "count"), [(300, lambda files: 100 * files), (51, lambda files: files - 1)])
async def test_a_total_that_is_wrong(lake: FakeLake, files: int, count: Callable[[int], int]) -> None:
    """A sampled list with fewer files than its total ends there, a full page with its total does not end the list."""
    held: list[dict[str, Any]] = [
        {"id": n, "scan_code": f"S{n}", "updated_at": f"2024-{1 + n // 28:02}-{1 + n % 28:02}T00:00:00Z"}
        for n in range(files)
    ]

    async with scripted(_service(lambda: held, count)) as server, Client(server.base, "secret") as client:
        await client.list_files(FileQuery(limit=1))
        await _crawl(server, client, lake, LIST_ONLY)
        assert set(lake.stored) == set(range(files))
        assert len(server.asked) < 120


@pytest.mark.parametrize(("identity", "is_found"), [("id", True), ("file_id", False)])
async def test_a_number_that_is_the_id_of_another_file(identity: Identity, is_found: bool) -> None:  # noqa: FBT001
    """If instances are the keys, a file's number finds no other file by its id; a list that is not filtered ends."""
    pages = [{"data": [{"id": 7, "file_id": 8, "scan_code": "S1"}]}, {"data": _page(1), "next_page_url": "x"}]
    async with scripted([answer(page) for page in pages]) as server, Client(server.base, "secret") as client:
        reader = WindowReader(client, replace(LIST_ONLY, identity=identity), lambda: 0)
        assert (await reader.find_item(7, "S1", None) is not None) == is_found
        asked_before = len(server.asked)
        assert await reader.find_item(7, "S999", None) is None
        assert len(server.asked) == asked_before + 1


async def test_files_that_only_the_total_has() -> None:
    """A window whose total counts files that no page has is read whole, and not split."""

    def respond(asked: Asked) -> bytes:
        return answer({"data": _page(0)[:20] if asked.query.get("page", "1") == "1" else [], "total": 90})

    async with scripted(respond) as server, Client(server.base, "secret") as client:
        result = await WindowReader(client, LIST_ONLY, lambda: 0).read(ALL_TIME)
        assert (len(result.items), result.sub_windows, len(server.asked)) == (20, (), 4)
        result = await WindowReader(client, LIST_ONLY, lambda: 0).read(Window(_SECOND - 1, _SECOND + 2))
        assert (len(result.items), result.sub_windows, result.is_consistent) == (20, (), True)


_Pages = tuple[int, int | None]
"""Files of a list without a total, and the page that all pages from it on repeat."""


@pytest.mark.parametrize(
    ("pages", "calls", "sub_windows"), [((30_000, None), 81, 409), ((30_000, 1), 3, 11), ((2_000, 4), 6, 26)], ids=str
)
async def test_a_sample_of_a_list_without_a_total(pages: _Pages, calls: int, sub_windows: int) -> None:
    """A sample ends at a limit of files or at a repeated page, splits the window, and keeps no files in memory."""
    asked: list[int] = []
    tracemalloc.start()
    try:
        result = await _read_long_list(pages, asked)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(asked), len(result.sub_windows)) == (calls, sub_windows)
    assert peak_bytes < 8_000_000  # the sampled files have 20,000,000


async def test_a_sample_that_is_refused() -> None:
    """A page of a sample that is no list of files is a protocol error, not the end of the sample."""
    with pytest.raises(ProtocolError, match="no list"):
        await _read_long_list((30_000, None), [], refused_call=3)


async def _read_long_list(pages: _Pages, asked: list[int], refused_call: int | None = None) -> WindowResult:
    files, repeated = pages

    async def list_files(query: FileQuery, page: int = 1) -> ListPage:
        asked.append(page)
        if len(asked) == refused_call:
            raise ProtocolError("GET /files: no list.")
        number = min(page, repeated or page)
        ids = range(query.page_size * (number - 1), min(query.page_size * number, files))
        items = tuple(ListItem(n, None, (_SECOND + 3 * n) * SECOND, bytes(1_000)) for n in ids)
        has_next = ids.stop < files
        return ListPage(items, None, has_next, has_next)

    client = SimpleNamespace(list_files=list_files, has_announced_next=True, has_linked_next=True)
    return await WindowReader(cast("Client", client), LIST_ONLY, lambda: 2 * _SECOND).read(ALL_TIME)


async def _nowhere(_: object) -> None:
    pass


async def test_a_document_without_an_id(lake: FakeLake) -> None:
    """List items without a usable id become rejects of their window, and the run succeeds."""
    stamp = {"updated_at": "2024-05-05T05:05:05Z"}
    odd: list[dict[str, Any]] = [{"id": None} | stamp, stamp, {"id": "x7"} | stamp, {"id": 1.5} | stamp]
    good = [{"id": str(10**18 + n), "scan_code": "S"} | stamp for n in range(3)]
    async with scripted(_service(lambda: [*odd, *good])) as server, Client(server.base, "secret") as client:
        result = await _crawl(server, client, lake, LIST_ONLY)
        assert set(lake.stored) == {10**18, 10**18 + 1, 10**18 + 2}
        sent = sorted(json.dumps(item).encode() for item in odd)
        assert sorted(reject.document for reject in lake.rejects_without_id) == sent
        assert result.stats.rejects == 4
