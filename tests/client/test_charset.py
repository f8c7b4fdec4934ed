"""Charsets of answers: what is decoded, and that nothing is stored whose encoding is in doubt."""

from __future__ import annotations

import codecs
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.charset import to_utf8
from pipeline.client.errors import AttemptError, RetriesExhaustedError
from pipeline.client.protocol import Detail
from pipeline.errors import ProtocolError
from schemas.requests import FileQuery
from tests.client.scripted_server import answer, scripted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.client.client import Client

    Make = Callable[..., Client]

NARROW: Final = "écrasé à 5 °C"
WIDE: Final = "écrasé 損傷 \U0001f697"
DECODED: Final[list[tuple[str, str, bytes, str]]] = [  # parameters, codec of the body, its start, the text in it
    ("; charset=utf-8", "utf-8", b"", WIDE),
    ('; charset="UTF8"', "utf-8", b"", WIDE),
    ("", "utf-8", b"", WIDE),
    ("; version=1", "utf-8", b"", WIDE),
    ("; charset=", "utf-8", b"", WIDE),
    ("; charset=utf-8", "utf-8", codecs.BOM_UTF8, WIDE),
    ("; charset=utf-8; charset=UTF8", "utf-8", b"", WIDE),
    ("; charset=utf-16", "utf-16", b"", WIDE),
    ("; charset=UTF-16", "utf-16-be", codecs.BOM_UTF16_BE, WIDE),
    ("; charset=utf-16", "utf-16-le", b"", WIDE),
    ("; charset=utf-16", "utf-16-be", b"", WIDE),
    (";charset=utf-16le", "utf-16-le", b"", WIDE),
    (" ; CHARSET = UTF-16BE", "utf-16-be", codecs.BOM_UTF16_BE, WIDE),
    ("; charset=utf-32", "utf-32", b"", WIDE),
    ("; charset=utf-32", "utf-32-be", b"", WIDE),
    ("; charset=utf-32", "utf-32-be", codecs.BOM_UTF32_BE, WIDE),
    ("; charset=UTF_32LE", "utf-32-le", b"", WIDE),
    ("; charset=iso-8859-1", "latin-1", b"", NARROW),
    ("; Charset=Latin1", "latin-1", b"", NARROW),
    ("; charset=windows-1252", "cp1252", b"", NARROW + " €"),
    ("; charset=us-ascii", "ascii", b"", "plain"),
    ("; charset=iso-8859-1", "ascii", b"", "plain"),
    ("; charset=ISO-8859-15", "iso8859-15", b"", NARROW + " €"),
    ("; charset=latin9", "iso8859-15", b"", NARROW),
    ("; charset=utf-16-le", "utf-16-le", b"", WIDE),
    ("; charset=UTF-16-BE", "utf-16-be", b"", WIDE),
    ("; charset=utf16le", "utf-16-le", b"", WIDE),
    ("; charset='utf-8'", "utf-8", b"", WIDE),
    ("; charset='utf-16'", "utf-16-be", b"", WIDE),
    ("; charset=utf8mb4", "utf-8", b"", WIDE),
    ("; charset=utf8mb3", "utf-8", b"", NARROW),
    ("; charset=binary", "utf-8", b"", WIDE),
    ("; charset=us-ascii", "utf-8", b"", WIDE),
    ("; charset=utf-8; charset=utf8mb4", "utf-8", b"", WIDE),
]
REFUSED: Final[list[tuple[str, str, bytes, str]]] = [  # parameters, codec of the body, its end, the text in it
    ("; charset=utf-7", "utf-7", b"", NARROW),
    ("; charset=UTF-7", "ascii", b"", "plain"),
    ("; charset=bogus", "utf-8", b"", NARROW),
    ("; charset=x-user-defined", "ascii", b"", "plain"),
    ("; charset=shift_jis", "shift_jis", b"", "損傷"),
    ("; charset=unicode_escape", "ascii", b"", "plain"),
    ("; charset=rot13", "ascii", b"", "plain"),
    ("; charset=\u202eutf-8", "utf-8", b"", NARROW),
    ("; charset=utf-8; charset=utf-16", "utf-8", b"", NARROW),
    ("; charset=iso-8859-1", "utf-8", b"", NARROW),
    ("; charset=windows-1252", "utf-8", b"", NARROW),
    ("; charset=iso-8859-1", "cp1252", b"", "5 €"),
    ("; charset=windows-1252", "latin-1", b"", "\x81"),
    ("; charset=us-ascii", "latin-1", b"", NARROW),
    ("; charset=binary", "latin-1", b"", NARROW),
    ("; charset=binary", "utf-16", b"", WIDE),
    ("; charset=iso-8859-15", "utf-8", b"", NARROW),
    ("; charset='utf-7'", "utf-7", b"", NARROW),
    ("; charset=utf8mb5", "utf-8", b"", NARROW),
    ("; charset=utf-16", "utf-16", b"\x20", WIDE),
    ("; charset=utf-16le", "utf-16-le", b"\x00\xd8", WIDE),
    ("; charset=utf-32be", "utf-32-be", b"\x00\x11\x00\x00", WIDE),
    ("; charset=utf-16be", "utf-16-le", b"\x20", WIDE),
]
NOT_UTF8: Final[list[tuple[str, str, bytes, str]]] = [
    ("; charset=utf-8", "latin-1", b"", NARROW),
    ("", "latin-1", b"", NARROW),
    ("", "utf-16", b"", WIDE),
    ("; charset=utf-8", "utf-16-le", b"", WIDE),
]


