"""Numbered beliefs about the service: what clients of this project rely on, each a small check by HTTP alone.

They run on the emulator always. On a live service they run when SCANLAKE_LIVE_URL and SCANLAKE_LIVE_TOKEN are
set; they only read, and no belief needs a particular file to exist.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from pipeline.emulator import Emulator
from tests.emulator.http_client import INCLUDES, SEED

Ask = Callable[..., Awaitable[tuple[int, Any]]]


def _asker(session: aiohttp.ClientSession, url: str, token: str) -> Ask:
    async def ask(path: str = "/api/v2/files", *pairs: tuple[str, str]) -> tuple[int, Any]:
        params = [("token", token), *pairs]
        async with session.get(url + path, params=params, allow_redirects=False) as answer:
            is_json = "json" in answer.headers.get("Content-Type", "")
            return answer.status, await answer.json() if is_json else await answer.read()

    return ask


@pytest.fixture(params=["emulator", *(["live"] if "SCANLAKE_LIVE_URL" in os.environ else [])])
async def ask(request: pytest.FixtureRequest) -> AsyncIterator[Ask]:
    """Ask the emulator, and the live service where one is named."""
    async with aiohttp.ClientSession() as session:
        if request.param == "emulator":
            async with Emulator(files=130, seed=SEED) as emulator:
                yield _asker(session, emulator.base_url, emulator.token)
        else:
            yield _asker(session, os.environ["SCANLAKE_LIVE_URL"], os.environ["SCANLAKE_LIVE_TOKEN"])


async def test_b01_to_b03_a_list_has_50_files_or_more_without_includes(ask: Ask) -> None:
    """B01: 50 files under data are the default. B02: above 50 with include[] is 422. B03: 250 without is allowed."""
    status, body = await ask()
    assert status == 200
    assert isinstance(body["data"], list)
    assert len(body["data"]) <= 50
    include = ("include[]", "fields")
    limits = ([include, ("limit", "51")], [include, ("limit", "50")], [("limit", "250")])
    assert [(await ask("/api/v2/files", *pairs))[0] for pairs in limits] == [422, 200, 200]


async def test_b04_pages_are_numbered(ask: Ask) -> None:
    """B04: page=2 shows other files than page=1, and a page far past the end is an empty 200."""
    first = (await ask("/api/v2/files", ("limit", "2")))[1]["data"]
    second = (await ask("/api/v2/files", ("limit", "2"), ("page", "2")))[1]["data"]
    assert not {row["id"] for row in first} & {row["id"] for row in second}
    assert _is_empty_list(await ask("/api/v2/files", ("limit", "250"), ("page", "99999999")))


def _is_empty_list(reply: tuple[int, Any]) -> bool:
    """Return whether a reply is a list without files."""
    return reply[0] == 200 and reply[1]["data"] == []


async def test_b05_b06_windows_and_next_pages(ask: Ask) -> None:
    """B05: next_page_url names a page where there is more, else it is null. B06: bounds are taken in our spelling."""
    assert "page=2" in (await ask("/api/v2/files", ("limit", "2")))[1]["next_page_url"]
    reply = await ask(
        "/api/v2/files", ("updated_start", "1990-01-01T00:00:00Z"), ("updated_end", "1990-01-02T00:00:00Z")
    )
    assert _is_empty_list(reply)
    assert reply[1]["next_page_url"] is None


async def test_b07_includes_bring_their_keys(ask: Ask) -> None:
    """B07: all six includes together bring all five collections, and none of them comes unasked."""
    keys = {"uploads", "form_submits", "fields", "locations", "workflow_runs"}
    full = (await ask("/api/v2/files", ("limit", "1"), *(("include[]", name) for name in INCLUDES)))[1]["data"][0]
    bare = (await ask("/api/v2/files", ("limit", "1")))[1]["data"][0]
    assert keys <= set(full)
    assert not keys & set(bare)


async def test_b08_the_detail_has_its_schema(ask: Ask) -> None:
    """B08: the detail, wrapped or not, has the nine keys of its schema and the list item's id."""
    key = (await ask("/api/v2/files", ("limit", "1")))[1]["data"][0]["id"]
    status, body = await ask(f"/api/v2/files/{key}")
    detail = body.get("data", body)
    assert status == 200
    assert int(detail["id"]) == key
    schema = {"scan_code", "closed", "created_at", "updated_at", "uploads", "fields", "locations", "workflow_runs"}
    assert schema <= set(detail)


async def test_b09_b10_what_is_not_there_is_not_shown(ask: Ask) -> None:
    """B09: the detail of an unknown id shows no file, whatever its status. B10: an unknown reference is no error."""
    status, body = await ask("/api/v2/files/1")
    assert status in {200, 404, 410}
    assert not isinstance(body, dict) or not isinstance(body.get("id"), int)
    assert _is_empty_list(await ask("/api/v2/files", ("reference", "no-such-reference-ever")))
