"""The page needs nothing but itself, says what there is, and takes no value for markup."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pipeline.formatting import format_bytes, format_duration
from pipeline.logs import register_secrets
from pipeline.pages.charts import axis_values, build_charts
from pipeline.pages.dashboard import render_dashboard
from pipeline.templates.rendering import ENVIRONMENT
from tests.pages.page_lakes import HOSTILE, NOW, ParsedPage, asked, build_lake, load_data, open_page_macros, page_of
from tests.rows import every

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pages.conftest import PopulatedLake

_HASH = re.compile(r"(style|script)-src 'sha256-([^']+)'")


def test_nothing_is_fetched(populated_page: str) -> None:
    """No address stands on the page but those of its own parts; its policy forbids all others."""
    read = ParsedPage(populated_page)
    assert {value[:1] if value.startswith("#") else value for value in read.values("href")} == {"#", "data:,"}
    assert not read.values("src")
    assert not read.values("style")
    assert {tag for tag, _ in read.tags if tag in {"img", "iframe", "object", "embed", "form", "base"}} == set()
    (rules,) = [attributes["content"] for _, attributes in read.tags if "http-equiv" in attributes]
    assert rules is not None
    assert re.sub(r"'sha256-[^']+'", "HASH", rules) == (
        "default-src 'none'; style-src HASH; script-src HASH; img-src data:; base-uri 'none'; form-action 'none'"
    )


def test_the_policy_names_the_very_style_and_script(populated_page: str) -> None:
    """The hashes in the policy are those of what stands on the page, which is far below half a megabyte."""
    named = dict(_HASH.findall(populated_page))
    assert set(named) == {"style", "script"}
    for tag, told in named.items():
        (inner,) = re.findall(f"<{tag}>(.*?)</{tag}>", populated_page, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode() == told
    assert 50_000 < len(populated_page.encode()) < 250_000


def test_every_link_and_label_leads_somewhere(populated_page: str) -> None:
    """Ids are unique; links, labels and descriptions point to one that is there."""
    read = ParsedPage(populated_page)
    ids = read.values("id")
    assert len(ids) == len(set(ids))
    pointed = {value[1:] for value in read.values("href") if value.startswith("#")}
    pointed |= {each for value in read.values("aria-labelledby") for each in value.split()}
    assert pointed <= set(ids)
    pictures = [attributes for tag, attributes in read.tags if attributes.get("role") == "img"]
    assert len(pictures) >= 8
    assert all(attributes.get("aria-labelledby") for attributes in pictures)


def test_an_empty_lake(empty_lake: Path) -> None:
    """A lake without a file has a page that says so in every part."""
    read = ParsedPage(page_of(empty_lake))
    for words in ("No files in the lake yet", "No workflow run is open", "No run has been recorded", "Never verified",
                  "No rejects", "No drift", "No deleted files", "No reports have been ordered",
                  "No custom field", "No form has been submitted"):  # fmt: skip
        assert words in read.text
    assert "NaN" not in read.text
    assert "None" not in read.text


def test_one_file(tmp_path: Path) -> None:
    """One file and one upload without a type, a date or a mark are enough for a page.

    A token that somebody typed into a name is masked, as in every other output.
    """
    token = "tOkEn/of+the/Test=="
    register_secrets(token)
    fields = [{"file_id": 7, "field_id": 1, "position": 0, "name": f"a {token} b"}]
    build_lake(tmp_path / "lake", {7: 1}, {"uploads": [{"file_id": 7, "id": 1, "position": 0}], "fields": fields})
    page = page_of(tmp_path / "lake")
    text = ParsedPage(page).text
    assert "Files 1 " in text
    assert "2 files and uploads without a date" in text
    assert "No upload of the last two years has a damage flag" in text
    assert token not in page
    assert "a [secret] b" in page


def test_no_value_becomes_markup(hostile_lake: Path) -> None:
    """Scripts, quotes, direction signs, NULs and endless names are shown as text, wherever they stand."""
    text = render_dashboard(replace(load_data(hostile_lake), lake=HOSTILE))
    tags = [tag for tag, _ in ParsedPage(text).tags]
    assert (tags.count("script"), tags.count("img")) == (1, 0)
    assert text.count("<script") == 1
    assert "\u202e" not in text
    assert "\x00" not in text
    assert "\x1b" not in text
    assert "\\u202eRTL\\x00" in text
    assert text.count("&lt;script&gt;document.title=&#39;broken&#39;&lt;/script&gt;") > 6
    assert "secret answer" not in text
    assert len(text) < 60_000


def test_what_needs_attention_comes_first(populated_lake: PopulatedLake) -> None:
    """A watermark older than a day is said, at once or, by the page's script, when it has become so."""
    ((watermark,),) = asked(populated_lake.folder, "SELECT watermark FROM meta.freshness")
    stale_at = watermark.replace(tzinfo=NOW.tzinfo) + timedelta(days=1)
    early = page_of(populated_lake.folder, stale_at - timedelta(minutes=1))
    late = page_of(populated_lake.folder, stale_at + timedelta(minutes=1))
    (moment,) = ParsedPage(early).values("data-old-after")
    assert datetime.fromisoformat(moment) == stale_at.replace(microsecond=0)
    for page, is_hidden in ((early, True), (late, False)):
        (item,) = [attributes for _, attributes in ParsedPage(page).tags if "data-old-after" in attributes]
        assert ("hidden" in item) is is_hidden
    assert "Needs attention" in late


