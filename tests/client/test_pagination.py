"""Whether there is a next page, in every spelling, and files of all pages as their bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.client import Client
from pipeline.client.protocol import Response, parse_list
from pipeline.emulator import Emulator, make_quirks
from schemas.file_query import FileQuery
from tests.rows import every


def page_of(count: int, asked: int = 1, **envelope: Any) -> Any:
    """Return the page of an answer with `count` items."""
    body = {"data": [{"id": number} for number in range(count)], **envelope}
    return parse_list(Response(200, {}, json.dumps(body).encode()), asked)


@every(
    ("envelope", "more", "is_too_low"),
    [
        *(({**envelope}, None, False) for envelope in ({}, {"per_page": 50}, {"total": True})),
        *(({"next_page_url": link}, False, False) for link in (None, "")),
        *(({"next_page_url": link}, True, False) for link in ("?page=2", "//evil.example/?p=2", "file:///etc/passwd")),
        *(({"links": {"next": None}}, False, False), ({"links": {"next": "/x?page=2"}}, True, False)),
        ({"links": [{"label": "Next &raquo;", "url": None}]}, False, False),
        ({"meta": {"links": [{"label": "Next &raquo;", "url": "x"}]}}, True, False),
        ({"meta": {"pagination": {"total": "3", "total_pages": 2, "current_page": 1}}}, True, False),
        *(({"pagination": {"total": 2}}, False, False), ({"total": "2"}, False, False), ({"total": 3}, True, False)),
        *(({"last_page": "1", "current_page": "1"}, False, False), ({"last_page": 2}, True, False)),
        ({"total": -3, "last_page": "many", "per_page": None}, None, False),
        ({"next_page_url": None, "total": 5}, True, False),  # the link is null: the safe side
        # Of counts that contradict each other the safe one is right.
        *(({"total": n, "last_page": last, "next_page_url": None}, True, False) for n, last in ((5, 1), (2, 3))),
        # Counts below the pages so far show no end, nor does a link that is null beside them.
        ({"total": 1, "last_page": 1, "next_page_url": "?page=2"}, True, True),
        ({"total": 3, "current_page": 2, "per_page": 2, "next_page_url": None}, None, True),
        *(({"total": 1, "last_page": last, "next_page_url": None}, None, True) for last in (1, 2)),
        *(({"total": 0}, None, True), ({"last_page": 0, "next_page_url": None}, None, True)),
    ],
)
def test_hints(envelope: dict[str, Any], more: bool | None, is_too_low: bool) -> None:  # noqa: FBT001 - a table
    """Each hint is read; without any hint, or with counts that are too low, a next page is unknown."""
    page = page_of(2, **envelope)
    assert page.has_next == more
    assert not is_too_low or page.total is None


@given(
    st.integers(1, 9), st.integers(0, 3), st.integers(0, 30), st.sampled_from([int, str]),
    st.sampled_from(["", "meta", "pagination", "meta pagination", "paging"]),
)  # fmt: skip
def test_counts_are_read_in_any_nested_object(number: int, last: int, more: int, as_sent: Any, place: str) -> None:
    """A total above the items so far, or a later last page, means a next page, wherever they are, as number or text."""
    items = 3 if more else last
    total = 3 * (number - 1) + items + more
    sent = {"total": total, "last_page": -(-total // 3), "per_page": 3, "current_page": number}
    for left_out in ("total", "last_page"):
        counts: dict[str, Any] = {key: as_sent(value) for key, value in sent.items() if key != left_out}
        for part in reversed(place.split()):
            counts = {part: counts}
        page = page_of(items, asked=number, **counts)
        assert page.total == (None if left_out == "total" else total)
        assert page.has_next == (more > 0)


@given(
    st.dictionaries(
        st.sampled_from(["total", "last_page", "per_page", "next_page_url", "links", "meta", "to"]),
        st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2) | st.booleans(),
    )
)
def test_no_hint_is_fatal(envelope: dict[str, Any]) -> None:
    """The items are read whatever the pagination keys contain."""
    assert len(page_of(3, **envelope).items) == 3


pytestmark = pytest.mark.virtual_time
SEED = 11


@pytest.mark.parametrize(
    ("files", "limit", "settings", "fewest", "most"),
    [(200, 20, {"order": "shuffled"}, 21, 199), (130, 250, {"paging": "bare", "page_cap": 40}, 130, 130)],
    ids=["overlapping pages", "short pages without hints"],
)
async def test_no_file_comes_twice(files: int, limit: int, settings: dict[str, Any], fewest: int, most: int) -> None:
    """Pages in random order overlap; a list of short pages without any hint is read until a page is empty."""
    async with (
        Emulator(files, seed=SEED, quirks=make_quirks(settings=settings)) as emulator,
        Client(emulator.base_url, emulator.token) as client,
    ):
        ids = [file.id async for page in client.iter_pages(FileQuery(limit=limit)) for file in page.items]
        assert fewest <= len(set(ids)) == len(ids) <= most
        assert emulator.counts["list"] == (10 if limit == 20 else 5)


async def test_instances_that_share_an_id_are_different_files() -> None:
    """Two entries with one id and two instance ids are two files."""
    quirks = make_quirks("instances")
    async with Emulator(120, seed=SEED, quirks=quirks) as emulator, Client(emulator.base_url, emulator.token) as client:
        files = [file async for page in client.iter_pages(FileQuery()) for file in page.items]
        assert len(files) == 120
        assert len({file.id for file in files}) < 120
        assert {file.instance_id for file in files} == {each["key"] for each in emulator.truth()}
