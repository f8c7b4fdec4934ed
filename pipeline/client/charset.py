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
_UTF8: Final = dict.fromkeys(("utf-8", "utf8", "utf8mb3", "utf8mb4"), "utf-8")  # the last two are MySQL's
_ASCII: Final = dict.fromkeys(("us-ascii", "ascii", "binary"), "ascii")  # UTF-8 fits both: JSON has no other default
_SINGLE_BYTE: Final = (
    dict.fromkeys(("iso-8859-1", "iso8859-1", "latin-1", "latin1"), "latin-1")
    | dict.fromkeys(("iso-8859-15", "iso8859-15", "latin-9", "latin9"), "iso8859-15")
    | dict.fromkeys(("windows-1252", "cp1252", "x-cp1252"), "cp1252")
)
_WIDE: Final = {
    f"{name}{dash}{order}": f"{codec}{order}"
    for codec in ("utf-16", "utf-32")
    for name in (codec, codec.replace("-", ""))
    for dash, order in (("", ""), ("", "le"), ("", "be"), ("-", "le"), ("-", "be"))
}
_CODECS: Final = _UTF8 | _ASCII | _SINGLE_BYTE | _WIDE
_BOM: Final = "\ufeff"
_C1_CONTROLS: Final = re.compile("[\x80-\x9f]")


def to_utf8(body: bytes, content_types: Iterable[str]) -> bytes:
    """Return a body in UTF-8. UTF-8 itself, and an HTML page, are returned as they are: the parser checks them.

    Raises `AttemptError` with charset and reason if the body cannot be decoded without a doubt.
    """
    charset, codec, problem = _find_charset("\n".join(content_types))
    if codec == "utf-8" or not body or body.lstrip()[:1] == b"<":
        return body
    text = ""
    if codec is not None:
        text, problem = _decode(body, codec)
    if problem:
        raise AttemptError("charset", f"JSON in the {charset}: {problem}", is_protocol_error=True)
    return text.removeprefix(_BOM).encode()


def _decode(body: bytes, codec: str) -> tuple[str, str]:
    """Return the text, and why its encoding is in doubt: empty if it is not."""
    strict_codec = "utf-8" if codec == "ascii" else _find_byte_order(body, codec)
    try:
        text = body.decode(strict_codec)
    except UnicodeDecodeError as error:
        return "", f"the byte at {error.start} does not fit it"
    # A label of a single-byte charset is often a server's default: the body may be UTF-8.
    if codec in _SINGLE_BYTE.values() and not body.isascii():
        if _is_utf8(body):
            return "", "the bytes are UTF-8"
        if _C1_CONTROLS.search(text):
            return "", "the text has control characters"
    if codec in _WIDE.values() and not text.removeprefix(_BOM).lstrip()[:1].isascii():
        return "", "the text is no JSON"  # in the other byte order, perhaps
    return text, ""


@lru_cache(maxsize=64)
def _find_charset(content_types: str) -> tuple[str, str | None, str]:
    """Return the charset that the headers name, its codec, and why it has none."""
    labels = {label.strip("\"'").lower().replace("_", "-") for label in _PARAMETER.findall(content_types)} - {""}
    codecs = {_CODECS.get(label) for label in labels} or {"utf-8"}
    named = summarize_in_one_line(f"charset{'s' * (len(labels) > 1)} {', '.join(sorted(labels))}")
    if len(codecs) > 1:
        return named, None, "they contradict each other"
    codec = codecs.pop()
    return named, codec, "" if codec else "not a supported one"


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