def test_months_without_uploads_keep_their_place(tmp_path: Path) -> None:
    """The axis of months has room for those in which nothing was taken, and the line breaks there."""
    uploads = [
        {"file_id": 7, "id": 20 * month + each, "position": 0, "upload_type": "snap", "has_damage": each < month,
         "created_at": datetime(2026, month, 5)}  # noqa: DTZ001 - UTC without saying so
        for month in (1, 2, 11) for each in range(20)
    ]  # fmt: skip
    build_lake(tmp_path / "lake", {7: 1}, {"uploads": uploads})
    text = page_of(tmp_path / "lake")
    panel = text[text.index('id="damage-1-title"') : text.index("The rates as a table")]
    assert re.findall(r'cx="([^"]+)"', panel) == ["0%", "10%", "100%"]
    assert re.findall(r"<title>([^<]+)</title>", panel) == [
        "Jan 2026: 5.0 % (1 of 20)", "Feb 2026: 10.0 % (2 of 20)", "Nov 2026: 55.0 % (11 of 20)"
    ]  # fmt: skip
    (points,) = re.findall(r'points="([^"]+)"', panel)
    assert [point.split(",")[0] for point in points.split()] == ["0.00", "10.00"]


# The pieces


@every(
    ("most", "ticks"),
    [(0, (0, 1)), (1, (0, 1)), (3, (0, 1, 2, 3)), (7, (0, 2, 4, 6, 8)), (99, (0, 25, 50, 75, 100)),
     (1_234_567, (0, 500_000, 1_000_000, 1_500_000)), (float("nan"), (0, 1))],
)  # fmt: skip
def test_axes_end_at_round_numbers(most: float, ticks: tuple[float, ...]) -> None:
    """An axis begins at 0, goes in round steps, and reaches the greatest value."""
    assert tuple(axis_values([{"value": most}, {"value": None}])) == ticks


def draw(kind: str, rows: list[dict[str, Any]]) -> ParsedPage:
    """The chart of some rows, as a reader finds it."""
    (chart,) = build_charts("key", kind, [{"finding": "says", "unit": "files", **row} for row in rows])
    macros: Any = ENVIRONMENT.get_template("charts.html.jinja").module
    return ParsedPage(macros.draw(chart))


def test_heights_are_the_values() -> None:
    """A column's height is its share of the axis; the least one is seen; a failure has a cross, column or not."""
    values = ((100, False), (50, False), (0.001, True), (None, False), (None, True))
    plot = draw("bars", [{"value": value, "failed": failed, "label": "day", "tip": "tip"} for value, failed in values])
    bars = [each for tag, each in plot.tags if tag == "rect"]
    heights = [float(each["height"] or 0) for each in bars]
    assert [each["class"] for each in bars] == ["mark", "mark", "failed"]
    assert [heights[0] / heights[1], heights[2]] == [2, 1]
    assert len({float(each["y"] or 0) + float(each["height"] or 0) for each in bars}) == 1
    assert len([each for tag, each in plot.tags if tag == "text" and each.get("class") == "cross"]) == 2


def test_a_missing_value_interrupts_the_line() -> None:
    """Points without a value have no dot and no line."""
    values = (0, 50, None, 100, 50)
    rows = [{"value": value, "at": place / 4, "label": "day", "tip": "tip"} for place, value in enumerate(values)]
    assert draw("rates", rows).values("points") == ["0.00,88.00 25.00,44.00", "75.00,0.00 100.00,44.00"]


def test_the_macros_of_the_panels(empty_lake: Path) -> None:
    """0 % and 100 % are said of exactly that, also of shares of nothing; sizes and spans are those of all output."""
    sizes, spans = (0, 999, 1_500, 99_950, 123_456, 10**9, 5 * 10**14), (0, 1, 119, 120, 7_199, 7_200, 90_061, 172_800)
    with open_page_macros(empty_lake) as lake:
        parts = ", ".join(f"percent({part}, 100000)" for part in (0, 1, 500, 50_000, 99_999, 100_000))
        assert lake.execute(f"SELECT {parts}, percent(0, 0)").fetchall() == [
            ("0 %", "< 0.1 %", "0.5 %", "50.0 %", "> 99.9 %", "100 %", "-")
        ]
        for number in sizes:
            assert lake.execute(f"SELECT size_text({number})").fetchall() == [(format_bytes(number),)]
        for seconds in spans:
            assert lake.execute(f"SELECT span({seconds})").fetchall() == [(format_duration(seconds),)]


def test_sizes_and_spans() -> None:
    """Sizes come in powers of a thousand, spans in one unit."""
    assert [format_bytes(each) for each in (0, 999, 1_500, 123_456, 10**9, 5 * 10**15)] == [
        "0 bytes", "999 bytes", "1.5 kB", "123 kB", "1.0 GB", "5.0 PB"
    ]  # fmt: skip
    assert [format_duration(each) for each in (0, 1, 119, 120, 7_199, 7_200, 172_800)] == [
        "0s", "1s", "1m59s", "2m", "1h59m", "2h", "2d"
    ]  # fmt: skip
