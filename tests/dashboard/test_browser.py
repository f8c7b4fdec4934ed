"""The page in a real browser: quiet, alone, readable on a phone, in the dark, on paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.dashboard.dashboard_lakes import HOSTILE, build_lake, page_of
from tests.dashboard.test_page import hostile_page

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dashboard.browser import Tab
    from tests.dashboard.conftest import PopulatedLake

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


async def test_quiet_and_alone_everywhere(browser: Tab, populated_lake: PopulatedLake, tmp_path: Path) -> None:
    """From a file, on a desk, a phone and in the dark: nothing else is fetched, nothing complains or sticks out."""
    address = saved(tmp_path, page_of(populated_lake.folder))
    for width, dark in ((1200, False), (390, False), (390, True), (320, False)):
        await browser.show(address, width=width, dark=dark)
        await browser.ask("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        assert browser.requests == [address]
        assert browser.complaints == []
        assert await browser.ask("document.documentElement.scrollWidth") == width
        assert await browser.ask(_BEYOND) == []


@pytest.mark.parametrize("dark", [False, True])
async def test_every_text_can_be_read(browser: Tab, populated_lake: PopulatedLake, tmp_path: Path, dark: bool) -> None:  # noqa: FBT001
    """Every text stands out from what is behind it by 4.5 to 1, in light and in dark."""
    await browser.show(saved(tmp_path, page_of(populated_lake.folder)), dark=dark)
    worst = await browser.ask(_CONTRAST)
    assert len(worst) > 15
    assert {key: ratio for key, ratio in worst.items() if ratio < 4.5} == {}
    assert (await browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)") is not dark


async def test_labels_do_not_overlap(browser: Tab, populated_lake: PopulatedLake, tmp_path: Path) -> None:
    """Labels of an axis leave room between them, on a phone too."""
    await browser.show(saved(tmp_path, page_of(populated_lake.folder)), width=390)
    overlaps = await browser.ask("""
        [...document.querySelectorAll("svg.area")].flatMap((plot) => {
          const boxes = [...plot.querySelectorAll("text.tick")].map((each) => each.getBoundingClientRect());
          boxes.sort((one, other) => one.left - other.left);
          return boxes.slice(1).filter((box, place) => box.left < boxes[place].right + 4).map((box) => box.left);
        })
    """)
    assert overlaps == []


async def test_marks_are_where_the_values_are(browser: Tab, populated_lake: PopulatedLake, tmp_path: Path) -> None:
    """Bars fill their share of the cell, as they are drawn."""
    await browser.show(saved(tmp_path, page_of(populated_lake.folder)))
    off = await browser.ask("""
        [...document.querySelectorAll(":is(#completeness ~ figure, #completeness ~ div) table.meters tbody tr")]
          .filter((row) => row.querySelector("rect.mark"))
          .map((row) => [100 * row.querySelector("rect.mark").getBoundingClientRect().width
                             / row.querySelector("rect.back").getBoundingClientRect().width,
                         Number(row.lastChild.textContent.match(/([0-9.]+) %/)[1])])
    """)
    assert len(off) > 20
    assert all(abs(drawn - said) < 0.2 for drawn, said in off)


async def test_hostile_values_run_nothing(browser: Tab, tmp_path: Path) -> None:
    """Markup in names is read as text: no script runs, no image is fetched, the page keeps its width."""
    address = saved(tmp_path, hostile_page(tmp_path / "lake"))
    await browser.show(address, width=390)
    assert browser.requests == [address]
    assert browser.complaints == []
    assert await browser.ask("document.title") == "lake: scanlake"
    assert await browser.ask("document.documentElement.scrollWidth") == 390
    assert HOSTILE.split("\u202e")[0] in await browser.ask("document.body.textContent")


async def test_ages_go_on_while_the_page_lies_there(browser: Tab, tmp_path: Path) -> None:
    """Ages grow while the page is open, and a watermark that becomes old needs attention."""
    build_lake(tmp_path / "lake", {7: 0})
    address = saved(tmp_path, page_of(tmp_path / "lake"))
    hours = "new Date('2026-11-21T07:00:00Z').getTime() + 3600000 * "
    for later, says, fine in (
        (-1, "1h ahead of the local clock", False),
        (3, "3h ago", False),
        (30, "1d6h ago", True),
    ):
        fake = await browser.send(
            "Page.addScriptToEvaluateOnNewDocument", source=f"const at = {hours}{later}; Date.now = () => at;"
        )
        await browser.show(address)
        await browser.send("Page.removeScriptToEvaluateOnNewDocument", identifier=fake["identifier"])
        assert await browser.ask("document.querySelector('.lead time').textContent") == says
        assert await browser.ask("document.querySelector('[data-old-after]').checkVisibility()") is fine
        assert browser.complaints == []


async def test_paper(browser: Tab, populated_lake: PopulatedLake, tmp_path: Path) -> None:
    """On paper there are no links to click and nothing is dark, whatever the screen is."""
    await browser.show(saved(tmp_path, page_of(populated_lake.folder)), width=800, dark=True, media="print")
    assert await browser.ask("document.querySelector('nav').checkVisibility()") is False
    assert await browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert await browser.ask("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
