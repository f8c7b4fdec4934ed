"""Base URL, token, and its redaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.token_redactor import TokenRedactor
from pipeline.settings.urls import normalize_base_url
from tests.client.conftest import spell_token
from tests.rows import every

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


@every(
    ("text", "base"),
    [
        *(
            (f"https://files.example.com{rest}", "https://files.example.com")
            for rest in ("", "/", "/api/v2", "/api/v2/")
        ),
        ("https://files.example.com/tenant/api/v2", "https://files.example.com/tenant"),
        ("https://files.example.com:8443/tenant/", "https://files.example.com:8443/tenant"),
        ("HTTPS://Files.Example.com", "https://files.example.com"),
        *((f"http://{host}:8000", f"http://{host}:8000") for host in ("127.0.0.1", "localhost", "[::1]")),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
    ],
)
def test_base_urls(text: str, base: str) -> None:
    """Trailing slashes and the API's own path are removed, a prefix is kept."""
    assert normalize_base_url(text) == base


@every(
    "text",
    [
        *("", "files.example.com", "ftp://files.example.com", "http://files.example.com", "https://"),
        *("http://127.0.0.1.example.com", "https://user@files.example.com", "https://user:secret@files.example.com"),
        *("https://files.example.com?token=secret", "https://files.example.com/#x", "https://files.example.com/a b"),
        *("https://files.example.com:port", "https://files.example.com:99999", "https://exa mple.com", "https://[::1"),
        *(
            "https://files..example.com",
            "https://files.example.com/../admin",
            "https://files.example.com\\@evil.example",
        ),
    ],
)
def test_unusable_base_urls(text: str) -> None:
    """An unusable base URL is refused, and the message does not show it."""
    with pytest.raises(ValueError, match=r"^(must|is|has|does) ") as raised:
        normalize_base_url(text)
    assert "secret" not in str(raised.value)


TOKENS = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="+/=-_."), min_size=8)


@given(TOKENS)
def test_every_form_of_the_token_is_redacted(token: str) -> None:
    """Plain, percent-encoded, base64 and JSON-escaped forms are removed from text and bytes."""
    redactor = TokenRedactor(token)
    for spelling in spell_token(token):
        assert spelling not in redactor.redact_text(f"before {spelling} after")
        assert spelling.encode() not in redactor.redact_body(f"before {spelling} after".encode(), error=False)


@given(TOKENS, st.randoms(use_true_random=False))
def test_every_escaping_of_json_is_redacted(token: str, dice: random.Random) -> None:
    """In keys and values, whichever characters are escaped and how; the document remains what it was otherwise."""
    escapes: list[Callable[[str], str]] = [str, lambda char: f"\\u{ord(char):04x}", lambda char: f"\\u{ord(char):04X}"]

    def spell(text: str) -> str:
        return "".join("\\/" if char == "/" and dice.random() < 0.5 else dice.choice(escapes)(char) for char in text)

    spelled = [f'"{spell(text)}"' for text in (f"-{token}-", token, "a/b", f"x{token}", token)]
    others = r'"e": "\u0022\\\u005c\\u0041\u00e4\ud83d\n", "n": 1.10'
    body = '{{{}: {}, {}: [[{}], {{"t": {}}}], {}}}'.format(*spelled, others)
    redacted = TokenRedactor(token).redact_body(body.encode(), error=False)
    expected = {"-***-": "***", "a/b": [["x***"], {"t": "***"}], **json.loads(f"{{{others}}}")}
    assert json.loads(redacted) == expected


@given(st.text("abcXYZ0189+/=-_", min_size=12, max_size=40), st.booleans())
def test_a_token_in_json_within_json_is_redacted(token: str, escapes_slashes: bool) -> None:  # noqa: FBT001
    """The text of a document that is itself a string, as some services write it, and a token in the dress of URLs."""
    dressed = [token, token.rstrip("="), token.translate(str.maketrans("+/", "-_"))]
    text = json.dumps(dressed)
    text = text.replace("/", "\\/").replace("=", "\\u003d") if escapes_slashes else text
    redacted = TokenRedactor(token).redact_body(json.dumps({"note": text}).encode(), error=True)
    assert [text for text in json.loads(json.loads(redacted)["note"]) if len(text) > 3 and text in dressed] == []


@every(
    ("token", "body"),
    [("hush/hush", rb'{"a": "\u0041\/\u003c", "b": "hush"}'), ("test", b"the latest"), ("hush/hush", b"")],
)
def test_a_body_without_the_token_is_kept_byte_by_byte(token: str, body: bytes) -> None:
    """Escapes that spell no token stay as received, as does a short token that could be a word, but in an error."""
    assert TokenRedactor(token).redact_body(body, error=False) is body
    assert TokenRedactor("test").redact_body(b"bad token test", error=True) == b"bad token ***"