def encode(text: str, codec: str, *, is_list: bool) -> bytes:
    """Return a file, or a list of one, with the text in it."""
    file = {"id": 5, "scan_code": text}
    return json.dumps({"data": [file]} if is_list else file, ensure_ascii=False).encode(codec)


async def call(client: Client, *, is_list: bool) -> bytes:
    """Return the file's bytes as the client stores them."""
    if is_list:
        return (await client.list_files(FileQuery())).items[0].raw
    found = await client.get_file(5)
    assert isinstance(found, Detail)
    return found.raw


def json_headers(parameters: str) -> list[tuple[str, str]]:
    """Return the header of a JSON answer."""
    return [("Content-Type", f"application/json{parameters}")]


@pytest.mark.parametrize("is_list", [True, False])
@pytest.mark.parametrize(("parameters", "codec", "start", "text"), DECODED)
async def test_a_known_charset_is_decoded(
    parameters: str,
    codec: str,
    start: bytes,
    text: str,
    is_list: bool,  # noqa: FBT001
    client: Make,
) -> None:
    """List and detail are decoded from the charset of their header; what is stored is UTF-8."""
    body = start + encode(text, codec, is_list=is_list)
    async with scripted(answer(body, headers=json_headers(parameters))) as server, client(server.base) as asking:
        raw = await call(asking, is_list=is_list)
    assert json.loads(raw.decode("utf-8-sig")) == {"id": 5, "scan_code": text}


@pytest.mark.parametrize("is_list", [True, False])
@pytest.mark.parametrize(("parameters", "codec", "end", "text"), REFUSED)
async def test_a_charset_in_doubt_is_refused_by_name(
    parameters: str,
    codec: str,
    end: bytes,
    text: str,
    is_list: bool,  # noqa: FBT001
    client: Make,
) -> None:
    """An unknown or contradictory charset, and one that does not fit the bytes, is an error that names it."""
    body = encode(text, codec, is_list=is_list) + end
    async with scripted(answer(body, headers=json_headers(parameters))) as server, client(server.base) as asking:
        with pytest.raises(ProtocolError if is_list else RetriesExhaustedError, match="charset") as raised:
            await call(asking, is_list=is_list)
    assert raised.value.message.isprintable()
    assert parameters.split("=")[1].strip("'; charset\u202e").lower().replace("_", "-")[:5] in raised.value.message


