"""The page needs nothing but itself, says what there is, and takes no value for markup."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from pipeline.dashboard.charts import Axes, Bar, axis_ticks, bar_chart
from pipeline.dashboard.page import STALE_AFTER, render_page
from pipeline.formatting import format_bytes, format_duration, format_percent
from pipeline.logs import register_secrets
from tests.dashboard.dashboard_lakes import HOSTILE, NOW, ParsedPage, build_lake, load_data, page_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dashboard.conftest import PopulatedLake

_HASH = re.compile(r"(style|script)-src 'sha256-([^']+)'")


def test_nothing_is_fetched(populated_lake: PopulatedLake) -> None:
    """No address stands on the page but those of its own parts; its policy forbids all others."""
    read = ParsedPage(page_of(populated_lake.folder))
    assert {value[:1] if value.startswith("#") else value for value in read.values("href")} == {"#", "data:,"}
    assert not read.values("src")
    assert not read.values("style")
    assert {tag for tag, _ in read.tags if tag in {"img", "iframe", "object", "embed", "form", "base"}} == set()
    (rules,) = [attributes["content"] for _, attributes in read.tags if "http-equiv" in attributes]
    assert rules is not None
    assert re.sub(r"'sha256-[^']+'", "HASH", rules) == (
        "default-src 'none'; style-src HASH; script-src HASH; img-src data:; base-uri 'none'; form-action 'none'"
    )


def test_the_policy_names_the_very_style_and_script(populated_lake: PopulatedLake) -> None:
    """The hashes in the policy are those of what stands on the page."""
    text = page_of(populated_lake.folder)
    named = dict(_HASH.findall(text))
    assert set(named) == {"style", "script"}
    for tag, told in named.items():
        (inner,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode() == told


def test_every_link_and_label_leads_somewhere(populated_lake: PopulatedLake) -> None:
    """Ids are unique; links, labels and descriptions point to one that is there."""
    read = ParsedPage(page_of(populated_lake.folder))
    ids = read.values("id")
    assert len(ids) == len(set(ids))
    pointed = {value[1:] for value in read.values("href") if value.startswith("#")}
    pointed |= {each for value in read.values("aria-labelledby") for each in value.split()}
    assert pointed <= set(ids)
    pictures = [attributes for tag, attributes in read.tags if attributes.get("role") == "img"]
    assert len(pictures) >= 8
    assert all(attributes.get("aria-labelledby") for attributes in pictures)


def test_an_empty_lake(tmp_path: Path) -> None:
    """A lake without a file has a page that says so in every part."""
    build_lake(tmp_path / "lake")
    read = ParsedPage(page_of(tmp_path / "lake"))
    for words in ("No files in the lake yet", "No workflow run is open", "No run has been recorded", "Never verified",
                  "No rejects", "No drift", "No deleted files", "No parts yet", "No reports have been ordered",
                  "No custom field", "No form has been submitted"):  # fmt: skip
        assert words in read.text
    assert "NaN" not in read.text
    assert "None" not in read.text


def test_one_file(tmp_path: Path) -> None:
    """One file and one upload without a type, a date or a mark are enough for a page."""
    build_lake(tmp_path / "lake", {7: 1}, {"uploads": [{"file_id": 7, "id": 1, "position": 0}]})
    text = ParsedPage(page_of(tmp_path / "lake")).text
    assert "Files 1 " in text
    assert "2 files and uploads without a date" in text
    assert "No upload of the last two years has a damage flag" in text


def hostile_page(folder: Path) -> str:
    """The page of a lake whose every name is hostile."""
    at = NOW.replace(tzinfo=None) - timedelta(days=200)
    build_lake(
        folder,
        {7: 1},
        {
            "uploads": [{"file_id": 7, "id": 1, "position": 0, "upload_type": HOSTILE, "has_damage": True,
                         "damage_type_desc": HOSTILE, "created_at": at}],
            "fields": [{"file_id": 7, "field_id": 1, "position": 0, "name": HOSTILE * 50, "value": "secret answer"}],
            "form_submits": [{"file_id": 7, "id": "a", "form_id": 1, "position": 0, "title": HOSTILE}],
            "form_answers": [{"file_id": 7, "form_submit_id": "a", "form_id": 1, "position": 0, "label": HOSTILE,
                              "value": "secret answer"}],
            "workflow_runs": [{"file_id": 7, "id": 1, "workflow_id": 3, "position": 0, "created_at": at}],
            "workflow_definitions": [{"id": 3, "name": HOSTILE, "_definition_hash": "h"}],
        },
    )  # fmt: skip
    return page_of(folder)


def test_no_value_becomes_markup(tmp_path: Path) -> None:
    """Scripts, quotes, direction signs, NULs and endless names are shown as text, wherever they stand."""
    text = hostile_page(tmp_path / HOSTILE[9:30].replace("/", "_"))
    tags = [tag for tag, _ in ParsedPage(text).tags]
    assert (tags.count("script"), tags.count("img")) == (1, 0)
    assert text.count("<script") == 1
    assert "\u202e" not in text
    assert "\x00" not in text
    assert "\x1b" not in text
    assert "\\u202eRTL\\x00" in text
    assert text.count("&lt;script&gt;document.title='broken'&lt;/script&gt;") > 6
    assert "secret answer" not in text
    assert len(text) < 60_000


def test_secrets_are_not_on_the_page(tmp_path: Path) -> None:
    """A token that somebody typed into a name is masked, as in every other output."""
    token = "tOkEn/of+the/Test=="
    register_secrets(token)
    build_lake(
        tmp_path / "lake", {7: 1}, {"fields": [{"file_id": 7, "field_id": 1, "position": 0, "name": f"a {token} b"}]}
    )
    text = page_of(tmp_path / "lake")
    assert token not in text
    assert "a [secret] b" in text


def test_what_needs_attention_comes_first(populated_lake: PopulatedLake) -> None:
    """A watermark older than a day is said, at once or, by the page's script, when it has become so."""
    fresh = load_data(populated_lake.folder).freshness
    assert fresh.watermark is not None
    early = render_page(
        load_data(
            populated_lake.folder, fresh.watermark.replace(tzinfo=NOW.tzinfo) + STALE_AFTER - timedelta(minutes=1)
        )
    )
    late = render_page(
        load_data(
            populated_lake.folder, fresh.watermark.replace(tzinfo=NOW.tzinfo) + STALE_AFTER + timedelta(minutes=1)
        )
    )
    (moment,) = ParsedPage(early).values("data-old-after")
    assert datetime.fromisoformat(moment).replace(tzinfo=None) == fresh.watermark + STALE_AFTER
    assert [attributes.get("hidden") for _, attributes in ParsedPage(early).tags if "data-old-after" in attributes] == [
        "hidden"
    ]
    assert [attributes.get("hidden") for _, attributes in ParsedPage(late).tags if "data-old-after" in attributes] == [
        None
    ]
    assert "Needs attention" in late


