"""The pages in a real browser: quiet, alone, readable on a phone and in the dark; hostile values run nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pytest

from pipeline.reports.manifest import render_page
from tests.pages.browse_client import open_browse
from tests.pages.page_lakes import HOSTILE, asked, page_of
from tests.reports.test_report_folder import make_manifest
from tests.soaking import sample

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.pages.browser import Tab
    from tests.pages.conftest import PopulatedLake

_BEYOND: Final = """
[...document.querySelectorAll("body *")]
  .filter((each) => !each.closest(".scroll") && !each.closest(".skip") && each.getBoundingClientRect().width)
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 1 || each.getBoundingClientRect().left < -1)
  .map((each) => each.tagName + ": " + each.textContent.slice(0, 40))
"""
_COUNTED: Final = "SELECT month, photos, with_damage, damage_ratio FROM damage_by_month"
_NAMED: Final = "SELECT repeat(upload_type, 40) AS name, count(*) AS uploads FROM uploads GROUP BY ALL"
_PLOTS: Final = """
(() => {
  const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((each) => each / 255)
    .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
  const page = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll("[role=img]")].map((plot) => {
    const box = plot.getBoundingClientRect();
    const marks = [...plot.querySelectorAll("rect, circle")];
    const boxes = marks.map((mark) => mark.getBoundingClientRect());
    const colour = light(getComputedStyle(marks[0]).fill);
    return {
      marks: marks.length, width: box.width, height: Math.max(...boxes.map((each) => each.height)),
      inside: boxes.every((each) => each.left >= box.left - 12 && each.right <= box.right + 12),
      font: parseFloat(getComputedStyle(plot).fontSize),
      contrast: (Math.max(colour, page) + 0.05) / (Math.min(colour, page) + 0.05),
    };
  });
})()
"""
_VISIBLE_COLUMNS: Final = """
[...document.querySelectorAll("thead th")].filter((cell) => cell.getBoundingClientRect().right < innerWidth).length
"""
_WINDOWS: Final = ((1200, False), (320, False), (390, False), (390, True))
"""Widths, and whether the system is dark."""


def saved(folder: Path, text: str) -> str:
    """The address of a page as a file."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