@pytest.mark.parametrize(
    ("parameters", "body", "reason"),
    [
        ("; charset=utf-7", b"{}", "charset utf-7: not a supported one"),
        ("; charset=utf-8; charset=utf-16", b"{}", "charsets utf-16, utf-8: they contradict each other"),
        ("; charset=us-ascii", b'"\xe9"', "charset us-ascii: the byte at 1 does not fit it"),
        ("; charset=iso-8859-1", '"é"'.encode(), "charset iso-8859-1: the bytes are UTF-8"),
        ("; charset=iso-8859-1", b'"\x80"', "charset iso-8859-1: the text has control characters"),
        ("; charset=utf-16be", '{"id":5}'.encode("utf-16-le"), "charset utf-16be: the text is no JSON"),
    ],
)
async def test_a_refused_charset_has_a_reason(parameters: str, body: bytes, reason: str, client: Make) -> None:
    """The error says which charset is refused, and why."""
    async with scripted(answer(body, headers=json_headers(parameters))) as server, client(server.base) as asking:
        with pytest.raises(ProtocolError) as raised:
            await asking.list_files(FileQuery())
    assert reason in raised.value.message


@pytest.mark.parametrize(("parameters", "codec", "end", "text"), NOT_UTF8)
@pytest.mark.parametrize("is_list", [True, False])
async def test_bytes_that_are_not_utf8_are_not_stored(
    parameters: str,
    codec: str,
    end: bytes,
    text: str,
    is_list: bool,  # noqa: FBT001
    client: Make,
) -> None:
    """A body that is called UTF-8, or nothing, and is not UTF-8 gives no document with other text."""
    body = encode(text, codec, is_list=is_list) + end
    async with scripted(answer(body, headers=json_headers(parameters))) as server, client(server.base) as asking:
        try:
            raw = await call(asking, is_list=is_list)
        except (ProtocolError, RetriesExhaustedError):
            return
    with pytest.raises(UnicodeDecodeError):
        raw.decode()  # the exact bytes are kept, and named as a reject when they are parsed


async def test_an_error_keeps_its_status_in_any_charset(client: Make) -> None:
    """A 404 in an unknown charset is a 404; an HTML page in one is a page."""
    headers = json_headers("; charset=utf-7")
    async with scripted([answer(b"+AMk-", status=422, headers=headers)]) as server, client(server.base) as asking:
        with pytest.raises(ProtocolError, match="HTTP 422"):
            await asking.list_files(FileQuery())
    async with scripted([answer(b" <html>", headers=headers)]) as server, client(server.base) as asking:
        with pytest.raises(RetriesExhaustedError, match="HTML"):
            await asking.list_files(FileQuery())


async def test_several_content_types_must_agree(client: Make) -> None:
    """Two headers with different charsets are refused, two equal ones are not."""
    first, second = json_headers("; charset=utf-8"), json_headers("; charset=utf-16")
    body = encode(WIDE, "utf-8", is_list=False)
    async with scripted(answer(body, headers=first + second)) as server, client(server.base) as asking:
        with pytest.raises(RetriesExhaustedError):
            await asking.get_file(5)
    async with scripted(answer(body, headers=first * 2)) as server, client(server.base) as asking:
        assert await call(asking, is_list=False) == body


CHARSETS: Final = st.sampled_from(
    ["utf-16", "utf-16le", "utf-16be", "utf-32", "iso-8859-1", "windows-1252", "us-ascii"]
)


@given(
    CHARSETS, st.sampled_from(["utf-8", "utf-16", "utf-16-le", "utf-32-be", "latin-1", "cp1252", "ascii"]), st.text()
)
def test_no_text_is_changed(charset: str, codec: str, text: str) -> None:
    """Whatever charset a JSON text has and claims: it is decoded to itself, refused, or is not JSON."""
    document = json.dumps({"text": text}, ensure_ascii=False)
    try:
        decoded: Any = json.loads(to_utf8(document.encode(codec), [f"text/json; charset={charset}"]).decode())
    except (UnicodeError, AttemptError, json.JSONDecodeError):
        return
    latin = {"iso-8859-1": "latin-1", "windows-1252": "cp1252"}
    if {charset, codec} <= {"iso-8859-1", "windows-1252", "latin-1", "cp1252"} and latin[charset] != codec:
        return  # the same bytes in both, but for 0x80 to 0x9f
    assert decoded == {"text": text}


@given(st.binary(max_size=50), st.text(max_size=30))
def test_any_bytes_and_any_label_end_in_utf8_or_an_error(body: bytes, label: str) -> None:
    """What was decoded is UTF-8; everything else is untouched or an attempt error."""
    with suppress(AttemptError):
        result = to_utf8(body, [f"application/json; charset={label}"])
        assert result == body or result.decode() is not None
