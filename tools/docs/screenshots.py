"""The pictures of the pages in docs/images, by the emulator and Chromium: `python -m tools.docs.screenshots`."""

from __future__ import annotations

import asyncio
import base64
import io
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch
from urllib.parse import quote, urlencode

from PIL import Image

from pipeline.emulator import Emulator, ImageOptions
from pipeline.errors import ExitCode
from pipeline.query.sql_page import DOCUMENTED_QUERIES
from tests.pages.browse_client import open_browse
from tests.pages.browser import installed, running, tab
from tests.processes import ran
from tests.sync.sync_harness import opened, synced, verified
from tools.docs.generate import DOCS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.pages.browser import Tab

_IMAGES: Final = DOCS / "images"
_SYNCS: Final = 14
_HOURS: Final = 8
_HEIGHTS: Final = {1280: 1280, 390: 1480}
"""By width of the window."""
_COLOURS: Final = 96
_NEWEST: Final = "SELECT file_id FROM uploads WHERE has_damage ORDER BY scan_date_time DESC LIMIT 60"
_SHOWN: Final = "file_id id scan_date_time damage_type_desc device_nick comment latitude longitude geocoding".split()
_FILTER: Final = (("column", "has_damage"), ("op", "is"), ("value", "true"), ("sort", "scan_date_time"), ("desc", "1"))
_TABLE: Final = (*(("show", name) for name in _SHOWN), *_FILTER)
_QUERY: Final = quote(DOCUMENTED_QUERIES["How frequent is damage, by month?"])


async def build_lake(folder: Path) -> int:
    """Build a lake of 2,000 files with a history of five days. Return the id of the file with the most to show."""
    async with Emulator(2_000, seed=7, images=ImageOptions(size_bytes=4_000)) as emulator:
        for number in range(_SYNCS):
            with past_clock(_HOURS * 3_600 * (_SYNCS - 1 - number)):
                await synced(emulator, folder)
                emulator.world.update(emulator.world.pick_random(5 + number % 4 * 20))
                emulator.world.create(number % 3 * 4)
        await verified(emulator, folder)
        code, _, errors = await ran(
            emulator, folder, "images", "--where", f"files.file_id IN ({_NEWEST})", "--set", "images_thumbnails=true"
        )
        assert code == ExitCode.OK, errors
    with closing(opened(folder)) as lake:
        sql = f"""SELECT file_id FROM file_summary WHERE file_id IN ({_NEWEST}) AND form_submits > 0
                  ORDER BY damaged_uploads + uploads + 3 * coalesce(open_steps, 0) DESC LIMIT 1"""
        return int(lake.execute(sql).fetchall()[0][0])


@contextmanager
def past_clock(seconds: int) -> Iterator[None]:
    """Set the clocks of this process back: the service's and the lake's."""
    now, now_ns = time.time, time.time_ns
    with patch("time.time", lambda: now() - seconds), patch("time.time_ns", lambda: now_ns() - seconds * 10**9):
        yield


async def take(browser: Tab, address: str, width: int, *, dark: bool) -> bytes:
    """Return a picture of the top of a page, as a small PNG."""
    await browser.show(address, width=width, dark=dark)
    height = min(_HEIGHTS[width], await browser.ask("document.documentElement.scrollHeight"))
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    await browser.send("Emulation.setDeviceMetricsOverride", **size)
    taken = await browser.send("Page.captureScreenshot", format="png")
    picture = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(taken["data"]))) as image:
        image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(picture, "PNG", optimize=True)
    return picture.getvalue()


async def take_all(folder: Path) -> None:
    """Write the pictures of all pages, in both widths, light and dark."""
    file_id = await build_lake(folder / "lake")
    pages = {
        "overview": "/",
        "table": f"/browse/table/uploads?{urlencode(_TABLE)}",
        "query": f"/browse/sql?sql={_QUERY}",
        "file": f"/browse/file?id={file_id}",
    }
    with running(folder / "profile") as address, open_browse(folder / "lake") as visitor:
        async with tab(address) as browser:
            await browser.show(visitor.address)
            for name, path in pages.items():
                for width in _HEIGHTS:
                    for dark in (False, True):
                        picture = await take(browser, visitor.root + path, width, dark=dark)
                        target = _IMAGES / f"{name}-{width}-{'dark' if dark else 'light'}.png"
                        target.write_bytes(picture)
                        sys.stdout.write(f"{target.name}: {len(picture):,} bytes\n")


if __name__ == "__main__":
    if installed() is None:
        sys.exit("no Chromium on this machine: apt-get install chromium")
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(take_all(Path(temporary)))
