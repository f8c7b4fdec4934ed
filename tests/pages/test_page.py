"""The page needs nothing but itself, says what there is, and takes no value for markup."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import datetime, timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import duckdb
import pytest
from msgspec.structs import replace

from pipeline.errors import LakeCorruptedError
from pipeline.output.formatting import format_bytes, format_duration
from pipeline.output.redaction import register_secrets
from pipeline.output.templates.rendering import ENVIRONMENT, is_web_address
from pipeline.query.dashboard import LedgerState, render_dashboard
from tests.lake_copies import copy_lake
from tests.pages.page_lakes import HOSTILE, NOW, ParsedPage, asked, load_data, page_of
from tests.rows import every

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pages.conftest import PopulatedLake

_HASH = re.compile(r"(style|script)-src 'sha256-([^']+)'")


def test_the_page_needs_nothing_but_itself(populated_page: str) -> None:
    """No address stands on the page but those of its own parts, which are there; its policy forbids all others.

    The policy has the hashes of its style and script. The page is far below half a megabyte.
    """
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
    named = dict(_HASH.findall(populated_page))
    assert set(named) == {"style", "script"}
    for tag, told in named.items():
        (inner,) = re.findall(f"<{tag}>(.*?)</{tag}>", populated_page, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode() == told
    ids = read.values("id")
    assert len(ids) == len(set(ids))
    pointed = {value[1:] for value in read.values("href") if value.startswith("#")}
    pointed |= {each for value in read.values("aria-labelledby") for each in value.split()}
    assert pointed <= set(ids)
    assert 10_000 < len(populated_page.encode()) < 100_000


def test_an_empty_lake(empty_lake: Path) -> None:
    """A lake without a file has a page that says so in every part."""
    read = ParsedPage(page_of(empty_lake))
    for words in ("No run has been recorded", "Never verified", "No rejects", "No drift", "No deleted files"):
        assert words in read.text
    assert "NaN" not in read.text
    assert "None" not in read.text


def test_a_catalog_with_other_columns_is_damage(empty_lake: Path, tmp_path: Path) -> None:
    """A catalog that lacks a column that a panel reads is named, and not taken for a bug."""
    catalog = copy_lake(empty_lake, tmp_path / "lake") / "catalog.duckdb"
    catalog.chmod(0o644)
    with duckdb.connect(str(catalog)) as db:
        db.execute("ALTER TABLE workflow_runs RENAME submit_date_time TO other")
    with pytest.raises(LakeCorruptedError, match="The catalog has other columns"):
        page_of(tmp_path / "lake")


def test_a_token_is_masked(empty_lake: Path) -> None:
    """A token that an error or an address has is masked, as in every other output."""
    token = "tOkEn/of+the/Test=="
    register_secrets(token)
    page = page_of(empty_lake, ledger=LedgerState(failing=f"a {token} b", source=f"https://{token}.example"))
    assert token not in page
    assert "A [secret] b." in ParsedPage(page).text


def test_no_value_becomes_markup(hostile_lake: Path) -> None:
    """Scripts, quotes, direction signs, NULs and endless names are shown as text, wherever they stand."""
    run = ("r1", HOSTILE, "failed", NOW.replace(tzinfo=None), 1.0, 1, 1, 0, HOSTILE * 50)
    ledger = LedgerState(runs=[run], failing=HOSTILE, source=HOSTILE, remote_problem=HOSTILE * 50)
    text = render_dashboard(replace(load_data(hostile_lake, ledger=ledger), lake=HOSTILE))
    tags = [tag for tag, _ in ParsedPage(text).tags]
    assert (tags.count("script"), tags.count("img")) == (1, 0)
    assert text.count("<script") == 1
    assert "\u202e" not in text
    assert "\x00" not in text
    assert "\x1b" not in text
    assert "\\u202eRTL\\x00" in text
    assert text.count("&lt;script&gt;document.title=&#39;broken&#39;&lt;/script&gt;") > 6
    assert "secret answer" not in text
    assert len(text) < 100_000


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
    assert ("verdict problems" in early, "verdict problems" in late) == (False, True)
    assert "The watermark is more than 1 day old.</li>" in late


SIZES: Final = {0: "0 bytes", 999: "999 bytes", 1_500: "1.5 kB", 99_950: "100.0 kB", 123_456: "123 kB",
                10**9: "1.0 GB", 5 * 10**15: "5.0 PB"}  # fmt: skip
SPANS: Final = {0: "0s", 1: "1s", 119: "1m59s", 120: "2m", 7_199: "1h59m", 7_200: "2h", 90_061: "1d1h", 172_800: "2d"}


def test_sizes_and_spans() -> None:
    """Sizes come in powers of a thousand, spans in the largest units, in all output."""
    assert {number: format_bytes(number) for number in SIZES} == SIZES
    assert {seconds: format_duration(seconds) for seconds in SPANS} == SPANS
    assert [format_duration(seconds) for seconds in (2.25, 59.6)] == ["2.2s", "1m"]


# The templates


NAMES: Final = sorted(
    path.name for path in files("pipeline.output.templates").iterdir() if path.name.endswith((".jinja", ".html"))
)
POSITIONS: Final = ("<p>{{ text }}</p>", '<p title="{{ text }}"></p>', '<input value="{{ text | exact }}">',
                    "<p>{{ text | unredacted }}</p>", "<p>{{ text | visible | shorten(2000) }}</p>")  # fmt: skip


@every("name", NAMES)
def test_no_template_turns_escaping_off(name: str) -> None:
    """No filter marks a value as markup, no block turns escaping off, and every attribute with a value has quotes."""
    text = files("pipeline.output.templates").joinpath(name).read_text(encoding="utf-8")
    assert not re.search(r"\bsafe\b|autoescape|Markup", text)
    assert not re.search(r"\s[a-z-]+=\{\{", re.sub(r"\{%.*?%\}", "", text))
    assert not re.search(r"\bon[a-z]+=|javascript:|style=", text)
    for scripts in re.findall(r"<script>(.*?)</script>", text, re.DOTALL):
        assert scripts == "{{ script }}", "no value is part of a script"


@every("name", NAMES)
def test_every_box_has_a_name(name: str) -> None:
    """A reader of the screen names each box: a placeholder is no label."""
    text = files("pipeline.output.templates").joinpath(name).read_text(encoding="utf-8")
    boxes = re.findall(r"<(?:input|select) [^>]+>", text)
    assert [box for box in boxes if 'type="hidden"' not in box and "aria-label=" not in box] == []


@every("position", POSITIONS)
def test_a_value_is_text_in_every_position(position: str) -> None:
    """Whatever the filter, a value ends neither the attribute nor the element that it is in."""
    shown = ENVIRONMENT.from_string(position).render(text=HOSTILE)
    assert shown.count("<") == position.count("<")
    assert shown.count('"') == position.count('"')
    assert shown.count("'") == 0


def test_what_hides_is_seen_and_secrets_are_not() -> None:
    """Controls and direction signs are shown by their numbers, also in attributes; a token is masked."""
    register_secrets("tOkEn/of+the/Template==")
    template = ENVIRONMENT.from_string('<p title="{{ text }}">{{ text }}</p>')
    shown = "a\\x00 b \\u202ec [secret]"
    assert template.render(text=" a\0\n b \u202ec tOkEn/of+the/Template== ") == f'<p title="{shown}">{shown}</p>'
    assert ENVIRONMENT.from_string("{{ text | unredacted }}").render(text="/a?b=c\x1b") == "/a?b=c\\x1b"


@every(
    ("text", "is_address"),
    [("https://a.example/?a=1", True), ("http://a", True), ("javascript:alert(1)//https://x", False), (None, False),
     ("data:text/html,x", False), ("https://", False), ("https://a.example/ b", False), ("https://[", False),
     ("https://a.example/\u202e", False), ("//a.example", False), (" https://a.example", False)],
)  # fmt: skip
def test_only_web_addresses_are_links(text: str | None, is_address: bool) -> None:  # noqa: FBT001
    """A link leads to a host by http or https, and shows where."""
    assert is_web_address(text) is is_address
