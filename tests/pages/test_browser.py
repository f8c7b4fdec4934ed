"""The page in a real browser: quiet, alone, readable on a phone, in the dark, on paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pytest

from tests.pages.browse_client import open_browse
from tests.pages.page_lakes import HOSTILE, asked, page_of
from tests.soaking import sample

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pages.browser import Tab
    from tests.pages.conftest import PopulatedLake

_BEYOND: Final = """
[...document.querySelectorAll("body *")]
  .filter((each) => !each.closest(".scroll") && !each.closest(".skip") && each.getBoundingClientRect().width)
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 1 || each.getBoundingClientRect().left < -1)
  .map((each) => each.tagName + ": " + each.textContent.slice(0, 40))
"""
_CONTRAST: Final = """
(() => {
  const light = (color) => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map((each) => {
      const share = each / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (each) => {
    while (each && getComputedStyle(each).backgroundColor === "rgba(0, 0, 0, 0)") each = each.parentElement;
    return light(getComputedStyle(each || document.body).backgroundColor);
  };
  const worst = {};
  for (const each of document.querySelectorAll("body *")) {
    const speaks = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!speaks || !each.checkVisibility() || each.closest("script, title, desc")) continue;
    const style = getComputedStyle(each);
    const ink = light(each.closest("svg") ? style.fill : style.color), back = behind(each);
    const ratio = (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05);
    const key = each.tagName + "." + (each.getAttribute("class") || "");
    worst[key] = Math.min(ratio, worst[key] || 99);
  }
  return worst;
})()
"""


def saved(folder: Path, text: str) -> str:
    """The address of a page as a file."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


async def test_quiet_and_alone_everywhere(browser: Tab, populated_page: str, tmp_path: Path) -> None:
    """From a file, on a desk, a phone and in the dark: nothing else is fetched, nothing complains or sticks out.

    Every text stands out from what is behind it by 4.5 to 1.
    """
    address = saved(tmp_path, populated_page)
    for width, dark in sample([(1200, False), (320, False), (390, False), (390, True)], 2):
        await browser.show(address, width=width, dark=dark)
        await browser.ask("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        assert browser.requests == [address]
        assert browser.complaints == []
        assert await browser.ask("document.documentElement.scrollWidth") == width
        assert await browser.ask(_BEYOND) == []
        worst = await browser.ask(_CONTRAST)
        assert len(worst) > 15
        assert {key: ratio for key, ratio in worst.items() if ratio < 4.5} == {}
        background = await browser.ask("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") is not dark


@pytest.mark.soak
async def test_the_page_is_drawn_as_it_says(browser: Tab, populated_page: str, tmp_path: Path) -> None:
    """Labels of an axis leave room between them, bars fill their share, and paper has no links and nothing dark."""
    address = saved(tmp_path, populated_page)
    await browser.show(address, width=390)
    overlaps = await browser.ask("""
        [...document.querySelectorAll("svg.area")].flatMap((plot) => {
          const boxes = [...plot.querySelectorAll("text.tick")].map((each) => each.getBoundingClientRect());
          boxes.sort((one, other) => one.left - other.left);
          return boxes.slice(1).filter((box, place) => box.left < boxes[place].right + 4).map((box) => box.left);
        })
    """)
    assert overlaps == []
    await browser.show(address)
    off = await browser.ask("""
        [...document.querySelectorAll(":is(#completeness ~ figure, #completeness ~ div) table.meters tbody tr")]
          .filter((row) => row.querySelector("rect.mark"))
          .map((row) => [100 * row.querySelector("rect.mark").getBoundingClientRect().width
                             / row.querySelector("rect.back").getBoundingClientRect().width,
                         Number(row.lastChild.textContent.match(/([0-9.]+) %/)[1])])
    """)
    assert len(off) > 20
    assert all(abs(drawn - said) < 0.2 for drawn, said in off)
    await browser.show(address, width=800, dark=True, media="print")
    assert await browser.ask("document.querySelector('nav').checkVisibility()") is False
    assert await browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert await browser.ask("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


@pytest.mark.soak
async def test_hostile_values_run_nothing(browser: Tab, hostile_lake: Path, tmp_path: Path) -> None:
    """Markup in values is text on every page: no script runs, nothing is fetched, the page keeps its width."""
    with open_browse(hostile_lake) as visitor:
        await browser.show(visitor.address)
        paths = ("/browse/file?id=7", "/browse/table/fields", "/browse/table/form_answers")
        for address in (saved(tmp_path, page_of(hostile_lake)), *(visitor.root + path for path in paths)):
            await browser.show(address, width=390)
            assert browser.requests == [address]
            assert browser.complaints == []
            assert await browser.ask("document.title") != "broken"
            assert await browser.ask("document.documentElement.scrollWidth") == 390
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


# Browse pages


@pytest.mark.soak
async def test_browse_pages_are_quiet_everywhere(browser: Tab, populated_lake: PopulatedLake) -> None:
    """On a desk, a phone and in the dark: only this server is called, nothing complains or sticks out."""
    sql = "SELECT file_id FROM file_summary ORDER BY uploads + form_submits + workflow_runs DESC LIMIT 1"
    ((file_id,),) = asked(populated_lake.folder, sql)
    with open_browse(populated_lake.folder) as visitor:
        await browser.show(visitor.address)
        query = quote("FROM uploads JOIN files USING (file_id)")
        for path in (
            *("/browse", "/browse/table/uploads?column=has_damage&op=is&value=true&sort=id", "/browse/sql"),
            *(f"/browse/file?id={file_id}", f"/browse/sql?sql={query}", "/browse/table/fields_wide"),
        ):
            for width, dark in ((1280, False), (390, False), (390, True), (320, False)):
                await browser.show(visitor.root + path, width=width, dark=dark)
                assert browser.requests == [visitor.root + path]
                assert browser.complaints == []
                assert await browser.ask("document.documentElement.scrollWidth") == width, path
                assert await browser.ask(_BEYOND) == [], path
                worst = await browser.ask(_CONTRAST)
                assert {key: ratio for key, ratio in worst.items() if ratio < 4.5} == {}, (path, dark)


@pytest.mark.soak
async def test_browse_by_keyboard(browser: Tab, populated_lake: PopulatedLake) -> None:
    """Tab, typing and Enter reach a table, filter and sort it, scroll it, and run a query; each focus is visible."""
    with open_browse(populated_lake.folder) as visitor:
        await browser.show(visitor.address)
        await browser.show(f"{visitor.root}/browse/table/files")
        seen = [await _press_tab(browser) for _ in range(9)]
        assert seen[:4] == ["A Skip to the content", "A Overview", "A Tables", "A SQL"]
        assert seen[4:] == ["INPUT q", "BUTTON Open file", "SELECT column", "SELECT op", "INPUT value"]
        await browser.send("Input.insertText", text="true")
        await browser.ask("document.querySelector('select[name=column]').value = 'closed'")
        await _press_enter(browser)
        ((closed,),) = asked(populated_lake.folder, "SELECT count(*) FROM files WHERE closed")
        assert f"of {closed}" in await browser.ask("document.querySelector('.pager').textContent")
        await browser.ask("document.querySelector('.pager').nextElementSibling.focus()")
        assert await browser.ask("document.activeElement.getAttribute('role')") == "region"
        assert await _press_tab(browser) == "A file_id"
        await _press_enter(browser)
        assert "sort=file_id" in await browser.ask("location.search")
        await browser.show(f"{visitor.root}/browse/sql")
        await browser.ask("document.querySelector('textarea').focus()")
        await browser.send("Input.insertText", text="SELECT 6 * 7 AS answer")
        assert await _press_tab(browser) == "BUTTON Run"
        await _press_enter(browser)
        assert await browser.ask("document.querySelector('.rows td').textContent") == "42"
        assert await browser.ask("document.querySelector('textarea').value") == "SELECT 6 * 7 AS answer"
        assert browser.complaints == []


async def _press_tab(browser: Tab) -> str:
    """Press Tab and return the element that has the focus, which shows it."""
    await _press(browser, "Tab", 9)
    return str(
        await browser.ask("""(() => {
            const each = document.activeElement, style = getComputedStyle(each);
            const isVisible = style.outlineStyle !== "none" && each.getBoundingClientRect().width > 0;
            const name = each.matches("input, select, textarea") ? each.name : each.textContent.trim();
            return each.tagName + " " + name + (isVisible ? "" : " (invisible)");
        })()""")
    )


async def _press_enter(browser: Tab) -> None:
    """Press Enter and wait for the next page."""
    loads = browser.loads
    await _press(browser, "Enter", 13)
    await browser.until_loaded(loads + 1)


async def _press(browser: Tab, key: str, code: int) -> None:
    text = {"text": "\r"} if key == "Enter" else {}
    for kind in ("keyDown", "keyUp"):
        await browser.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)
