"""Response heads with bare line ends or control characters: refused before any header of them counts."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.connector import CheckedResponseHandler
from pipeline.client.errors import RetriesExhaustedError
from pipeline.client.protocol import Detail
from schemas.requests import FileQuery
from tests.client.scripted_server import Close, Wait, scripted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.client.client import Client

    Make = Callable[..., Client]

BODY: Final = b'{"id": 5, "data": [], "text": "line\\n"}\n'
LENGTH: Final = b"Content-Length: %d" % len(BODY)
MALFORMED: Final[dict[str, bytes]] = {
    "all lines": b"HTTP/1.1 200 OK\n%b\n\n" % LENGTH,
    "status line": b"HTTP/1.1 200 OK\n%b\r\n\r\n" % LENGTH,
    "a hidden header": b"HTTP/1.1 200 OK\r\nX: y\n%b\r\n\r\n" % LENGTH,
    "a hidden status": b"HTTP/1.1 200 OK\r\nX: y\nHTTP/1.1 404 Gone\r\n%b\r\n\r\n" % LENGTH,
    "the last line": b"HTTP/1.1 200 OK\r\n%b\n\r\n" % LENGTH,
    "the end": b"HTTP/1.1 200 OK\r\n%b\r\n\n" % LENGTH,
    "a hidden body": b'HTTP/1.1 200 OK\r\nX: y\n\n{"id": 5}\r\n%b\r\n\r\n' % LENGTH,
    "a bare return": b"HTTP/1.1 200 OK\r\nX: y\r%b\r\n\r\n" % LENGTH,
    "two returns": b"HTTP/1.1 200 OK\r\n%b\r\r\n\r\n" % LENGTH,
    "a return at the end": b"HTTP/1.1 200 OK\r\n%b\r\nX: y\r\r\n\r\n" % LENGTH,
    "a NUL": b"HTTP/1.1 200 OK\r\nX: a\0b\r\n%b\r\n\r\n" % LENGTH,
    "an escape": b"HTTP/1.1 200 OK\r\nX: \x1b[31m\r\n%b\r\n\r\n" % LENGTH,
    "a vertical tab": b"HTTP/1.1 200 OK\r\nX: a\x0b%b\r\n%b\r\n\r\n" % (LENGTH, LENGTH),
    "early hints": b"HTTP/1.1 103 Early Hints\nLink: </x>\n\nHTTP/1.1 200 OK\r\n%b\r\n\r\n" % LENGTH,
    "after early hints": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nX: y\n%b\r\n\r\n" % LENGTH,
    "after empty lines": b"\r\n\r\nHTTP/1.1 200 OK\r\nX: y\n%b\r\n\r\n" % LENGTH,
    "after bare empty lines": b"\n\nHTTP/1.1 200 OK\r\nX: y\n%b\r\n\r\n" % LENGTH,
}
WELL_FORMED: Final[dict[str, bytes]] = {
    "plain": b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % LENGTH,
    "a tab and letters": b"HTTP/1.1 200 OK\r\nX: a\tb \xc3\xa9 \xe9\r\n%b\r\n\r\n" % LENGTH,
    "early hints": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\n%b\r\n\r\n" % LENGTH,
    "an empty line before": b"\r\nHTTP/1.1 200 OK\r\n%b\r\n\r\n" % LENGTH,
}


def cut(answer: bytes, size: int) -> list[Any]:
    """Return the steps that send an answer in parts of `size` bytes, the last ones at once."""
    parts = [answer[start : start + size] for start in range(0, len(answer), size)][:200]
    return [step for part in parts for step in (part, Wait(0.0))] + [answer[sum(map(len, parts)) :]]


@pytest.mark.parametrize("size", [1, 2, 1_000])
@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_head_is_refused(name: str, size: int, client: Make) -> None:
    """List, detail and report are transport errors, as often as they are repeated, however the bytes are cut."""
    steps = [*cut(MALFORMED[name] + BODY, size), Close()]
    async with scripted(lambda _: steps) as server, client(server.base, max_attempts=2) as asking:
        for call in (lambda: asking.get_file(5), lambda: asking.list_files(FileQuery())):
            with pytest.raises(RetriesExhaustedError, match="not valid HTTP") as raised:
                await call()
            assert (raised.value.kind, raised.value.attempts) == ("malformed", 2)


@pytest.mark.parametrize("size", [1, 2, 1_000])
@pytest.mark.parametrize("name", WELL_FORMED)
async def test_a_well_formed_head_is_read(name: str, size: int, client: Make) -> None:
    """Line feeds in the body, empty lines before the answer and text in headers are no error."""
    steps = cut(WELL_FORMED[name] + BODY, size)
    async with scripted(lambda _: steps) as server, client(server.base) as asking:
        for _ in range(2):  # on one connection
            found = await asking.get_file(5)
            assert isinstance(found, Detail)
            assert found.raw == BODY.strip()
        assert server.connections == 1
        assert not asking.stats.error_kinds


_PIECES: Final = (b"\r\n", b"\n", b"\r", b"X: y", b"\0", b"\t", b"HTTP/1.1 200 OK", b"HTTP/1.1 103 Early Hints")


def is_accepted(handler: CheckedResponseHandler, parts: Iterable[bytes]) -> bool:
    """Return whether the handler accepts the bytes of one response, which arrive in these parts."""
    handler._head = cast("bytearray | None", bytearray())
    return all(handler._head is None or handler._is_well_formed(part) for part in parts)


@given(pieces=st.lists(st.sampled_from(_PIECES), max_size=12))
def test_whole_heads_and_cut_ones(pieces: list[bytes]) -> None:
    """A head that arrives whole, which is checked faster, is refused exactly when its single bytes are."""
    answer = b"".join(pieces) + b"\r\n\r\n" + BODY
    with closing(asyncio.new_event_loop()) as loop:
        handler = CheckedResponseHandler(loop)
        whole = is_accepted(handler, [answer])
        assert whole == is_accepted(handler, [answer[place : place + 1] for place in range(len(answer))])


async def test_one_malformed_answer_is_repeated(client: Make) -> None:
    """After one malformed head the next attempt, on another connection, succeeds."""
    script = [MALFORMED["a hidden header"] + BODY, WELL_FORMED["plain"] + BODY]
    async with scripted(script) as server, client(server.base) as asking:
        assert isinstance(await asking.get_file(5), Detail)
        assert (len(server.asked), server.connections) == (2, 2)
