"""Decodes JSON from the charset of its `Content-Type`. JSON is UTF-8 (RFC 8259), and so is what the lake stores.

A body in a charset that is unknown, that contradicts itself or that does not fit its bytes is refused by name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pipeline.client.error_bodies import summarize_in_one_line
from pipeline.client.errors import AttemptError

if TYPE_CHECKING:
    from collections.abc import Iterable

_PARAMETER: Final = re.compile(r";\s*charset\s*=\s*(\"[^\"]*\"|[^;,\s]*)", re.IGNORECASE)
_SINGLE_BYTE: Final = {"iso-8859-1": "latin-1", "latin1": "latin-1", "latin-1": "latin-1", "iso8859-1": "latin-1"} | {
    "windows-1252": "cp1252", "cp1252": "cp1252", "x-cp1252": "cp1252"
}  # fmt: skip
_CODECS: Final = {"utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "ascii", "ascii": "ascii"} | _SINGLE_BYTE | {
    f"{name}{order}": f"{name}{order}" for name in ("utf-16", "utf-32") for order in ("", "le", "be")
}  # fmt: skip
_BOM: Final = "\ufeff"
_C1_CONTROLS: Final = re.compile("[\x80-\x9f]")


def to_utf8(body: bytes, content_types: Iterable[str]) -> bytes:
    """Return a body in UTF-8. UTF-8 itself, and an HTML page, are returned as they are: the parser checks them.

    Raises `AttemptError` if the body cannot be decoded without a doubt.
    """
    charset, codec = _find_charset("\n".join(content_types))
    if codec == "utf-8" or not body or body.lstrip()[:1] == b"<":
        return body
    text = "" if codec is None else _decode(body, codec)
    if not text:
        detail = f"JSON that is not in the charset of its Content-Type ({charset}), or not in a supported one"
        raise AttemptError("charset", detail, is_protocol_error=True)
    return text.removeprefix(_BOM).encode()


def _decode(body: bytes, codec: str) -> str:
    """Return the text, empty if its encoding is in doubt."""
    try:
        text = body.decode(_find_byte_order(body, codec))
    except UnicodeDecodeError:
        return ""
    # A label of a single-byte charset is often a server's default: the body may be UTF-8.
    is_doubtful = codec in _SINGLE_BYTE.values() and not body.isascii()
    return "" if is_doubtful and (_is_utf8(body) or _C1_CONTROLS.search(text)) else text


@lru_cache(maxsize=64)
def _find_charset(content_types: str) -> tuple[str, str | None]:
    """Return the charset that the headers name, and its codec; None for an unknown one, or for several."""
    labels = {label.strip('"').lower().replace("_", "-") for label in _PARAMETER.findall(content_types)} - {""}
    codecs = {_CODECS.get(label) for label in labels} or {"utf-8"}
    return summarize_in_one_line(", ".join(sorted(labels))), codecs.pop() if len(codecs) == 1 else None


def _find_byte_order(body: bytes, codec: str) -> str:
    """Return the codec with the byte order of a text that names none: JSON begins with an ASCII character."""
    if codec not in {"utf-16", "utf-32"} or body.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        return codec
    return f"{codec}{'be' if body[0] == 0 else 'le'}"


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
