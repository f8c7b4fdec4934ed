"""`dashboard --all`: one page over all sources, and the page of each beside it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import ExitCode
from tests.cli.conftest import scanlake
from tests.dashboard.dashboard_lakes import ParsedPage, build_lake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.dashboard.browser import Tab
    from tests.dashboard.conftest import PopulatedLake
    from tests.processes import Answer

    Scanlake = Callable[..., Answer]

__all__ = ["scanlake"]
_SETTINGS = """
[sources.east]
base_url = "https://east.example"
[sources.north]
base_url = "https://north.example"
[sources.west]
base_url = "https://west.example"
"""


@pytest.fixture
def sources(tmp_path: Path, populated_lake: PopulatedLake) -> Path:
    """A settings file of three sources: a lake with a history, a lake never verified, and none yet."""
    (tmp_path / "scanlake.toml").write_text(_SETTINGS, encoding="utf-8")
    shutil.copytree(populated_lake.folder, tmp_path / "lake" / "east")
    build_lake(tmp_path / "lake" / "north", {7: 0, 8: 0})
    return tmp_path


def test_each_source_has_its_state_and_its_page(scanlake: Scanlake, sources: Path) -> None:
    """The page begins with what needs attention, links to the page of each source, and names what failed."""
    answer = scanlake("dashboard", "--all", "--json")
    assert answer.code == ExitCode.USAGE, "west has no lake: the most severe code of all"
    told = json.loads(answer.out)
    assert sorted(told["sources"]) == ["east", "north", "west"]
    assert "error" in told["sources"]["west"]
    pages = sorted(path.name for path in sources.glob("*.html"))
    assert pages == ["dashboard-east.html", "dashboard-north.html", "dashboard.html"]
    text = (sources / "dashboard.html").read_text(encoding="utf-8")
    read = ParsedPage(text)
    assert "3 sources" in read.text
    assert "Needs attention:" in read.text
    assert "north, west." in read.text
    assert read.text.index("Needs attention:") < read.text.index("https://north.example")
    assert {"dashboard-east.html", "dashboard-north.html", "#north", "#west"} <= set(read.values("href"))
    assert "dashboard-west.html" not in text
    assert "Never verified: files deleted in the service may still be in the lake." in read.text
    assert "No lake at" in read.text
    assert "Run scanlake sync --source west first" in read.text.replace("`", "")
    assert "<h1>east</h1>" in (sources / "dashboard-east.html").read_text(encoding="utf-8")
    again = scanlake("dashboard", "--all")
    assert again.out.splitlines()[0].startswith(f"{sources / 'dashboard.html'}: 3 sources, ")
    assert again.out.splitlines()[1].startswith("west: No lake at")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--serve",), "--all and --serve exclude each other"),
        (("--source", "north"), "--all and --source exclude each other"),
        (("--out", "lake/east/x.html"), "is in the lake"),
        (("--out", "other.html"), "other-north.html exists and is not a dashboard of scanlake"),
    ],
)
def test_mistakes_write_nothing(scanlake: Scanlake, sources: Path, arguments: tuple[str, ...], says: str) -> None:
    """Options that do not fit, a target in a lake, and a file of others beside it are refused before any writing."""
    other = sources / "other-north.html"
    other.write_text("mine", encoding="utf-8")
    answer = scanlake("dashboard", "--all", *arguments)
    assert (answer.code, len(answer.lines), answer.out) == (ExitCode.USAGE, 1, "")
    assert says in answer.err
    assert [path.name for path in sources.glob("*.html")] == ["other-north.html"]
    assert other.read_text(encoding="utf-8") == "mine"


async def test_it_is_quiet_on_a_telephone_and_in_the_dark(browser: Tab, scanlake: Scanlake, sources: Path) -> None:
    """The page fetches nothing, complains about nothing and keeps the width of the window."""
    scanlake("dashboard", "--all")
    address = (sources / "dashboard.html").as_uri()
    for width, dark in ((1280, False), (390, False), (390, True)):
        await browser.show(address, width=width, dark=dark)
        assert browser.requests == [address]
        assert browser.complaints == []
        assert await browser.ask("document.documentElement.scrollWidth") == width
    assert "ago" in await browser.ask("document.querySelector('tbody time').textContent")
