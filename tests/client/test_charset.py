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
    from pipeline.client.client import Client
    from tests.client.conftest import Make

pytestmark = pytest.mark.virtual_time
TEXT: Final = "écrasé à 5 °C"
CASES: Final = [  # parameters, codec of the body, and what happens: stored, refused by name, or never another text
    *(
        (parameters, codec, "stored")
        for codec in ("utf-8", "utf-8-sig")
        for parameters in (
            *("", "; version=1", "; charset=", "; charset=utf-8", '; charset="UTF8"', " ; CHARSET = 'utf-8'"),
            *("; charset=utf-8; charset=UTF8", "; charset=us-ascii", "; charset=iso-8859-1"),
        )
    ),
    ("; charset=utf-7", "utf-7", "refused"),
    ("; charset=utf-7", "utf-8", "refused"),
    ("; charset=bogus", "utf-8", "refused"),
    ("; charset=\u202eutf-8", "utf-8", "refused"),
    ("; charset=utf-8; charset=utf-16", "utf-8", "refused"),
    ("; charset=utf-16", "utf-16", "refused"),
    ("; charset=UTF-16LE", "utf-16-le", "refused"),
    ("; charset=iso-8859-1", "latin-1", "refused"),
    ("; charset=us-ascii", "cp1252", "refused"),
    ("; charset=windows-1252", "cp1252", "refused"),
    ("; charset=utf-8", "latin-1", "not read"),
    ("", "latin-1", "not read"),
    ("", "utf-16", "not read"),
    ("; charset=utf-8", "utf-16-le", "not read"),
]


async def call(client: Client, *, is_list: bool) -> bytes | ProtocolError | RetriesExhaustedError:
    """Return the file's bytes as the client stores them, or the error."""
    try:
        if is_list:
            return (await client.list_files(FileQuery())).items[0].raw
        found = await client.get_file(5)
        assert isinstance(found, Detail)
    except (ProtocolError, RetriesExhaustedError) as error:
        return error
    return found.raw


@pytest.mark.parametrize("is_list", [True, False], ids=["list", "detail"])
async def test_only_utf8_is_stored(is_list: bool, client: Make) -> None:  # noqa: FBT001
    """UTF-8 is kept whatever default its server names; another charset, or other bytes, is refused by its name."""
    file = {"id": 5, "scan_code": TEXT}
    text = json.dumps({"data": [file]} if is_list else file, ensure_ascii=False)
    for parameters, codec, outcome in CASES:
        headers = [("Content-Type", f"application/json{parameters}")]
        async with scripted(answer(text.encode(codec), headers=headers)) as server, client(server.base) as asking:
            result = await call(asking, is_list=is_list)
        if outcome == "stored":
            assert isinstance(result, bytes), parameters
            assert json.loads(result.removeprefix(codecs.BOM_UTF8)) == file
        elif outcome == "refused":
            assert isinstance(result, ProtocolError if is_list else RetriesExhaustedError), parameters
            assert "charset" in result.message
            assert parameters.rpartition("=")[2].strip("\u202e").lower() in result.message
            assert result.message.isprintable()
        elif isinstance(result, bytes):  # the exact bytes are kept, and named as a reject when they are parsed
            with pytest.raises(UnicodeDecodeError):
                result.decode()


async def test_an_error_keeps_its_status_in_any_charset(client: Make) -> None:
    """A 422 in an unknown charset is a 422; an HTML page in one is a page."""
    headers = [("Content-Type", "application/json; charset=utf-7")]
    async with scripted([answer(b"+AMk-", status=422, headers=headers)]) as server, client(server.base) as asking:
        with pytest.raises(ProtocolError, match="HTTP 422"):
            await asking.list_files(FileQuery())
    async with scripted([answer(b" <html>", headers=headers)]) as server, client(server.base) as asking:
        with pytest.raises(RetriesExhaustedError, match="HTML"):
            await asking.list_files(FileQuery())
