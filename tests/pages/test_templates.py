"""The templates: none turns escaping off, and what each shows of a value is one visible, redacted line."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

from pipeline.logs import register_secrets
from pipeline.templates.rendering import ENVIRONMENT, is_web_address
from tests.pages.page_lakes import HOSTILE
from tests.rows import every

NAMES: Final = sorted(
    path.name for path in files("pipeline.templates").iterdir() if path.name.endswith((".jinja", ".html"))
)
POSITIONS: Final = ("<p>{{ text }}</p>", '<p title="{{ text }}"></p>', '<input value="{{ text | exact }}">',
                    "<p>{{ text | unredacted }}</p>", "<p>{{ text | visible | shorten(2000) }}</p>")  # fmt: skip


@every("name", NAMES)
def test_no_template_turns_escaping_off(name: str) -> None:
    """No filter marks a value as markup, no block turns escaping off, and every attribute with a value has quotes."""
    text = files("pipeline.templates").joinpath(name).read_text(encoding="utf-8")
    assert not re.search(r"\bsafe\b|autoescape|Markup", text)
    assert not re.search(r"\s[a-z-]+=\{\{", re.sub(r"\{%.*?%\}", "", text))
    assert not re.search(r"\bon[a-z]+=|javascript:|style=", text)
    for scripts in re.findall(r"<script>(.*?)</script>", text, re.DOTALL):
        assert scripts == "{{ script }}", "no value is part of a script"


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
