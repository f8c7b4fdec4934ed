"""From the service to the page: what `scanlake images` stored is what a browser gets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import duckdb

from tests.images.image_harness import scene
from tests.pages.browse_client import open_browse
from tests.pages.page_lakes import ParsedPage

if TYPE_CHECKING:
    from pathlib import Path


async def test_the_pages_serve_the_bytes_of_the_service(tmp_path: Path) -> None:
    """Each copy on the page of each file is byte for byte the image of the service, and has its type."""
    async with scene(tmp_path, files=4, removed_ratio=0.2) as service:
        assert (await service.fetch("--thumbnails")).code == 4
        truth = service.truth("image", "thumbnail")
        served = await asyncio.to_thread(_read_pages, service.lake)
        found = {key: row for key, row in truth.items() if row["outcome"] == "served"}
        assert {row["outcome"] for row in truth.values()} == {"served", "removed"}
        assert set(served) == {row["sha256"] for row in found.values()}
        for (_, upload_id, kind), row in found.items():
            body = service.host.read_picture(upload_id, kind)  # type: ignore[arg-type]
            assert served[row["sha256"]] == (row["mime"], body)


def _read_pages(lake: Path) -> dict[str, tuple[str, bytes]]:
    """Return type and bytes of every copy that the pages of all files show or link to, by hash."""
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        files = [file_id for (file_id,) in db.execute("SELECT file_id FROM files").fetchall()]
    served = {}
    with open_browse(lake) as visitor:
        for file_id in files:
            page = ParsedPage(visitor.get(f"/browse/file?id={file_id}")[2])
            for path in {*page.values("src"), *page.values("href")}:
                if path.startswith("/browse/image/"):
                    status, headers, body = visitor.get_bytes(path)
                    assert status == 200
                    served[path.rpartition("/")[2]] = (headers["Content-Type"], body)
    return served
