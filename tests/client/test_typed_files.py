"""What a user of the client gets: files as typed objects."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.client import Client, File, Upload
from pipeline.emulator import Emulator, make_quirks
from schemas.requests import FileQuery
from schemas.timestamps import to_datetime

pytestmark = pytest.mark.virtual_time
SEED = 11


async def test_a_search_yields_typed_files_with_their_children() -> None:
    """Each file of all pages comes once, as a `File` with typed children and instants."""
    async with Emulator(130, seed=SEED) as emulator, Client(emulator.base_url, emulator.token) as client:
        files = [file async for file in client.search_files(FileQuery(include=("uploads", "workflows")))]
        truth = {file["id"]: file for file in emulator.truth()}
    assert {file.id for file in files} == set(truth)
    assert len(files) == 130
    first = next(file for file in files if file.uploads)
    assert first.id is not None
    assert isinstance(first.uploads[0], Upload)
    assert [upload.id for upload in first.uploads] == [each["id"] for each in truth[first.id]["item"]["uploads"]]
    assert first.updated_at == truth[first.id]["updated"]
    assert first.updated_at is not None
    assert to_datetime(first.updated_at).tzinfo is not None


async def test_reading_a_file_gives_a_typed_file_or_none() -> None:
    """`read_file` returns the whole file; None for a file that the service does not have."""
    async with Emulator(20, seed=SEED) as emulator, Client(emulator.base_url, emulator.token) as client:
        truth = next(each for each in emulator.truth() if each["detail"]["uploads"])
        file = await client.read_file(truth["id"])
        assert isinstance(file, File)
        assert file.scan_code == truth["scan_code"]
        assert [each.image_path for each in file.uploads] == [each["image_path"] for each in truth["detail"]["uploads"]]
        assert await client.read_file(5) is None


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
        ids = [file.id async for file in client.search_files(FileQuery(limit=limit))]
        assert fewest <= len(set(ids)) == len(ids) <= most
        assert emulator.counts["list"] == (10 if limit == 20 else 5)


async def test_instances_that_share_an_id_are_different_files() -> None:
    """Two entries with one id and two instance ids are two files."""
    quirks = make_quirks("instances")
    async with Emulator(120, seed=SEED, quirks=quirks) as emulator, Client(emulator.base_url, emulator.token) as client:
        files = [file async for file in client.search_files(FileQuery())]
        assert len(files) == 120
        assert len({file.id for file in files}) < 120
        assert {file.file_id for file in files} == {each["key"] for each in emulator.truth()}
