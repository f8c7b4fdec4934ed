"""Charsets of answers: UTF-8 is stored, and nothing whose encoding is in doubt."""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import Detail
from pipeline.errors import ProtocolError
from schemas.requests import FileQuery
from tests.client.scripted_server import answer, scripted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.client.client import Client

    Make = Callable[..., Client]

TEXT: Final = "écrasé à 5 °C"
UTF8: Final = [
    "",
    "; version=1",
    "; charset=",
    "; charset=utf-8",
    '; charset="UTF8"',
    " ; CHARSET = 'utf-8'",
    "; charset=utf-8; charset=UTF8",
    "; charset=us-ascii",
    "; charset=iso-8859-1",
]
REFUSED: Final = [  # parameters, codec of the body
    ("; charset=utf-7", "utf-7"),
    ("; charset=utf-7", "utf-8"),
    ("; charset=bogus", "utf-8"),
    ("; charset=\u202eutf-8", "utf-8"),
    ("; charset=utf-8; charset=utf-16", "utf-8"),
    ("; charset=utf-16", "utf-16"),
    ("; charset=UTF-16LE", "utf-16-le"),
    ("; charset=iso-8859-1", "latin-1"),
    ("; charset=us-ascii", "cp1252"),
    ("; charset=windows-1252", "cp1252"),
]
NOT_UTF8: Final = [("; charset=utf-8", "latin-1"), ("", "latin-1"), ("", "utf-16"), ("; charset=utf-8", "utf-16-le")]


def encode(codec: str, *, is_list: bool) -> bytes:
    """Return a file, or a list of one, with the text in it."""
    file = {"id": 5, "scan_code": TEXT}
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


@pytest.mark.parametrize("is_list", [True, False], ids=["list", "detail"])
@pytest.mark.parametrize("parameters", UTF8)
@pytest.mark.parametrize("start", [b"", codecs.BOM_UTF8], ids=["plain", "bom"])
async def test_utf8_is_stored_as_it_came(
    parameters: str,
    start: bytes,
    is_list: bool,  # noqa: FBT001
    client: Make,
) -> None:
    """A body in UTF-8 is kept, whatever default its server names."""
    body = start + encode("utf-8", is_list=is_list)
    async with scripted(answer(body, headers=json_headers(parameters))) as server, client(server.base) as asking:
        raw = await call(asking, is_list=is_list)
    assert json.loads(raw.decode("utf-8-sig")) == {"id": 5, "scan_code": TEXT}


@pytest.mark.parametrize("is_list", [True, False], ids=["list", "detail"])
@pytest.mark.parametrize(("parameters", "codec"), REFUSED)
async def test_another_charset_is_refused_by_name(
    parameters: str,
    codec: str,
    is_list: bool,  # noqa: FBT001
    client: Make,
) -> None:
    """A charset that is not UTF-8, or bytes that do not fit a server's default, is an error that names it."""
    body = encode(codec, is_list=is_list)
    async with scripted(answer(body, headers=json_headers(parameters))) as server, client(server.base) as asking:
        with pytest.raises(ProtocolError if is_list else RetriesExhaustedError, match="charset") as raised:
            await call(asking, is_list=is_list)
    assert raised.value.message.isprintable()
    assert parameters.rpartition("=")[2].strip("\u202e").lower() in raised.value.message


@pytest.mark.parametrize(("parameters", "codec"), NOT_UTF8)
@pytest.mark.parametrize("is_list", [True, False], ids=["list", "detail"])
async def test_bytes_that_are_not_utf8_are_not_stored(
    parameters: str,
    codec: str,
    is_list: bool,  # noqa: FBT001
    client: Make,
) -> None:
    """A body that is called UTF-8, or nothing, and is not UTF-8 gives no document with other text."""
    body = encode(codec, is_list=is_list)
    async with scripted(answer(body, headers=json_headers(parameters))) as server, client(server.base) as asking:
        try:
            raw = await call(asking, is_list=is_list)
        except (ProtocolError, RetriesExhaustedError):
            return
    with pytest.raises(UnicodeDecodeError):
        raw.decode()  # the exact bytes are kept, and named as a reject when they are parsed


async def test_an_error_keeps_its_status_in_any_charset(client: Make) -> None:
    """A 422 in an unknown charset is a 422; an HTML page in one is a page."""
    headers = json_headers("; charset=utf-7")
    async with scripted([answer(b"+AMk-", status=422, headers=headers)]) as server, client(server.base) as asking:
        with pytest.raises(ProtocolError, match="HTTP 422"):
            await asking.list_files(FileQuery())
    async with scripted([answer(b" <html>", headers=headers)]) as server, client(server.base) as asking:
        with pytest.raises(RetriesExhaustedError, match="HTML"):
            await asking.list_files(FileQuery())
