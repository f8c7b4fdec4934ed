"""Base address, token, and the mask over it."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from pipeline.errors import SettingsError
from pipeline.service.address import Mask, read_base_url, read_token
from pipeline.service.client import Client


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("https://files.example.com", "https://files.example.com"),
        ("https://files.example.com/", "https://files.example.com"),
        ("https://files.example.com/api/v2", "https://files.example.com"),
        ("https://files.example.com/api/v2/", "https://files.example.com"),
        ("https://files.example.com/tenant/api/v2", "https://files.example.com/tenant"),
        ("https://files.example.com:8443/tenant/", "https://files.example.com:8443/tenant"),
        ("HTTPS://Files.Example.com", "https://files.example.com"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
    ],
)
def test_base_addresses(text: str, base: str) -> None:
    """Trailing slashes and the API's own path are taken off, a prefix is kept."""
    assert read_base_url(text) == base


@pytest.mark.parametrize(
    "text",
    [
        "",
        "files.example.com",
        "ftp://files.example.com",
        "http://files.example.com",
        "http://127.0.0.1.example.com",
        "https://",
        "https://user@files.example.com",
        "https://user:secret@files.example.com",
        "https://files.example.com?token=secret",
        "https://files.example.com/#x",
        "https://files.example.com/a b",
        "https://files.example.com:port",
        "https://files.example.com:99999",
        "https://exa mple.com",
        "https://files..example.com",
        "https://files.example.com/../admin",
        "https://[::1",
        "https://files.example.com\\@evil.example",
    ],
)
def test_unusable_addresses(text: str) -> None:
    """What is no address of a service is refused, with a remedy, and without showing what was given."""
    with pytest.raises(SettingsError) as raised:
        read_base_url(text)
    assert "base_url" in raised.value.message
    assert raised.value.remedy
    assert "secret" not in raised.value.message


@pytest.mark.parametrize(
    "token",
    ["", " ", "hush hush", "hush\n", " hush", '"hush"', "'hush'", "Bearer hush", "bearer hush", "hüsh", "hush\0"],
)
def test_unusable_tokens(token: str) -> None:
    """A token that can only be a mistake is refused before the first request; it is never shown."""
    with pytest.raises(SettingsError) as raised:
        read_token(token)
    assert "hush" not in f"{raised.value.message} {raised.value.remedy}"


def test_a_client_never_shows_its_token() -> None:
    """Neither form of a token is in the client's repr."""
    for token in ("hush-hush-hush==", SecretStr("hush-hush-hush==")):
        assert "hush" not in repr(Client("https://files.example.com", token))


TOKENS = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="+/=-_."), min_size=8)


@given(TOKENS)
def test_the_mask_hides_every_spelling(token: str) -> None:
    """Plain, percent-encoded in either case, base64 and JSON-escaped: none is left in text or bytes."""
    mask = Mask(token)
    quoted = quote(token, safe="")
    spellings = [
        token,
        quoted,
        quoted.replace("%2F", "%2f").replace("%2B", "%2b").replace("%3D", "%3d"),
        base64.b64encode(token.encode()).decode(),
        token.replace("/", "\\/"),
    ]
    for spelling in spellings:
        assert spelling not in mask.text(f"before {spelling} after")
        assert spelling.encode() not in mask.body(f"before {spelling} after".encode(), error=False)


def test_a_short_token_is_hidden_in_errors_only() -> None:
    """A token that could be a word stays in people's data, and is hidden in what is shown."""
    assert Mask("test").body(b"the latest", error=False) == b"the latest"
    assert Mask("test").body(b"bad token test", error=True) == b"bad token ***"
