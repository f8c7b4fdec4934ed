"""Connections whose answers have well-formed headers.

aiohttp's parsers end a header line at a bare line feed. A proxy on the way may take it for a part of the value, so a
header or a body can be hidden in it (response smuggling, RFC 9112 section 2.2). The parsers report only the lines:
the bytes are checked before them.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import BadHttpMessage

_END: Final = b"\r\n\r\n"
_MALFORMED: Final = re.compile(rb"(?<!\r)\n|\r[^\n]|[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_CONTROL: Final = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_INTERIM: Final = re.compile(rb"HTTP/\d\.\d 1(?!01)")  # 101 ends HTTP
_MAX_HEAD_BYTES: Final = 1_048_576  # the parser's own limits are lower


class CheckedResponseHandler(ResponseHandler):
    """aiohttp's protocol of a client connection; it refuses a response head with bare line ends or control bytes."""

    _head: bytearray | None = None  # of the response that is arriving; None in its body

    def set_response_params(self, **parameters: Any) -> None:
        """Expect a response; aiohttp calls it for each request."""
        self._head = bytearray()
        super().set_response_params(**parameters)

    def data_received(self, data: bytes) -> None:
        """Check bytes of a head before aiohttp parses them."""
        if self._head is not None and data and not self._is_well_formed(data):
            if self.transport is not None:
                self.transport.close()
            self.set_exception(BadHttpMessage("bare line end or control character in the headers"))
            return
        super().data_received(data)

    def _is_well_formed(self, data: bytes) -> bool:
        if not self._head and (end := _find_whole_head(data)) is not None:
            self._head = None
            return not _has_bare_bytes(data[:end])
        while self._head is not None and data:
            checked = max(0, len(self._head) - len(_END) + 1)
            self._head += data if self._head else data.lstrip(b"\r\n")
            end = self._head.find(_END, checked)
            malformed = _MALFORMED.search(self._head, checked, len(self._head) if end < 0 else end + len(_END))
            if malformed is not None or len(self._head) > _MAX_HEAD_BYTES:
                return False
            if end < 0:
                return True
            is_interim = _INTERIM.match(self._head) is not None
            data = bytes(self._head[end + len(_END) :])
            self._head = bytearray() if is_interim else None
        return True


def _find_whole_head(data: bytes) -> int | None:
    """Return where the final head in `data` ends; None if it needs a closer look. Most heads arrive whole.

    Nothing of the body behind the head is copied.
    """
    end = data.find(_END)
    if end < 0 or data[0] in _END or len(data) > _MAX_HEAD_BYTES or _INTERIM.match(data) is not None:
        return None
    return end + len(_END)


def _has_bare_bytes(head: bytes) -> bool:
    """Return what a search for `_MALFORMED` returns in a whole head, in a fifth of its time."""
    line_ends = head.count(b"\r\n")
    return not head.count(b"\n") == head.count(b"\r") == line_ends or _CONTROL.search(head) is not None


def create_connector(**options: Any) -> aiohttp.TCPConnector:
    """Return a connector of checked connections. aiohttp has no public option for the protocol."""
    connector = aiohttp.TCPConnector(**options)
    factory: Any = partial(CheckedResponseHandler, loop=connector._loop)  # noqa: SLF001
    connector._factory = factory  # noqa: SLF001
    return connector