async def check_quiet(browser: Tab, address: str, windows: Iterable[tuple[int, bool]] = _WINDOWS) -> None:
    """Check that a page fetches nothing else, complains of nothing, keeps each width, and is dark where it is."""
    for width, dark in windows:
        await browser.show(address, width=width, dark=dark)
        await browser.ask("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        assert browser.requests == [address]
        assert browser.complaints == [], address
        assert await browser.ask("document.documentElement.scrollWidth") == width, address
        assert await browser.ask(_BEYOND) == [], address
        background = await browser.ask("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") is not dark


async def test_quiet_and_alone_everywhere(browser: Tab, populated_page: str, tmp_path: Path) -> None:
    """From a file, on a desk, a phone and in the dark: nothing else is fetched, nothing complains or sticks out."""
    await check_quiet(browser, saved(tmp_path, populated_page), sample(_WINDOWS, 2))


async def test_every_other_page_is_quiet(browser: Tab, populated_lake: PopulatedLake, tmp_path: Path) -> None:
    """So are the page of a report folder, and the browse pages, which call this server only."""
    await check_quiet(browser, saved(tmp_path, render_page(make_manifest("x" * 300))), sample(_WINDOWS, 1))
    sql = "SELECT file_id FROM file_summary ORDER BY uploads + form_submits + workflow_runs DESC LIMIT 1"
    ((file_id,),) = asked(populated_lake.folder, sql)
    with open_browse(populated_lake.folder) as visitor:
        await browser.show(visitor.address)
        query = quote("FROM uploads JOIN files USING (file_id)")
        for path in (
            *("/", f"/browse/sql?sql={quote(_COUNTED)}", f"/browse/sql?sql={quote(_NAMED)}"),
            *("/browse", "/browse/table/uploads?column=has_damage&op=is&value=true&sort=id", "/browse/sql"),
            *(f"/browse/file?id={file_id}", f"/browse/sql?sql={query}", "/browse/table/fields_wide"),
        ):
            await check_quiet(browser, visitor.root + path, sample(_WINDOWS, 1))


async def test_charts_are_seen_and_heard(browser: Tab, populated_lake: PopulatedLake) -> None:
    """At both widths, light and dark, marks have height and contrast, labels are large enough, and each has a name."""
    with open_browse(populated_lake.folder) as visitor:
        await browser.show(visitor.address)
        for path, plots in (
            ("/", 7),
            (f"/browse/sql?sql={quote(_COUNTED)}", 3),
            (f"/browse/sql?sql={quote(_NAMED)}", 1),
        ):
            for width, dark in ((1280, False), (390, True)):
                await browser.show(visitor.root + path, width=width, dark=dark)
                seen = await browser.ask(_PLOTS)
                assert len(seen) == plots
                for plot in seen:
                    assert plot["marks"] > 0, plot
                    assert plot["height"] > 0, plot
                    assert plot["width"] > 120, plot
                    assert plot["inside"], plot
                    assert plot["font"] >= 12, plot
                    assert plot["contrast"] >= 3, plot
                tree = (await browser.send("Accessibility.getFullAXTree"))["nodes"]
                names = [node["name"]["value"] for node in tree if node.get("role", {}).get("value") == "image"]
                assert len([name for name in names if "the highest" in name]) == plots


async def test_rows_are_one_line_and_use_the_window(browser: Tab, populated_lake: PopulatedLake) -> None:
    """A row of a table has the height of one line, whatever its longest value, and a wide window shows more columns."""
    with open_browse(populated_lake.folder) as visitor:
        await browser.show(visitor.address)
        columns = []
        for width in (1280, 2400):
            await browser.show(f"{visitor.root}/browse/table/uploads", width=width)
            heights = await browser.ask("[...document.querySelectorAll('tbody tr')].map((row) => row.offsetHeight)")
            assert max(heights) <= 45
            columns.append(await browser.ask(_VISIBLE_COLUMNS))
        assert columns[0] < columns[1]


async def test_hostile_values_run_nothing(browser: Tab, hostile_lake: Path, tmp_path: Path) -> None:
    """Markup in values is text on every page: no script runs, nothing is fetched, the page keeps its width.

    So it is in the name of a column, and in the labels and the title of a chart.
    """
    name = HOSTILE.replace("\0", "").replace('"', '""')
    charted = f'SELECT name AS "{name} 1", value, 3 AS "{name}" FROM fields'
    by_time = f"SELECT DATE '2024-01-01' AS day, name, 3 AS \"{name}\" FROM fields, range(2)"
    with open_browse(hostile_lake) as visitor:
        await browser.show(visitor.address)
        paths = (
            *("/browse/file?id=7", "/browse/table/fields", "/browse/table/form_answers"),
            *(f"/browse/sql?sql={quote(sql)}" for sql in (charted, by_time)),
        )
        for address in (saved(tmp_path, page_of(hostile_lake)), *(visitor.root + path for path in paths)):
            await browser.show(address, width=390)
            assert browser.requests == [address]
            assert browser.complaints == []
            assert await browser.ask("document.title") != "broken"
            assert await browser.ask("document.documentElement.scrollWidth") == 390, await browser.ask(_BEYOND)
            assert HOSTILE.split("\u202e")[0] in await browser.ask("document.body.textContent")


@pytest.mark.soak
async def test_ages_go_on_while_the_page_lies_there(browser: Tab, small_lake: Path, tmp_path: Path) -> None:
    """Ages grow while the page is open, and a watermark that becomes old needs attention."""
    address = saved(tmp_path, page_of(small_lake))
    hours = "new Date('2026-11-21T07:00:00Z').getTime() + 3600000 * "
    for later, says, fine in ((-1, "1h ahead of the local clock", False), (3, "3h ago", False), (30, "1d6h ago", True)):
        fake = await browser.send(
            "Page.addScriptToEvaluateOnNewDocument", source=f"const at = {hours}{later}; Date.now = () => at;"
        )
        await browser.show(address)
        await browser.send("Page.removeScriptToEvaluateOnNewDocument", identifier=fake["identifier"])
        assert await browser.ask("document.querySelector('.lead time').textContent") == says
        assert await browser.ask("document.querySelector('[data-old-after]').checkVisibility()") is fine
        assert browser.complaints == []


@pytest.mark.soak
async def test_two_keys_run_a_query(browser: Tab, small_lake: Path) -> None:
    """Ctrl+Enter in the box of the SQL page runs its query, as the button does."""
    with open_browse(small_lake) as visitor:
        await browser.show(visitor.address)
        await browser.show(f"{visitor.root}/browse/sql")
        await browser.ask("const box = document.getElementById('query'); box.value = 'SELECT 6 * 7'; box.focus()")
        loads = browser.loads
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 2}
        await browser.send("Input.dispatchKeyEvent", type="rawKeyDown", **key)
        async with asyncio.timeout(60):
            while browser.loads == loads:
                await asyncio.sleep(0.02)
        assert await browser.ask("document.querySelector('section[aria-labelledby=result] td').textContent") == "42"
        assert browser.complaints == []