def test_a_rich_page_stays_small(populated_lake: PopulatedLake) -> None:
    """The page of a lake with everything in it is far below half a megabyte."""
    assert 50_000 < len(page_of(populated_lake.folder).encode()) < 250_000


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


@pytest.mark.parametrize(
    ("most", "ticks"),
    [(0, (0, 1)), (1, (0, 1)), (3, (0, 1, 2, 3)), (7, (0, 2, 4, 6, 8)), (99, (0, 25, 50, 75, 100)),
     (1_234_567, (0, 500_000, 1_000_000, 1_500_000)), (float("nan"), (0, 1))],
)  # fmt: skip
def test_axes_end_at_round_numbers(most: float, ticks: tuple[float, ...]) -> None:
    """An axis begins at 0, goes in round steps, and reaches the greatest value."""
    assert axis_ticks(most) == ticks


def test_heights_are_the_values() -> None:
    """A column's height is its share of the axis; the least one is seen; a failure has a cross."""
    frame = Axes("key", "title", "says", (0, 50, 100), str, height=136)
    plot = bar_chart(frame, [Bar(100, "all"), Bar(50, "half"), Bar(0.001, "little", failed=True), Bar(None, "")], [])
    bars = [(each.get("height"), each.get("class")) for each in plot.iter("rect")]
    assert bars == [("100", "mark"), ("50", "mark"), ("1", "failed")]
    assert len([each for each in plot.iter("text") if each.get("class") == "cross"]) == 1
    bottoms = {float(each.get("y", "")) + float(each.get("height", "")) for each in plot.iter("rect")}
    assert bottoms == {frame.y(0)}


def test_shares_are_never_rounded_to_nothing_or_all() -> None:
    """0 % and 100 % are said of exactly that."""
    said = [format_percent(part, 100_000) for part in (0, 1, 500, 50_000, 99_999, 100_000)]
    assert said == ["0 %", "< 0.1 %", "0.5 %", "50.0 %", "> 99.9 %", "100 %"]
    assert format_percent(0, 0) == "-"


def test_sizes_and_spans() -> None:
    """Sizes come in powers of a thousand, spans in one unit."""
    assert [format_bytes(each) for each in (0, 999, 1_500, 123_456, 10**9, 5 * 10**15)] == [
        "0 bytes", "999 bytes", "1.5 kB", "123 kB", "1.0 GB", "5.0 PB"
    ]  # fmt: skip
    assert [format_duration(each) for each in (0, 1, 119, 120, 7_199, 7_200, 172_800)] == [
        "0s", "1s", "1m59s", "2m", "1h59m", "2h", "2d"
    ]  # fmt: skip
